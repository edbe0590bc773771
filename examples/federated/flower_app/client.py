"""A client, which trains the received model with its own images."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from network import images, train
from threadpoolctl import threadpool_limits  # comes with scikit-learn

from nnr_codec.integrations.flower import NNRMod

app = ClientApp(mods=[NNRMod()])


@app.train()
def on_train(message: Message, context: Context) -> Message:
    """Return weights trained with the images of this client."""
    client, clients = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    x, y, _, _ = images()
    x, y = x[client::clients], y[client::clients]
    number = int(message.content["config"]["server-round"])
    rounds = int(context.run_config["rounds"])
    rate = float(context.run_config["rate"]) * 0.5 * (1 + np.cos(np.pi * (number - 1) / rounds))
    weights = {name: array.numpy() for name, array in message.content["arrays"].items()}
    with threadpool_limits(1):  # batches are small
        rng = np.random.default_rng((number, client))
        weights = train(weights, x, y, int(context.run_config["epochs"]), rate, rng)
    content = RecordDict(
        {
            "arrays": ArrayRecord({name: Array(value) for name, value in weights.items()}),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
    )
    return Message(content, reply_to=message)
