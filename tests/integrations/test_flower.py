"""Flower apps with NNRMod and NNRStrategy, in this process; one of them, slow, runs with ``flwr run``."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of packages that Flower needs
    pytest.importorskip("flwr", reason="the package flwr (extra 'flower') is not installed")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedProx,
)

from nnr_codec.integrations.flower import NNRMod, NNRStrategy

from .flower_grid import InProcessGrid, copied

pytestmark = pytest.mark.flower

KEY = "__nnr__"
Tensors = dict[str, Any]


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """Sample the same clients in the same order; Flower only logs errors."""
    random.seed(0)
    np.random.seed(0)  # warnings of Flower
    log = logging.getLogger("flwr")
    level, propagate = log.level, log.propagate
    log.setLevel(logging.WARNING)
    log.propagate = True
    yield
    log.setLevel(level)
    log.propagate = propagate


def initial() -> Tensors:
    """Return a model with all kinds of counters, flags and masks."""
    rng = np.random.default_rng(1)
    mask = np.where(np.tri(6, dtype=bool), 0, -np.inf).astype(np.float32)
    return {
        "z/weight": rng.normal(size=(24, 40)).astype(np.float32),
        "bias": np.zeros(40, np.float32),
        "steps": np.array(7, np.int64),
        "flags": np.array([True, False, True]),
        "mask": mask,
        "half": rng.normal(size=(9, 10)).astype(np.float16),
        "wide": rng.normal(size=(5, 6)),
        "a/weight": rng.normal(size=(40, 24)).astype(np.float32) / 50,
    }


def record(tensors: Mapping[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(tensor)) for name, tensor in tensors.items()})


def tensors_of(arrays: ArrayRecord) -> Tensors:
    return {name: array.numpy() for name, array in arrays.items()}


def trained(tensors: Tensors, node: int) -> Tensors:
    """Return the model after steps towards a node's data."""
    rng, out = np.random.default_rng(node), {}
    for name, tensor in tensors.items():
        goal = rng.normal(size=tensor.shape)
        fixed = name in ("steps", "flags", "mask")
        out[name] = tensor if fixed else (tensor + 0.2 * (goal - tensor)).astype(tensor.dtype)
    out["steps"] = tensors["steps"] + np.int64(5 * node)
    return out


def client(
    node: int, mods: Any = None, train: Callable[[Tensors, int], Tensors] = trained, **metrics: Any
) -> ClientApp:
    """Return an app as users write it, which checks its input."""
    app = ClientApp(mods=[NNRMod()] if mods is None else mods)

    @app.train()
    def on_train(message: Message, context: Any) -> Message:
        assert "arrays" in message.content and KEY not in message.content["arrays"]
        new = train(tensors_of(message.content["arrays"]), node)
        counted = MetricRecord({"num-examples": 10 * node, "loss": 0.5, **metrics})
        return Message(RecordDict({"arrays": record(new), "metrics": counted}), reply_to=message)

    @app.evaluate()
    def on_evaluate(message: Message, context: Any) -> Message:
        loss = float(np.square(message.content["arrays"]["bias"].numpy()).mean())
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": node, "loss": loss})}), reply_to=message)

    return app


def run(strategy: Any, apps: Any = None, rounds: int = 3, start: Tensors | None = None) -> tuple[Any, InProcessGrid]:
    grid = InProcessGrid({node: client(node) for node in range(1, 5)} if apps is None else apps)
    return strategy.start(grid, record(start or initial()), num_rounds=rounds), grid


def check_alike(a: Tensors, b: Tensors) -> None:
    """Check that models have the same names in the same order, types and shapes."""
    assert [(name, x.dtype, x.shape) for name, x in a.items()] == [(name, x.dtype, x.shape) for name, x in b.items()]


def near(a: Tensors, b: Tensors, tolerance: float) -> bool:
    """Return whether models have about the same values."""
    check_alike(a, b)
    return all(np.allclose(a[name].astype(float), b[name].astype(float), rtol=0, atol=tolerance) for name in a)


def same(a: Tensors, b: Tensors) -> bool:
    check_alike(a, b)
    return all(a[name].tobytes() == b[name].tobytes() for name in a)


# ------------------------------------------------------------------------------------------------ rounds
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"downlink": "lossless"},
        {"downlink": nnr.EncoderConfig(qp=-30)},
        {"downlink": None},
        {"streaming": True},
        {"stateful": True},
        {"stateful": True, "downlink": "lossless"},
    ],
)
def test_rounds_equal_uncompressed_ones(options: dict[str, Any]) -> None:
    plain, _ = run(FedAvg(), {node: client(node, []) for node in range(1, 5)}, rounds=4)
    strategy = NNRStrategy(FedAvg(), **options)
    result, grid = run(strategy, rounds=4)
    found = tensors_of(result.arrays)
    expected = {name: tensor.astype(initial()[name].dtype) for name, tensor in tensors_of(plain.arrays).items()}
    assert near(found, expected, 0.25)  # a step size of the preset "fl"; the error does not grow
    assert found["steps"] == 7 + 4 * 15 and found["steps"].dtype == np.int64
    assert np.array_equal(found["mask"], initial()["mask"])
    assert result.train_metrics_clientapp[4]["loss"] == pytest.approx(0.5)
    assert [*strategy.statistics] == [1, 2, 3, 4]
    for statistics in strategy.statistics.values():
        size = sum(tensor.nbytes for tensor in initial().values())
        assert statistics.replies == 4 and not statistics.dropped
        assert statistics.uplink_raw == 4 * size and statistics.downlink_raw == 8 * size
        assert statistics.uplink_wire < statistics.uplink_raw / 8
        assert statistics.encode_seconds > 0 and statistics.decode_seconds > 0
        if options.get("downlink", ""):
            assert statistics.downlink_wire < 0.95 * statistics.downlink_raw
    wire = [message.content["arrays"] for message in grid.received if "arrays" in message.content]
    assert sum(len(arrays[KEY].data) for arrays in wire) == sum(s.uplink_wire for s in strategy.statistics.values())


def test_messages_on_the_wire() -> None:
    _, grid = run(NNRStrategy(FedAvg()))
    train = [message for message in grid.sent if message.metadata.message_type == "train"]
    evaluate = [message for message in grid.sent if message.metadata.message_type == "evaluate"]
    payloads = [message.content["arrays"][KEY] for message in grid.sent]
    assert all([*message.content["arrays"]] == [KEY] for message in grid.sent)
    assert {(array.dtype, array.stype, array.shape) for array in payloads} == {
        ("uint8", "nnr", (len(array.data),)) for array in payloads
    }
    assert len({array.data for array in payloads}) == 4  # models, the first and one for each round
    assert all(nnr.decode(array.data)["steps"].dtype == np.int64 for array in payloads)
    for message in train:
        told = message.content[KEY]
        assert [*told] == ["version", "records", "bases"] and told["records"] == ["arrays"]
    assert all([*message.content[KEY]] == ["version"] for message in evaluate)
    for sent, received in zip(grid.sent, grid.received, strict=True):
        assert [*received.content.config_records] == []
        if "arrays" in received.content:
            assert not nnr.verify(received.content["arrays"][KEY].data).violations
            assert nnr.open(received.content["arrays"][KEY].data).performance.base_model_id.startswith(
                sent.content[KEY]["bases"][0]
            )


def test_the_same_bytes_twice() -> None:
    def payloads() -> list[bytes]:
        random.seed(0)
        _, grid = run(NNRStrategy(FedAvg(), stateful=True))
        both = [*grid.sent, *grid.received]
        return [message.content["arrays"][KEY].data for message in both if "arrays" in message.content]

    assert payloads() == payloads()


@pytest.mark.parametrize("make", [FedMedian, FedProx, FedAdam], ids=lambda make: make.__name__)
def test_other_strategies_inside(make: Any) -> None:
    options = {"proximal_mu": 0.1} if make is FedProx else {}
    start = {name: tensor for name, tensor in initial().items() if name not in ("flags", "mask")}
    plain, _ = run(make(**options), {node: client(node, []) for node in range(1, 5)}, start=start)
    result, _ = run(NNRStrategy(make(**options)), start=start)
    expected = {name: tensor.astype(start[name].dtype) for name, tensor in tensors_of(plain.arrays).items()}
    assert near(tensors_of(result.arrays), expected, 0.6 if make is FedMedian else 0.5)


# ------------------------------------------------------------------------------------------------ privacy
def floats() -> Tensors:
    return {name: tensor for name, tensor in initial().items() if tensor.dtype == np.float32 and name != "mask"}


def stepped(tensors: Tensors, node: int) -> Tensors:
    return {name: tensor + np.float32(0.1) for name, tensor in tensors.items()}


def test_clipping_at_the_server_holds_after_decoding() -> None:
    wrapped = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 0.5, 4)
    strategy = NNRStrategy(wrapped, downlink="lossless")
    result, _ = run(strategy, {node: client(node, train=stepped) for node in range(1, 5)}, rounds=1, start=floats())
    moved = [tensors_of(result.arrays)[name] - tensor for name, tensor in floats().items()]
    assert sum(float(np.square(tensor.astype(float)).sum()) for tensor in moved) ** 0.5 == pytest.approx(0.5, rel=1e-3)
    assert not strategy.statistics[1].dropped


def test_noise_at_the_server() -> None:
    wrapped = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.1, 0.5, 4)
    result, _ = run(NNRStrategy(wrapped), {node: client(node, train=stepped) for node in range(1, 5)}, start=floats())
    assert near(tensors_of(result.arrays), floats(), 2.0)
    assert not same(tensors_of(result.arrays), floats())


def test_mods_of_privacy_come_after_ours(caplog: pytest.LogCaptureFixture) -> None:
    wrapped = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.01, 0.5, 4)
    strategy = NNRStrategy(wrapped)
    apps = {node: client(node, [NNRMod(error_feedback=False), fixedclipping_mod], stepped) for node in range(1, 5)}
    result, _ = run(strategy, apps, start=floats())
    assert strategy.statistics[3].replies == 4
    moved = [tensors_of(result.arrays)[name] - tensor for name, tensor in floats().items()]
    assert 0.5 < sum(float(np.square(tensor.astype(float)).sum()) for tensor in moved) ** 0.5 < 3
    noise = LocalDpMod(0.5, 0.001, 1.0, 0.1)
    strategy = NNRStrategy(FedAvg())
    run(strategy, {node: client(node, [NNRMod(), noise], stepped) for node in range(1, 5)}, start=floats())
    assert strategy.statistics[3].replies == 4


@pytest.mark.parametrize("mod", [fixedclipping_mod, LocalDpMod(0.5, 0.001, 1.0, 0.1)])
def test_mods_of_privacy_before_ours_fail(mod: Any) -> None:
    strategy = NNRStrategy(DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.01, 0.5, 4))
    apps = {node: client(node, [mod, NNRMod()], stepped) for node in range(1, 5)}
    result, grid = run(strategy, apps, rounds=1, start=floats())
    assert not result.arrays and strategy.statistics[1].replies == 0
    assert all(reply.has_error() or reply.content.array_records == {} for reply in grid.received[:4])


def test_secure_aggregation_is_refused() -> None:
    masked = ConfigRecord({"stage": "setup"})

    class Masking(FedAvg):  # type: ignore[misc,unused-ignore]
        def configure_train(self, *arguments: Any) -> Any:
            messages = [*super().configure_train(*arguments)]
            for message in messages:
                message.content["secaggplus_configs"] = masked
            return messages

    with pytest.raises(nnr.UnsupportedError, match="secure aggregation"):
        run(NNRStrategy(Masking()))
    result, grid = run(Masking(), rounds=1)
    assert not result.arrays
    assert all("secure aggregation" in message.error.reason for message in grid.received[:4])

    def masking(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type == "train":
            reply.content["secaggplus_configs"] = masked
        return reply

    strategy = NNRStrategy(FedAvg())
    _, grid = run(strategy, {node: client(node, [NNRMod(), masking]) for node in range(1, 5)}, rounds=1)
    assert all("secure aggregation" in message.error.reason for message in grid.received[:4])


# ------------------------------------------------------------------------------------------------ clients
def test_clients_without_the_mod() -> None:
    apps = {node: client(node, [NNRMod()] if node % 2 else []) for node in range(1, 5)}
    strategy = NNRStrategy(FedAvg(), downlink=None)
    result, _ = run(strategy, apps, rounds=2)
    assert strategy.statistics[2].replies == 4
    assert tensors_of(result.arrays)["steps"] == 7 + 2 * 15
    streamed, _ = run(NNRStrategy(FedAvg(), downlink=None, streaming=True), apps, rounds=2)
    assert near(tensors_of(streamed.arrays), tensors_of(result.arrays), 2e-3)


def test_the_mod_alone_does_nothing() -> None:
    plain, _ = run(FedAvg(), {node: client(node, []) for node in range(1, 5)})
    random.seed(0)
    result, _ = run(FedAvg())
    assert near(tensors_of(result.arrays), tensors_of(plain.arrays), 1e-6)


def test_error_feedback_is_kept_in_the_context() -> None:
    start = {"w": np.zeros((30, 30), np.float32)}

    def train(tensors: Tensors, node: int) -> Tensors:
        step = np.full((30, 30), 1e-4, np.float32)
        step[0] = 1.0
        return {"w": tensors["w"] + step}

    def moved(mod: NNRMod) -> tuple[float, InProcessGrid]:
        result, grid = run(NNRStrategy(FedAvg()), {node: client(node, [mod], train) for node in (1, 2)}, 60, start)
        return float(result.arrays["w"].numpy()[1:].mean()), grid

    found, grid = moved(NNRMod(qp=-16))
    assert [*grid.contexts[1].state] == [f"{KEY}.residual.arrays"]
    residual = grid.contexts[1].state[f"{KEY}.residual.arrays"]["w"].numpy()
    assert residual.shape == (30, 30) and np.abs(residual).max() > 0
    without, grid = moved(NNRMod(qp=-16, error_feedback=False))
    assert not grid.contexts[1].state
    assert without == 0
    assert found + residual[1:].mean() == pytest.approx(60e-4, rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"stateful": True}, {"streaming": True}], ids=str)
def test_updates_take_at_most_the_target_size(options: dict[str, bool]) -> None:
    target = sum(np.asarray(tensor).nbytes for tensor in initial().values()) // 12
    _, grid = run(
        NNRStrategy(FedAvg(), **options), {node: client(node, [NNRMod(target_size=target)]) for node in (1, 2)}
    )
    taken = [len(message.content["arrays"][KEY].data) for message in grid.received if message.content.array_records]
    assert len(taken) == 6 and target / 2 < min(taken) and max(taken) <= target


def test_error_feedback_sends_what_the_target_size_leaves_out() -> None:
    rng = np.random.default_rng(2)
    start = {f"layer{k}": np.zeros((16, 16), np.float32) for k in range(10)}
    step = {name: (rng.normal(size=(16, 16)) * 2.0 ** -(k % 3)).astype(np.float32) for k, name in enumerate(start)}

    def train(tensors: Tensors, node: int) -> Tensors:
        return {name: tensors[name] + step[name] for name in tensors}

    apps = {1: client(1, [NNRMod(target_size=500)], train)}
    strategy = NNRStrategy(FedAvg(min_train_nodes=1, min_available_nodes=1, fraction_evaluate=0), downlink="lossless")
    result, grid = run(strategy, apps, 30, start)
    assert max(len(message.content["arrays"][KEY].data) for message in grid.received) <= 500
    residual = tensors_of(grid.contexts[1].state[f"{KEY}.residual.arrays"])
    for name, tensor in tensors_of(result.arrays).items():
        assert tensor.any()
        assert np.allclose(tensor + residual[name], 30 * step[name], rtol=0, atol=1e-4)


def test_a_target_size_that_is_too_small_changes_nothing() -> None:
    apps = {node: client(node) for node in (1, 2)}
    _, grid = run(NNRStrategy(FedAvg()), apps, rounds=1)
    before = tensors_of(grid.contexts[1].state[f"{KEY}.residual.arrays"])
    grid.apps[1] = client(1, [NNRMod(target_size=50)])
    strategy = NNRStrategy(FedAvg())
    strategy.start(grid, record(initial()), num_rounds=1)
    (error,) = [message.error for message in grid.received if message.has_error()]
    assert "more than the target of 50 bytes; use a larger target" in error.reason
    assert strategy.statistics[1].replies == 1
    assert same(tensors_of(grid.contexts[1].state[f"{KEY}.residual.arrays"]), before)


@pytest.mark.parametrize("size", [0, -1, 1000.5, "1000", True], ids=repr)
def test_a_target_size_must_be_a_positive_integer(size: Any) -> None:
    with pytest.raises(nnr.EncodeError, match="target_size"):
        NNRMod(target_size=size)


def test_residuals_of_another_model_are_forgotten() -> None:
    apps = {node: client(node) for node in (1, 2)}
    grid = InProcessGrid(apps)
    NNRStrategy(FedAvg()).start(grid, record(initial()), num_rounds=1)
    other = {"z/weight": np.ones((3, 4), np.float32), "steps": np.array(1, np.int64), "bias": np.ones(3, np.float32)}
    strategy = NNRStrategy(FedAvg())
    result = strategy.start(grid, record(other), num_rounds=1)
    assert strategy.statistics[1].replies == 2
    assert [*result.arrays] == [*other]


@pytest.mark.parametrize("options", [{"sparsity": 0.95}, {"sbt": 0.95}], ids=str)
def test_sparsity(options: dict[str, float]) -> None:
    _, dense = run(NNRStrategy(FedAvg()), rounds=1)
    mods = [NNRMod(**options)]
    strategy = NNRStrategy(FedAvg(), downlink="lossless")
    _, sparse = run(strategy, {node: client(node, mods) for node in range(1, 5)}, rounds=1)

    def payload(grid: InProcessGrid) -> bytes:
        return bytes(grid.received[0].content["arrays"][KEY].data)

    zeros = np.mean(nnr.UpdateDecoder().decode(payload(sparse))["z/weight"] == 0)
    assert zeros >= 0.9 and len(payload(sparse)) < 0.7 * len(payload(dense))


@pytest.mark.parametrize(
    ("train", "reason"),
    [
        (lambda tensors, node: {"bias": tensors["bias"]}, "in only one of the model and its update"),
        (lambda tensors, node: {**tensors, "bias": tensors["bias"][1:]}, "was returned with shape"),
        (lambda tensors, node: {**tensors, "bias": tensors["bias"] * np.float32(np.nan)}, "'bias' has values that"),
    ],
)
def test_replies_that_the_mod_refuses(train: Any, reason: str) -> None:
    apps = {node: client(node, train=train if node == 2 else trained) for node in range(1, 5)}
    strategy = NNRStrategy(FedAvg())
    result, grid = run(strategy, apps, rounds=1)
    errors = [message for message in grid.received if message.has_error()]
    assert [message.metadata.src_node_id for message in errors] == [2] and reason in errors[0].error.reason
    assert strategy.statistics[1].replies == 3 and result.arrays["steps"].numpy() == 7 + round(5 * (1 + 9 + 16) / 8)


def test_options() -> None:
    with pytest.raises(nnr.EncodeError, match="preset"):
        NNRMod(preset="huge")
    with pytest.raises(nnr.EncodeError, match="sparsity"):
        NNRMod(sparsity=2)
    with pytest.raises(nnr.EncodeError, match="sbt_ternary"):
        NNRMod(sbt=0.9, sbt_ternary=2)
    with pytest.raises(nnr.EncodeError, match="profile 0"):
        NNRMod(nnr.EncoderConfig(), profile=0)
    with pytest.raises(nnr.EncodeError, match="preset"):
        NNRStrategy(FedAvg(), downlink="huge")
    with pytest.raises(TypeError):
        NNRMod(coarse=True)
    strategy = NNRStrategy(FedAvg(), stateful=True)
    assert "FedAvg" in repr(strategy)


def test_summary(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        NNRStrategy(FedAvg(), stateful=True).summary()
    assert "updates as NNR, stateful" in caplog.text and "Sampling" in caplog.text


def test_what_the_downlink_loses_is_not_lost() -> None:
    start = {"w": np.random.default_rng(0).normal(size=(30, 30)).astype(np.float32)}

    def train(tensors: Tensors, node: int) -> Tensors:
        return {"w": tensors["w"] + np.float32(1e-4)}

    apps = {node: client(node, [NNRMod(nnr.EncoderConfig(exact=True))], train) for node in (1, 2)}
    for options in ({"downlink": "small"}, {"downlink": "small", "streaming": True}):
        result, grid = run(NNRStrategy(FedAvg(), **options), apps, 10, start)
        assert not np.allclose(nnr.decode(grid.sent[0].content["arrays"][KEY].data)["w"], start["w"], atol=1e-2)
        assert near(tensors_of(result.arrays), {"w": start["w"] + np.float32(1e-3)}, 1e-5)


def test_several_records_in_a_message() -> None:
    class Both(FedAvg):  # type: ignore[misc,unused-ignore]
        def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
            variates = record({"v": np.full((20, 20), server_round, np.float32)})
            content = RecordDict({"arrays": arrays, "variates": variates, "config": config})
            return [Message(content, node, "train") for node in grid.get_node_ids()]

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            contents = [reply.content for reply in replies]
            assert len(contents) == 2
            assert all([*content.array_records] == ["arrays", "variates"] for content in contents)
            means = [np.mean([content["variates"]["v"].numpy() for content in contents])]
            return contents[0]["arrays"], MetricRecord({"variates": float(means[0])})

    app = ClientApp(mods=[NNRMod(preset="update")])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        variates = record({"v": message.content["variates"]["v"].numpy() + np.float32(1)})
        content = RecordDict({"arrays": message.content["arrays"], "variates": variates})
        content["metrics"] = MetricRecord({"num-examples": 1})
        return Message(content, reply_to=message)

    strategy = NNRStrategy(Both(fraction_evaluate=0.0))
    result, _ = run(strategy, {1: app, 2: app}, rounds=2)
    assert strategy.statistics[2].replies == 2
    assert result.train_metrics_clientapp[2]["variates"] == pytest.approx(3, abs=0.1)
    with pytest.raises(ValueError, match="one ArrayRecord"):
        run(NNRStrategy(Both(fraction_evaluate=0.0), stateful=True), {1: app, 2: app})


# ------------------------------------------------------------------------------------------------ strangers
Reply = Callable[["Attack", Message], RecordDict]


class Attack:
    """App that replies with ``change`` applied to an honest reply, and keeps its earlier replies."""

    def __init__(self, change: Reply, node: int = 3) -> None:
        self.change, self.honest, self.before = change, client(node), RecordDict()

    def __call__(self, message: Message, context: Any) -> Message:
        asked = copied(message)
        reply = self.honest(message, context)
        if message.metadata.message_type != "train":
            return reply
        self.asked, self.said = asked, reply.content
        try:
            changed = self.change(self, reply)
        finally:
            self.before = self.before or self.said
        return Message(changed, reply_to=message)


def with_payload(change: Callable[[bytes], bytes]) -> Reply:
    def reply(attack: Attack, honest: Message) -> RecordDict:
        payload = change(honest.content["arrays"][KEY].data)
        return RecordDict({**honest.content, "arrays": coded(payload)})

    return reply


def coded(payload: bytes, stype: str = "nnr", key: str = KEY) -> ArrayRecord:
    return ArrayRecord({key: Array("uint8", (len(payload),), stype, payload)})


def with_update(
    update: Mapping[str, Any],
    whole: Mapping[str, Any] | None = None,
    base: str | None = None,
    device_id: int | None = None,
) -> Reply:
    """Return a reply with a bitstream of the attacker."""

    def reply(attack: Attack, honest: Message) -> RecordDict:
        told = attack.asked.content[KEY]
        encoder = nnr.UpdateEncoder(
            parent="external",
            base_model_id=told["bases"][0] if base is None else base,
            device_id=told.get("device_id", 0) if device_id is None else device_id,
        )
        return RecordDict({**honest.content, "arrays": coded(encoder.encode(update, whole=whole))})

    return reply


def with_dimensions(attack: Attack, honest: Message) -> RecordDict:
    """Return a reply whose header declares 4 TiB."""
    units = [*nnr.units(honest.content["arrays"][KEY].data)]
    header = next(unit.header.detail for unit in units if hasattr(unit.header.detail, "tensor_dimensions"))
    header.tensor_dimensions, header.count_tensor_dimensions = [1 << 20, 1 << 20], 2
    return RecordDict({**honest.content, "arrays": coded(nnr.write_units(units))})


def with_arrays(change: Callable[[Tensors], Mapping[str, Any]]) -> Reply:
    """Return a reply with plain arrays, or malformed ones."""

    def reply(attack: Attack, honest: Message) -> RecordDict:
        made = change(initial())
        arrays = {name: x if isinstance(x, Array) else Array(np.asarray(x)) for name, x in made.items()}
        return RecordDict({**honest.content, "arrays": ArrayRecord(arrays)})

    return reply


def with_metrics(**metrics: Any) -> Reply:
    def reply(attack: Attack, honest: Message) -> RecordDict:
        return RecordDict({**honest.content, "metrics": MetricRecord(metrics)})

    return reply


def claimed(shape: str, dtype: str = "<f4") -> Array:
    """Return the header of a numpy file with nearly no data."""
    header = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return Array("float32", (40,), "numpy.ndarray", b"\x93NUMPY\x01\x00v\x00" + header.encode() + bytes(64))


BIAS = np.zeros(40, np.float32)

ATTACKS: dict[str, tuple[Reply, str]] = {
    "garbage": (with_payload(lambda payload: b"\xa5" * 500), ""),
    "nothing": (with_payload(lambda payload: b""), ""),
    "truncated": (with_payload(lambda payload: payload[:-7]), ""),
    "truncated header": (with_payload(lambda payload: payload[:5]), ""),
    "trailing bytes": (with_payload(lambda payload: payload + payload), ""),
    "another shape": (with_update({"bias": np.ones((8, 5, 1), np.float32)}), "'bias'"),
    "its size or modification time": (with_update({"bias": np.ones(41, np.float32)}), "'bias'"),
    "another name": (with_update({"bias\nnode 1 is fine": np.ones(40, np.float32)}), "not one of the 8"),
    "integers for floats": (with_update({"bias": np.ones(40, np.int32)}), "'bias'"),
    "floats for integers": (with_update({"steps": np.ones(1, np.float32)}), "'steps'"),
    "not a number": (with_update({}, {"bias": BIAS * np.nan}), "not finite"),
    "infinity": (with_update({}, {"bias": BIAS + np.inf}), "not finite"),
    "an overflow": (with_update({"half": np.full((9, 10), 1e9, np.float32)}, None), ""),
    "4 TiB": (with_dimensions, ""),
    "4 TiB as a plain array": (with_arrays(lambda model: {**model, "bias": claimed("(1099511627776,)")}), "'bias'"),
    "too little data": (with_arrays(lambda model: {**model, "bias": claimed("(40,)")}), "64 bytes"),
    "objects": (with_arrays(lambda model: {**model, "bias": claimed("(40,)", "|O")}), "'bias'"),
    "no header": (with_arrays(lambda model: {**model, "bias": Array("f4", (40,), "numpy.ndarray", b"x")}), "'bias'"),
    "another serialization": (with_arrays(lambda model: {**model, "bias": Array("f4", (40,), "torch", b"")}), "torch"),
    "plain arrays, one missing": (with_arrays(lambda model: {"bias": model["bias"]}), "in only one of"),
    "plain arrays, another shape": (with_arrays(lambda model: {**model, "bias": model["bias"][:-1]}), "expected"),
    "plain arrays, not a number": (with_arrays(lambda model: {**model, "bias": BIAS * np.nan}), "not finite"),
    "plain arrays, a counter that is none": (
        with_arrays(lambda model: {**model, "steps": np.array(np.nan)}),
        "not finite",
    ),
    "plain arrays, too large": (with_arrays(lambda model: {**model, "bias": np.full(40, 1e300)}), "not finite"),
    "an unknown model": (with_update({"bias": BIAS + 1}, base="0" * 64), "was not sent to this client"),
    "no model": (with_update({"bias": BIAS + 1}, base=""), "was not sent to this client"),
    "a whole model": (with_payload(lambda payload: nnr.encode({"bias": BIAS})), "base_model_id"),
    "another client's id": (with_update({"bias": BIAS + 1}, device_id=1), "device_id 1"),
    "no record": (lambda attack, honest: RecordDict({"metrics": honest.content["metrics"]}), "no ArrayRecord"),
    "an empty record": (
        lambda attack, honest: RecordDict({**honest.content, "arrays": ArrayRecord()}),
        "in only one of",
    ),
    "two records": (
        lambda attack, honest: RecordDict({**honest.content, "more": honest.content["arrays"]}),
        "",
    ),
    "another name of the record": (
        lambda attack, honest: RecordDict({"evil": honest.content["arrays"], "metrics": honest.content["metrics"]}),
        "differ from the other replies",
    ),
    "another stype": (
        lambda attack, honest: RecordDict(
            {**honest.content, "arrays": coded(honest.content["arrays"][KEY].data, "numpy.ndarray")}
        ),
        "serialized as",
    ),
    "arrays beside": (
        lambda attack, honest: RecordDict(
            {**honest.content, "arrays": ArrayRecord({**honest.content["arrays"], "bias": Array(BIAS)})}
        ),
        "has arrays besides",
    ),
    "no metrics": (lambda attack, honest: RecordDict({"arrays": honest.content["arrays"]}), "MetricRecord, got"),
    "no examples said": (with_metrics(loss=0.5), "must be a number from 0"),
    "not-a-number of examples": (
        with_metrics(**{"num-examples": float("nan"), "loss": 0.5}),
        "must be a number from 0",
    ),
    "infinitely many examples": (
        with_metrics(**{"num-examples": float("inf"), "loss": 0.5}),
        "must be a number from 0",
    ),
    "a negative number of examples": (with_metrics(**{"num-examples": -30, "loss": 0.5}), "must be a number from 0"),
    "a list of examples": (with_metrics(**{"num-examples": [1, 2], "loss": 0.5}), "must be a number from 0"),
    "a metric that is not-a-number": (
        with_metrics(**{"num-examples": 30, "loss": float("nan")}),
        "'loss' of the reply is not finite",
    ),
    "a metric of 1e308": (with_metrics(**{"num-examples": 30, "loss": 1e308}), "'loss' of the reply is not finite"),
    "other metrics": (with_metrics(**{"num-examples": 30}), "differ from the other replies"),
    "a list for a number": (with_metrics(**{"num-examples": 30, "loss": [0.5]}), "differ from the other replies"),
}


KINDS = pytest.mark.parametrize("options", [{}, {"streaming": True}, {"stateful": True}], ids="".join)


def outcome(app: Any, options: Mapping[str, Any], rounds: int) -> tuple[Any, Any, NNRStrategy]:
    """Return the model and the metrics of three clients and this one, which is node 3."""
    random.seed(0)
    strategy = NNRStrategy(FedAvg(), **options)
    result, _ = run(strategy, {**{node: client(node) for node in (1, 2, 4)}, 3: app}, rounds=rounds)
    return tensors_of(result.arrays), result.train_metrics_clientapp, strategy


def failing(first: int) -> Any:
    """Return an app that fails from the ``first`` round on."""
    app = client(3)

    def call(message: Message, context: Any) -> Message:
        if message.metadata.message_type == "train" and message.content["config"]["server-round"] >= first:
            raise ValueError("no reply")
        return app(message, context)

    return call


@cache
def outcome_without(first: int, rounds: int, *options: str) -> tuple[Any, Any, NNRStrategy]:
    return outcome(failing(first), dict.fromkeys(options, True), rounds)


@KINDS
@pytest.mark.parametrize("name", ATTACKS)
def test_a_stranger_changes_nothing(name: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    change, reason = ATTACKS[name]
    model, metrics, _ = outcome_without(1, 2, *options)
    caplog.clear()
    if "4 TiB" in name:
        tracemalloc.start()
    found, found_metrics, strategy = outcome(Attack(change), options, 2)
    assert tracemalloc.get_traced_memory()[1] < 30 << 20
    tracemalloc.stop()
    assert same(found, model) and found_metrics == metrics
    dropped = [each for statistics in strategy.statistics.values() for each in statistics.dropped]
    assert [each.sender for each in dropped] == [3, 3]
    assert all(reason in each.reason and each.reason.isprintable() for each in dropped), dropped
    warned = [entry.getMessage() for entry in caplog.records if "is dropped" in entry.getMessage()]
    assert warned == [f"NNR: the reply of node 3 is dropped: {each.reason}" for each in dropped]


@KINDS
def test_a_repetition_changes_nothing(options: dict[str, Any]) -> None:
    def repeated(attack: Attack, honest: Message) -> RecordDict:
        return RecordDict({**(attack.before or honest.content)})

    model, metrics, _ = outcome_without(2, 3, *options)
    found, found_metrics, strategy = outcome(Attack(repeated), options, 3)
    assert same(found, model) and found_metrics == metrics
    reasons = [[each.reason for each in statistics.dropped] for statistics in strategy.statistics.values()]
    assert [len(each) for each in reasons] == [0, 1, 1]
    assert "already replied" in reasons[1][0]


@KINDS
@pytest.mark.parametrize("node", [1, 2])
def test_a_model_counts_once_in_a_reply(node: int, options: dict[str, Any]) -> None:
    def changed(attack: Attack, honest: Message) -> RecordDict:
        return RecordDict({**honest.content, "more": honest.content["arrays"]})

    def outcome(change: Reply) -> tuple[Any, NNRStrategy]:
        random.seed(0)
        strategy = NNRStrategy(FedAvg(), **options)
        apps: dict[int, Any] = {1: client(1), 2: client(2), node: Attack(change, node)}
        return run(strategy, apps, rounds=1)[0], strategy

    found, strategy = outcome(changed)  # one of two clients: both forms are equally frequent
    assert [each.sender for each in strategy.statistics[1].dropped] == [node] and strategy.statistics[1].replies == 1
    alone, _ = outcome(ATTACKS["garbage"][0])
    assert same(tensors_of(found.arrays), tensors_of(alone.arrays))


def test_a_second_reply_to_a_message_changes_nothing() -> None:
    class Twice(InProcessGrid):
        def send_and_receive(self, messages: Any, **options: Any) -> list[Message]:
            replies = super().send_and_receive(messages, **options)
            return [*replies, *map(copied, replies)] if "arrays" in replies[0].content else replies

    once, _ = run(NNRStrategy(FedAvg()))
    random.seed(0)
    strategy = NNRStrategy(FedAvg())
    twice = strategy.start(Twice({node: client(node) for node in range(1, 5)}), record(initial()), num_rounds=3)
    assert same(tensors_of(twice.arrays), tensors_of(once.arrays))
    assert [len(statistics.dropped) for statistics in strategy.statistics.values()] == [4, 4, 4]


def test_a_reply_after_an_error_changes_nothing() -> None:
    def late(attack: Attack, honest: Message) -> RecordDict:
        if attack.asked.content["config"]["server-round"] == 1:
            raise ValueError("no reply")
        return RecordDict({**attack.before})

    model, metrics, _ = outcome_without(1, 2)
    found, found_metrics, strategy = outcome(Attack(late), {}, 2)
    assert same(found, model) and found_metrics == metrics
    assert "already replied" in strategy.statistics[2].dropped[0].reason


def test_only_strangers() -> None:
    apps = {node: Attack(ATTACKS["garbage"][0], node) for node in range(1, 5)}
    result, _ = run(NNRStrategy(FedAvg()), apps)
    assert not result.arrays
    result, _ = run(NNRStrategy(FedAvg(), streaming=True), apps)
    assert not result.arrays
    strategy = NNRStrategy(FedAvg())
    result, _ = run(strategy, {node: client(node, **{"num-examples": 0}) for node in range(1, 5)}, rounds=1)
    assert not result.arrays
    assert [each.reason for each in strategy.statistics[1].dropped] == ["no reply has a positive num-examples"] * 4


def test_evaluations_of_strangers() -> None:
    def evaluating(message: Message, context: Any) -> Message:
        reply = client(3)(message, context)
        if message.metadata.message_type == "evaluate":
            reply.content["metrics"] = MetricRecord({"num-examples": 3, "loss": [1.0, 2.0]})
        return reply

    strategy = NNRStrategy(FedAvg())
    result, _ = run(strategy, {**{node: client(node) for node in (1, 2, 4)}, 3: evaluating}, rounds=2)
    assert [*result.evaluate_metrics_clientapp] == [1, 2]
    assert [each.sender for each in strategy.statistics[2].dropped] == [3]


# ------------------------------------------------------------------------------------------------ late replies
class LateGrid(InProcessGrid):
    """Grid in which training replies of one node arrive a round late."""

    held: Message | None = None

    def send_and_receive(self, messages: Any, **options: Any) -> list[Message]:
        replies = super().send_and_receive(messages, **options)
        if not replies or "arrays" not in replies[0].content:
            return replies
        mine = next(reply for reply in replies if reply.metadata.src_node_id == 3)
        others = [reply for reply in replies if reply is not mine]
        before, self.held = self.held, mine
        return [*others, before] if before else others


@pytest.mark.parametrize("options", [{}, {"streaming": True}])
def test_a_late_reply_updates_the_model_that_it_is_of(options: dict[str, Any]) -> None:
    strategy = NNRStrategy(FedAvg(), **options)
    grid = LateGrid({node: client(node) for node in range(1, 5)})
    strategy.start(grid, record(initial()), num_rounds=3)
    assert [statistics.replies for statistics in strategy.statistics.values()] == [3, 4, 4]
    assert not any(statistics.dropped for statistics in strategy.statistics.values())


# ------------------------------------------------------------------------------------------------ streaming
@pytest.mark.parametrize("portion", [1, 1 << 24])
def test_the_mean_of_a_stream_is_the_mean(portion: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnr_codec.integrations.flower.strategy.PORTION", portion)
    found, _ = run(NNRStrategy(FedAvg(), streaming=True), rounds=1)
    random.seed(0)
    expected, _ = run(NNRStrategy(FedAvg()), rounds=1)
    a, b = tensors_of(found.arrays), tensors_of(expected.arrays)
    half = a.pop("half"), b.pop("half")
    assert near(a, b, 1e-6) and near({"half": half[0]}, {"half": half[1]}, 4e-3)  # Flower adds float16 in float16
    assert found.train_metrics_clientapp == expected.train_metrics_clientapp


def test_means_that_cannot_be_streamed() -> None:
    class Own(FedAvg):  # type: ignore[misc,unused-ignore]
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            return None, None

    for strategy in (FedMedian(), Own(), DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.1, 1.0, 2)):
        with pytest.raises(ValueError, match=f"{type(strategy).__name__} does not"):
            NNRStrategy(strategy, streaming=True)
    with pytest.raises(ValueError, match="stateful"):
        NNRStrategy(FedAvg(), streaming=True, stateful=True)
    NNRStrategy(FedProx(proximal_mu=0.1), streaming=True)


@pytest.mark.parametrize("make", [lambda: NNRMod(jobs=0), lambda: NNRStrategy(FedAvg(), jobs=0)])
def test_jobs_must_be_positive(make: Any) -> None:
    with pytest.raises(ValueError, match="jobs"):
        make()


def peak(clients: int, streaming: bool) -> int:
    """Return the peak number of bytes for aggregating equal replies, without the replies."""
    start = {f"w{k}": np.random.default_rng(k).normal(size=(200, 250)).astype(np.float32) for k in range(8)}
    grid = InProcessGrid({node: client(node) for node in range(1, clients + 1)})
    strategy = NNRStrategy(FedAvg(), streaming=streaming, downlink=None)
    messages = strategy.configure_train(1, record(start), ConfigRecord(), grid)
    key = messages[0].content[KEY]["bases"][0]
    update = {name: np.where(tensor > 1, np.float32(0.1), np.float32(0)) for name, tensor in start.items()}
    payload = nnr.UpdateEncoder(parent="external", base_model_id=key, qp=-40).encode(update)
    metrics = MetricRecord({"num-examples": 1})
    replies = [
        Message(RecordDict({"arrays": coded(payload), "metrics": metrics}), reply_to=message) for message in messages
    ]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    arrays, _ = strategy.aggregate_train(1, replies)
    most = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert strategy.statistics[1].replies == clients
    assert np.allclose(arrays["w0"].numpy(), start["w0"] + update["w0"], atol=0.05)
    return most


def test_memory_of_a_stream_does_not_grow_with_the_clients() -> None:
    model = 8 * 200 * 250 * 4
    few, many = peak(2, True), peak(20, True)
    assert many < few + 0.1 * model
    assert many < 6 * model
    assert peak(20, False) > 20 * model  # if all are in memory together


# ------------------------------------------------------------------------------------------------ stateful
def tokens(grid: InProcessGrid, node: int) -> list[str]:
    """Return the tokens that a client was asked to continue, round by round; empty: none."""
    told = [
        message.content[KEY]
        for message in grid.sent
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == node
    ]
    return ["".join(each["token"]) and "continue" for each in told]


def sizes(grid: InProcessGrid, node: int) -> list[int]:
    return [
        len(message.content["arrays"][KEY].data)
        for message in grid.received
        if message.metadata.src_node_id == node and message.has_content() and "arrays" in message.content
    ]


def alike(tensors: Tensors, node: int) -> Tensors:
    """Return an app whose training is nearly the same each time."""
    rng = np.random.default_rng(5)
    return {name: tensor + rng.normal(size=tensor.shape).astype(tensor.dtype) / 10 for name, tensor in tensors.items()}


class Schedule(InProcessGrid):
    """Function calls before each round of training."""

    def __init__(self, apps: Any, before: Mapping[int, Callable[[Schedule], None]]) -> None:
        super().__init__(apps)
        self.before = before

    def send_and_receive(self, messages: Any, **options: Any) -> list[Message]:
        messages = [*messages]
        if messages[0].metadata.message_type == "train":
            self.before.get(messages[0].content["config"]["server-round"], lambda grid: None)(self)
        return super().send_and_receive(messages, **options)


def scheduled(
    before: Mapping[int, Callable[[Schedule], None]], rounds: int = 5, **options: Any
) -> tuple[NNRStrategy, Schedule]:
    apps = {node: client(node, [NNRMod(error_feedback=False, dependent_quantization=False)], alike) for node in (1, 2)}
    grid, strategy = Schedule(apps, before), NNRStrategy(FedAvg(), stateful=True, downlink="lossless", **options)
    result = strategy.start(grid, record(floats()), num_rounds=rounds)
    assert result.arrays
    assert not any(statistics.dropped for statistics in strategy.statistics.values())
    return strategy, grid


def test_updates_continue_earlier_ones() -> None:
    strategy, grid = scheduled({})
    assert tokens(grid, 1) == ["", *["continue"] * 4]
    assert np.mean(sizes(grid, 1)[1:]) < 0.5 * sizes(grid, 1)[0]
    assert {*grid.contexts[1].state} == {f"{KEY}.state.arrays"}
    assert [statistics.replies for statistics in strategy.statistics.values()] == [2] * 5


def test_a_lost_reply_is_followed_by_one_that_stands_alone() -> None:
    strategy, grid = scheduled({3: lambda grid: grid.absent.add(1), 4: lambda grid: grid.absent.clear()})
    assert [statistics.replies for statistics in strategy.statistics.values()] == [2, 2, 1, 2, 2]
    size = sizes(grid, 1)  # without the size of round 3
    assert tokens(grid, 1) == ["", *["continue"] * 4]  # the server's information; the client has more
    assert size[1] < 0.5 * size[0] and size[2] > 0.9 * size[0] and size[3] < 0.5 * size[0]


def test_a_client_that_forgot() -> None:
    strategy, grid = scheduled({4: lambda grid: grid.contexts[1].state.clear()})
    assert strategy.statistics[4].replies == 2
    size = sizes(grid, 1)
    assert size[2] < 0.5 * size[0] and size[3] > 0.9 * size[0] and size[4] < 0.5 * size[0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: ConfigRecord({"state": data[:-1] + bytes([data[-1] ^ 1])}),
        lambda data: ConfigRecord({"state": b"NNRSTATE" + (2).to_bytes(4, "little") + data[12:]}),
        lambda data: ConfigRecord({"state": b""}),
        lambda data: ConfigRecord({"another": 1}),
        lambda data: record({"state": np.zeros(3)}),
    ],
)
def test_a_client_whose_state_is_damaged(damage: Callable[[bytes], Any], caplog: pytest.LogCaptureFixture) -> None:
    def damaged(grid: Schedule) -> None:
        state = grid.contexts[1].state
        state[f"{KEY}.state.arrays"] = damage(state[f"{KEY}.state.arrays"]["state"])

    strategy, grid = scheduled({4: damaged})
    assert [statistics.replies for statistics in strategy.statistics.values()] == [2] * 5
    size = sizes(grid, 1)
    assert size[3] > 0.9 * size[0] and size[4] < 0.5 * size[0]
    assert "is discarded" in caplog.text


def test_a_residual_that_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    place = f"{KEY}.residual.arrays"

    def damaged(grid: Schedule) -> None:
        grid.contexts[1].state[place] = ArrayRecord({"bias": Array("float32", (40,), "numpy.ndarray", b"x")})

    grid, strategy = Schedule({1: client(1), 2: client(2)}, {2: damaged}), NNRStrategy(FedAvg())
    strategy.start(grid, record(initial()), num_rounds=2)
    assert strategy.statistics[2].replies == 2 and "is discarded" in caplog.text
    assert grid.contexts[1].state[place]["bias"].numpy().shape == (40,)


@pytest.mark.parametrize(
    "told",
    [
        {"version": 2},
        {"records": ["arrays"], "bases": ["key"]},
        {"version": 1, "records": ["other"], "bases": ["key"]},
        {"version": 1, "records": [], "bases": []},
        {"version": 1, "records": ["arrays"], "bases": []},
        {"version": 1, "records": 5, "bases": 5},
    ],
)
def test_invalid_messages_of_a_server(told: dict[str, Any]) -> None:
    grid = InProcessGrid({1: client(1, train=lambda tensors, node: pytest.fail("the client worked"))})
    content = RecordDict({"arrays": coded(nnr.encode(floats())), KEY: ConfigRecord(told)})
    replies = grid.send_and_receive([Message(content, 1, "train")])
    assert replies[0].has_error() and not grid.contexts[1].state


@pytest.mark.parametrize("payload", [b"", b"\xa5" * 500, nnr.encode({"w": np.ones(500, np.float32)})[:-9]])
def test_a_server_that_sends_garbage(payload: bytes) -> None:
    grid = InProcessGrid({1: client(1)})
    told = ConfigRecord({"version": 1, "records": ["arrays"], "bases": ["key"]})
    replies = grid.send_and_receive([Message(RecordDict({"arrays": coded(payload), KEY: told}), 1, "train")])
    assert replies[0].has_error() and not grid.contexts[1].state


def test_a_server_that_forgot() -> None:
    _, grid = scheduled({}, 1)
    decoder = nnr.UpdateDecoder()
    decoder.decode(grid.received[0].content["arrays"][KEY].data)
    history = nnr.Limits(max_history_bytes=3 * decoder.state.nbytes // 2)  # of one client
    strategy, grid = scheduled({}, limits=history)
    told = [tokens(grid, node) for node in (1, 2)]
    assert [sorted(pair) for pair in zip(*told, strict=True)] == [["", ""], *[["", "continue"]] * 4]
    assert strategy.statistics[5].replies == 2


def test_a_dropped_reply_is_followed_by_one_that_stands_alone() -> None:
    def truncated(attack: Attack, honest: Message) -> RecordDict:
        if attack.asked.content["config"]["server-round"] != 2:
            return honest.content
        return RecordDict({**honest.content, "arrays": coded(honest.content["arrays"][KEY].data[:-9])})

    strategy = NNRStrategy(FedAvg(), stateful=True)
    _, grid = run(strategy, {1: client(1), 2: client(2), 3: Attack(truncated)}, rounds=4)
    assert [statistics.replies for statistics in strategy.statistics.values()] == [3, 2, 3, 3]
    replies = [
        message.content["arrays"][KEY].data
        for message in grid.received
        if message.metadata.src_node_id == 3 and "arrays" in message.content
    ]
    ids = [nnr.open(replies[k]).performance.base_model_id for k in (0, 2, 3)]
    assert [bool(text.rpartition(".")[2]) for text in ids] == [False, False, True]


def test_tensors_that_are_whole_at_times() -> None:
    def train(tensors: Tensors, node: int) -> Tensors:
        new = alike({name: tensor for name, tensor in tensors.items() if name in floats()}, node)
        steps = tensors["steps"] + np.int64(1 << 40 if tensors["steps"] % 2 else 1)
        return {**tensors, **new, "flags": ~tensors["flags"], "steps": steps}

    start = {"steps": initial()["steps"], "flags": initial()["flags"], **floats()}
    apps = {node: client(node, train=train) for node in (1, 2)}
    strategy = NNRStrategy(FedAvg(), stateful=True)
    result, grid = run(strategy, apps, 5, start)
    assert [statistics.replies for statistics in strategy.statistics.values()] == [2] * 5
    assert tokens(grid, 1) == ["", *["continue"] * 4]
    found = tensors_of(result.arrays)
    assert found["flags"].tolist() == [False, True, False] and found["steps"] == 7 + 5 * (1 << 40)


# ------------------------------------------------------------------------------------------------ flwr run
APP = Path(__file__).parents[2] / "examples" / "federated"


@pytest.fixture
def flower_home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return an environment for ``flwr``, and terminate its daemons afterwards."""
    environment = os.environ | {
        "FLWR_HOME": str(tmp_path / "flower"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(Path(nnr.__file__).parents[1]),
    }
    yield environment
    mine = f"FLWR_HOME={environment['FLWR_HOME']}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mine in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def isolated() -> list[str]:
    """Return a command prefix that disables the network, if permitted."""
    start = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if shutil.which("unshare") and shutil.which("ip") and not subprocess.run([*start, "true"], check=False).returncode:
        return start
    return []


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="daemons are found in /proc")
def test_flwr_run(tmp_path: Path, flower_home: dict[str, str]) -> None:
    for package in ("ray", "sklearn"):
        if find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed")
    results = tmp_path / "results.json"
    command = ["flwr", "run", str(APP), "--stream", "--federation-config", "num-supernodes=3"]
    options = ["--run-config", f"rounds=3 epochs=1 stateful=true results='{results}'"]
    done = subprocess.run(
        [*isolated(), *command, *options], env=flower_home, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0 and results.exists(), done.stdout[-4000:] + done.stderr[-4000:]
    rows = json.loads(results.read_text(encoding="utf-8"))
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    assert rows[3]["accuracy"] > rows[0]["accuracy"] + 0.4
    for row in rows[1:]:
        assert row["uplink_wire"] < row["uplink_raw"] / 12 and row["downlink_wire"] < row["downlink_raw"] / 2
        assert row["dropped"] == [] and row["uplink_raw"] == 3 * 4 * 648_202
