"""The server, which averages the models of the clients, and prints accuracy and bytes of each round."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from network import accuracy, images, initial_weights

from nnr_codec.integrations.flower import NNRStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    config = context.run_config
    weights = initial_weights(np.random.default_rng(15938))
    held_out = images()[2:]
    strategy = FedAvg(fraction_evaluate=0.0)
    if config["nnr"]:
        strategy = NNRStrategy(strategy, stateful=bool(config["stateful"]), streaming=bool(config["streaming"]))

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": accuracy({name: a.numpy() for name, a in arrays.items()}, *held_out)})

    result = strategy.start(
        grid,
        ArrayRecord({name: Array(value) for name, value in weights.items()}),
        num_rounds=int(config["rounds"]),
        evaluate_fn=evaluate,
    )
    nbytes = sum(value.nbytes for value in weights.values()) * len([*grid.get_node_ids()])
    rows = []
    for number, metrics in result.evaluate_metrics_serverapp.items():
        row = {"round": number, "accuracy": metrics["accuracy"]}
        if number and config["nnr"]:
            statistics = strategy.statistics[number]
            row |= {
                "uplink_raw": statistics.uplink_raw,
                "uplink_wire": statistics.uplink_wire,
                "downlink_raw": statistics.downlink_raw,
                "downlink_wire": statistics.downlink_wire,
                "dropped": [str(each) for each in statistics.dropped],
            }
        elif number:
            row |= {"uplink_wire": nbytes, "downlink_wire": nbytes}
        rows.append(row)
        print(json.dumps(row))
    if config["results"]:
        Path(str(config["results"])).write_text(json.dumps(rows), encoding="utf-8")
