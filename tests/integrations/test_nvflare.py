"""Tests of filters for NVIDIA FLARE."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.model import Array

MODULE = "nnr_codec.integrations.nvflare"
Tensors = dict[str, Any]


@pytest.fixture
def flare() -> SimpleNamespace:
    """Return the required modules of NVFlare, and the filters."""
    pytest.importorskip("nvflare", reason="the package nvflare (extra 'nvflare') is not installed")
    found: dict[str, Any] = {}
    for name in ("dxo", "filter", "fl_constant", "fl_context", "shareable"):
        found |= vars(importlib.import_module(f"nvflare.apis.{name}"))
    return SimpleNamespace(**{**found, **vars(importlib.import_module(MODULE))})


@pytest.fixture
def site(flare: SimpleNamespace) -> Callable[..., Any]:
    """Return the context of a task on one machine, whose sticky properties other tasks on the machine share."""
    managers: dict[str, Any] = {}

    def context(name: str = "server", task: str = "train", peer: str = "") -> Any:
        manager = managers.setdefault(name, flare.FLContextManager(identity_name=name, job_id="job"))
        found = manager.new_context()
        found.set_prop(flare.FLContextKey.TASK_NAME, task, private=True, sticky=False)
        if peer:
            found.set_peer_context(flare.FLContextManager(identity_name=peer).new_context())
        return found

    return context


def on_task(flare: SimpleNamespace, filter: Any) -> Any:
    """Return a filter of messages from servers to clients."""
    filter.set_prop(flare.FilterContextKey.CHAIN_TYPE, flare.FilterChainType.TASK_DATA_CHAIN)
    return filter


def on_result(flare: SimpleNamespace, filter: Any) -> Any:
    """Return a filter of replies of clients."""
    filter.set_prop(flare.FilterContextKey.CHAIN_TYPE, flare.FilterChainType.TASK_RESULT_CHAIN)
    return filter


def message(flare: SimpleNamespace, tensors: Tensors, kind: str = "WEIGHTS") -> Any:
    """Return a message with tensors."""
    return flare.DXO(kind, tensors, {"number": 3}).to_shareable()


def encoded(flare: SimpleNamespace, tensors: Tensors, kind: str = "WEIGHTS") -> Tensors:
    """Return the output of NNREncode for tensors."""
    data: Tensors = flare.from_shareable(
        flare.NNREncode().process(message(flare, tensors, kind), flare.FLContext())
    ).data
    return data


def model() -> Tensors:
    """Return tensors of several types and shapes."""
    rng = np.random.default_rng(1)
    return {
        "w": rng.normal(0, 0.05, (60, 40)).astype("f4"),
        "half": rng.normal(0, 0.05, (30, 20)).astype("f2"),
        "double": rng.normal(0, 0.05, (5, 6)),
        "brain": rng.normal(0, 0.05, (30, 20)).astype(ml_dtypes.bfloat16),
        "bias": rng.normal(0, 0.05, 60).astype("f4"),
        "scalar": np.array(0.25, "f4"),
        "seen": np.array(123_456, "i8"),
        "counts": np.arange(20, dtype="i4").reshape(4, 5),
        "mask": rng.random((8, 9)) < 0.5,
        "untouched": np.zeros((7, 3), "f4"),
        "big": np.array([1 << 40, -5]),
        "none": np.zeros((0, 4), "f4"),
    }


def assert_alike(got: Tensors, want: Tensors, error: float) -> None:
    """Check equal names, types and shapes; floats within an error, other types exactly."""
    assert sorted(got) == sorted(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype, name
        assert got[name].shape == array.shape, name
        allowed = error if nnr.dtypes.STORED_TYPES[array.dtype.name].kind == "f" else 0
        np.testing.assert_allclose(got[name].astype("f8"), array.astype("f8"), rtol=0, atol=allowed, err_msg=name)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvflare", None)
    for name in [name for name in sys.modules if name == MODULE or name.startswith("nvflare.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(nnr.MissingDependencyError, match=r"nnr_codec\[nvflare\]"):
        importlib.import_module(MODULE)


# ------------------------------------------------------------------------------------------ there and back
@pytest.mark.nvflare
@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
def test_there_and_back(flare: SimpleNamespace, kind: str) -> None:
    sent = flare.NNREncode().process(message(flare, model(), kind), flare.FLContext())
    bitstream = flare.from_shareable(sent).data["nnr_codec"]
    assert bytes(bitstream) == bitstream
    assert len(bitstream) < 0.45 * sum(array.nbytes for array in model().values())
    got = flare.from_shareable(flare.NNRDecode().process(sent, flare.FLContext()))
    assert got.data_kind == kind
    assert got.get_meta_prop("number") == 3
    assert got.get_filter_history() == ["NNREncode", "NNRDecode"]
    assert_alike(got.data, model(), 0.02)
    assert np.abs(got.data["w"]).max() > 0.1


@pytest.mark.nvflare
@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
def test_every_bit(flare: SimpleNamespace, kind: str) -> None:
    sent = flare.NNREncode("lossless").process(message(flare, model(), kind), flare.FLContext())
    assert_alike(flare.from_shareable(flare.NNRDecode().process(sent, flare.FLContext())).data, model(), 0)


@pytest.mark.nvflare
def test_nothing_but_zeros(flare: SimpleNamespace) -> None:
    zeros = {name: np.zeros_like(array) for name, array in model().items()}
    sent = flare.NNREncode().process(message(flare, zeros, "WEIGHT_DIFF"), flare.FLContext())
    assert_alike(flare.from_shareable(flare.NNRDecode().process(sent, flare.FLContext())).data, zeros, 0)


@pytest.mark.nvflare
def test_values_that_are_no_tensors_come_back(flare: SimpleNamespace) -> None:
    tensors = {"w": np.ones((4, 4), "f4"), "penalty": "l2", "steps": 7, "rate": 0.5, "fit": True, "seed": None}
    sent = flare.NNREncode().process(message(flare, dict(tensors)), flare.FLContext())
    got = flare.from_shareable(flare.NNRDecode().process(sent, flare.FLContext())).data
    assert got.pop("w").tolist() == tensors.pop("w").tolist()
    assert got == tensors
    with pytest.raises(nnr.EncodeError, match="'w' must be an array or a tensor, got list"):
        flare.NNREncode().process(message(flare, {"w": [1.0]}), flare.FLContext())


@pytest.mark.nvflare
def test_options(flare: SimpleNamespace) -> None:
    tensors = {"w": np.random.default_rng(0).normal(0, 0.05, (80, 50)).astype("f4")}

    def size(kind: str, *args: Any, **options: Any) -> int:
        sent = flare.NNREncode(*args, **options).process(message(flare, tensors, kind), flare.FLContext())
        return len(flare.from_shareable(sent).data["nnr_codec"])

    assert size("WEIGHTS") == len(nnr.encode(tensors))
    assert size("WEIGHTS", "small") == len(nnr.encode(tensors, nnr.EncoderConfig.preset("small")))
    assert size("WEIGHTS", options={"qp": -24}) == len(nnr.encode(tensors, qp=-24))
    assert size("WEIGHT_DIFF", "fl") < size("WEIGHT_DIFF") < size("WEIGHT_DIFF", options={"quality": 60})
    assert size("WEIGHT_DIFF", "fl", options={"target_size": 300}, error_feedback=True) <= 300
    assert size("WEIGHT_DIFF", sparsity=0.9) < 0.5 * size("WEIGHT_DIFF")
    assert size("WEIGHT_DIFF", sbt=0.9, sbt_ternary=1) < 0.5 * size("WEIGHT_DIFF")
    for wrong in (
        {"preset": "no such"},
        {"sbt": 2},
        {"sbt_ternary": 0.5},
        {"options": {"effort": 10}},
        {"options": {"target_ratio": 0.1, "snr": 30}},
    ):
        with pytest.raises(nnr.EncodeError):
            flare.NNREncode(**wrong)
    for limits in ("lax", {"max_unit_bytes": 1, "no_such": 2}):
        with pytest.raises((ValueError, TypeError)):
            flare.NNRDecode(limits)


@pytest.mark.nvflare
def test_other_messages_pass(flare: SimpleNamespace) -> None:
    both = flare.NNREncode(), flare.NNRDecode()
    for filter in both:
        for sent in (message(flare, {"accuracy": 0.5}, "METRICS"), flare.Shareable(), message(flare, {})):
            before = dict(sent)
            assert filter.process(sent, flare.FLContext()) == before
        failed = flare.make_reply(flare.ReturnCode.EXECUTION_EXCEPTION)
        assert filter.process(failed, flare.FLContext()) is failed
    sent = both[0].process(message(flare, model()), flare.FLContext())
    data = flare.from_shareable(sent).data
    assert flare.from_shareable(both[0].process(sent, flare.FLContext())).data is data  # encoded already


@pytest.mark.nvflare
@pytest.mark.torch
@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
def test_tensors_of_pytorch(flare: SimpleNamespace, kind: str) -> None:
    pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30))
    tensors = module.state_dict() | {"transposed": torch.randn(30, 20).T, "mask": torch.tensor([True, False])}
    tensors |= {
        dtype: torch.randn(20, 10).to(getattr(torch, dtype)) for dtype in ("bfloat16", "float16", "float8_e5m2")
    }
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    sent = flare.NNREncode("lossless").process(message(flare, tensors, kind), flare.FLContext())
    got = flare.from_shareable(flare.NNRDecode().process(sent, flare.FLContext())).data
    assert list(got) == list(tensors) if kind == "WEIGHTS" else sorted(got) == sorted(tensors)
    for name, tensor in before.items():
        assert (got[name].dtype, got[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(got[name].double(), tensor.double()), name
        assert torch.equal(tensors[name].double(), tensor.double()), name
    with pytest.raises(nnr.EncodeError, match="numpy arrays and PyTorch tensors"):
        flare.NNREncode().process(message(flare, {**tensors, "n": np.ones(3)}), flare.FLContext())
    with pytest.raises(nnr.EncodeError, match="'c' has the unsupported type"):
        flare.NNREncode().process(message(flare, {"c": torch.ones(3, dtype=torch.complex64)}), flare.FLContext())


# ------------------------------------------------------------------------------------------ shared data, threads
@pytest.mark.nvflare
def test_shared_data_is_unchanged(flare: SimpleNamespace) -> None:
    tensors = model()
    kept, meta = dict(tensors), {"number": 3, "filter_history": ["Other"]}
    sent = flare.DXO("WEIGHTS", tensors, meta)
    got = flare.from_shareable(flare.NNREncode().process(sent.to_shareable(), flare.FLContext()))
    assert all(tensors[name] is array for name, array in kept.items())
    assert meta == {"number": 3, "filter_history": ["Other"]}
    assert got.get_filter_history() == ["Other", "NNREncode"]

    inner = {"b": flare.DXO("WEIGHT_DIFF", tensors), "c": flare.DXO("METRICS", {"loss": 1.0})}
    outer = {"a": flare.DXO("WEIGHTS", tensors), "more": flare.DXO("COLLECTION", inner)}
    members = {**inner, **outer}
    shared = flare.DXO("COLLECTION", outer).to_shareable()
    sent = flare.NNREncode().process(shared, flare.FLContext())
    assert {**inner, **outer} == members
    assert flare.from_shareable(shared).data is outer
    got = flare.from_shareable(sent).data
    assert "nnr_codec" in got["a"].data
    assert "nnr_codec" in got["more"].data["b"].data
    got = flare.from_shareable(flare.NNRDecode().process(sent, flare.FLContext())).data
    assert_alike(got["a"].data, kept, 0.02)
    assert_alike(got["more"].data["b"].data, kept, 0.02)
    assert got["more"].data["c"] is inner["c"]


@pytest.mark.nvflare
def test_a_model_for_many_is_encoded_once(
    flare: SimpleNamespace, site: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, encode = [], nnr.encode

    def counted(*args: Any, **options: Any) -> bytes:
        calls.append(args)
        return encode(*args, **options)

    monkeypatch.setattr(f"{MODULE}.encode", counted)
    filter, gate = on_task(flare, flare.NNREncode()), Barrier(16)
    shared = [model(), {"w": np.ones((70, 70), "f4")}]

    def ask(k: int) -> bytes:
        sent = message(flare, shared[k % 2])
        context = site()
        gate.wait()
        data: bytes = flare.from_shareable(filter.process(sent, context)).data["nnr_codec"]
        return data

    with ThreadPoolExecutor(16) as pool:
        got = list(pool.map(ask, range(16)))
    assert len(calls) == 2
    assert got == [encode(shared[0]), encode(shared[1])] * 8

    # A model that is changed in place counts as another one.
    shared[1]["w"][3] = -1
    assert flare.from_shareable(filter.process(message(flare, shared[1]), site())).data["nnr_codec"] == encode(
        shared[1]
    )
    assert len(calls) == 3
    for k in range(20):
        filter.process(message(flare, {"w": np.full((3, 3), k, "f4")}), site())
    assert len(filter._encodings) <= 4


@pytest.mark.nvflare
def test_threads_with_models_of_their_own(flare: SimpleNamespace, site: Callable[..., Any]) -> None:
    encode, decode = flare.NNREncode(), flare.NNRDecode()

    def there_and_back(k: int) -> None:
        kind = "WEIGHTS" if k % 3 else "WEIGHT_DIFF"
        tensors = {"w": np.random.default_rng(k % 5).normal(0, 0.1, (40, 30)).astype("f4"), "n": np.array(k % 5)}
        sent = encode.process(message(flare, tensors, kind), site(f"site-{k}"))
        assert_alike(flare.from_shareable(decode.process(sent, site(f"site-{k}"))).data, tensors, 0.03)

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(there_and_back, range(60)):
            pass


@pytest.mark.nvflare
def test_a_failure_is_reported_to_all_and_cleared(flare: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    filter = flare.NNREncode()

    def fail(*_: Any, **__: Any) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(f"{MODULE}.encode", fail)
        with pytest.raises(MemoryError):
            filter.process(message(flare, model()), flare.FLContext())
    assert "nnr_codec" in flare.from_shareable(filter.process(message(flare, model()), flare.FLContext())).data


# ------------------------------------------------------------------------------------------ rounds
@pytest.mark.nvflare
def test_types_that_aggregation_changed(flare: SimpleNamespace, site: Callable[..., Any]) -> None:
    encode, decode = on_task(flare, flare.NNREncode("lossless")), on_task(flare, flare.NNRDecode())
    first = {"n": np.array(10), "mask": np.array([True, False]), "u": np.array([250], "u1"), "w": np.ones((2, 2), "f2")}
    for tensors in (
        first,
        {"n": np.array(12.5), "mask": np.array([0.75, 0.25]), "u": np.array([299.0]), "w": np.ones((2, 2))},
    ):
        sent = encode.process(message(flare, tensors), site())
        got = flare.from_shareable(decode.process(sent, site("site-1"))).data
        assert {name: array.dtype for name, array in got.items()} == {
            name: array.dtype for name, array in first.items()
        }
    assert {name: array.tolist() for name, array in got.items()} == {
        "n": 12,
        "mask": [True, False],
        "u": [255],
        "w": [[1.0, 1.0], [1.0, 1.0]],
    }
    # Clients send the received model.
    reply = on_result(flare, flare.NNREncode("lossless"))
    for dtype in ("i8", "f8"):
        sent = reply.process(message(flare, {"n": np.array(3, dtype)}), site("site-1"))
        assert flare.from_shareable(decode.process(sent, site())).data["n"].dtype == dtype


@pytest.mark.nvflare
@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
@pytest.mark.parametrize(
    ("sent", "given", "expected"),
    [
        ("f4", "f2", "f4"),
        ("f4", "f4", "f4"),
        ("f4", "f8", "f8"),
        ("f4", "i8", "f4"),
        ("f4", "?", "f4"),
        ("i8", "?", "i8"),
        ("i8", "i1", "i8"),
        ("i8", "f4", "f4"),
    ],
)
def test_types_that_sums_do_not_fit(
    flare: SimpleNamespace, site: Callable[..., Any], sent: str, given: str, expected: str, kind: str
) -> None:
    """PyTorch adds to the first reply in place."""
    on_task(flare, flare.NNREncode()).process(message(flare, {"w": np.zeros((4, 5), sent)}), site())
    reply = message(flare, encoded(flare, {"w": np.ones((4, 5), given)}, kind), kind)
    got = flare.from_shareable(on_result(flare, flare.NNRDecode()).process(reply, site(peer="site-1"))).data["w"]
    assert got.dtype == expected and np.allclose(got, 1, atol=0.2)


@pytest.mark.nvflare
def test_error_feedback(flare: SimpleNamespace, site: Callable[..., Any]) -> None:
    rng = np.random.default_rng(3)
    trend = rng.normal(0, 0.01, (50, 40))
    updates = [(trend + rng.normal(0, 0.005, trend.shape)).astype("f4") for _ in range(10)]

    def lost(**options: Any) -> float:
        encode, decode = on_result(flare, flare.NNREncode("fl", **options)), on_result(flare, flare.NNRDecode())
        total = np.zeros((50, 40))
        for update in updates:
            sent = encode.process(message(flare, {"w": update}, "WEIGHT_DIFF"), site("site-1"))
            total += flare.from_shareable(decode.process(sent, site())).data["w"]
        return float(((total - sum(updates)) ** 2).sum())

    assert lost(error_feedback=True) < 0.5 * lost()
    assert lost(error_feedback=True, sparsity=0.8) < 0.5 * lost(sparsity=0.8)
    with pytest.raises(nnr.EncodeError, match="error_feedback applies only to data that clients send"):
        on_task(flare, flare.NNREncode(error_feedback=True)).process(message(flare, model()), site())


# ------------------------------------------------------------------------------------------ rejected input
def bad_messages() -> Iterator[tuple[str, Callable[[SimpleNamespace], Tensors], str]]:
    """Yield name, content of a reply, and the expected message."""
    good = {"w": np.full((4, 5), 0.5, "f4"), "n": np.array(3)}

    def of(flare: SimpleNamespace, kind: str = "WEIGHTS", **tensors: Any) -> Tensors:
        return encoded(flare, {**good, **tensors}, kind)

    yield "PyTorch's", lambda flare: {**of(flare), "torch": True}, "expected numpy arrays, as sent, got PyTorch tensors"
    yield "no bitstream", lambda flare: dict(good), "message has no bitstream"
    yield "garbage", lambda flare: {"nnr_codec": b"\x93NUMPY"}, "not an NNR bitstream"
    yield "truncated", lambda flare: {"nnr_codec": of(flare)["nnr_codec"][:-3]}, "12 remain"
    yield "half", lambda flare: {"nnr_codec": of(flare)["nnr_codec"][:20]}, "unit"
    yield "an array", lambda flare: {"nnr_codec": np.zeros(4, "u1")}, "not in the format of NNREncode"
    yield "tensors beside", lambda flare: {**of(flare), "w": good["w"]}, "not in the format of NNREncode"
    yield (
        "an array as value",
        lambda flare: {**of(flare), "values": {"w": good["w"]}},
        "value 'w' has the unsupported type ndarray",
    )
    yield "another name", lambda flare: of(flare, v=good["w"]), "'v' is not one of the 2"
    yield "another value", lambda flare: {**of(flare), "values": {"v": 1}}, "'v' is not one of the 2"
    yield "a value for a tensor", lambda flare: {**of(flare), "values": {"w": 1}}, "'w' is both a tensor and a value"
    yield "another shape", lambda flare: of(flare, w=np.ones((5, 4), "f4")), r"\(5, 4\); the sent tensor has \(4, 5\)"
    yield "not a number", lambda flare: of(flare, w=np.full((4, 5), np.nan, "f4")), "'w' is not finite"
    yield "infinite", lambda flare: of(flare, w=np.full((4, 5), -np.inf, "f8")), "'w' is not finite"
    yield "infinite value", lambda flare: {**of(flare), "values": {"rate": float("inf")}}, "rate"
    for shape in ([1 << 40], [1 << 20] * 2, [1 << 40, 0], [-1], ["4"], [True], "45", None):
        yield f"types {shape}", lambda flare, shape=shape: {**of(flare), "types": {"w": ["float32", shape]}}, "'w'"
    yield "types of types", lambda flare: {**of(flare), "types": {"w": ["O", [4, 5]]}}, "not a type and a shape"
    yield "types as text", lambda flare: {**of(flare), "types": {"w": "float32"}}, "not a type and a shape"
    yield "types beyond", lambda flare: {**of(flare), "types": {"v": ["float32", [2]]}}, "'v' is not one of the 2"


BAD = list(bad_messages())


@pytest.mark.nvflare
@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
@pytest.mark.parametrize("number", range(len(BAD)), ids=[name for name, _, _ in BAD])
def test_a_bad_reply_is_refused_and_logged(
    flare: SimpleNamespace, site: Callable[..., Any], caplog: pytest.LogCaptureFixture, number: int, kind: str
) -> None:
    name, content, said = BAD[number]
    on_task(flare, flare.NNREncode()).process(message(flare, {"w": np.zeros((4, 5), "f4"), "n": np.array(1)}), site())
    decode = on_result(flare, flare.NNRDecode())
    with pytest.raises(nnr.NnrError, match=said):
        decode.process(message(flare, content(flare), kind), site(peer="site-666"))
    lines = [record.getMessage() for record in caplog.records if "rejected" in record.getMessage()]
    assert len(lines) == 1
    assert f"{kind} of site-666 rejected: " in lines[0]
    # Other tasks have other models.
    if name == "another name":
        decode.process(message(flare, content(flare), kind), site(task="other"))


@pytest.mark.nvflare
@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
def test_types_and_shapes_that_lie(flare: SimpleNamespace, site: Callable[..., Any], kind: str) -> None:
    """The sent model is unknown."""
    data = encoded(flare, {"w": np.full((4, 5), 0.5, "f4")}, kind)
    for types, said in (
        ({"w": ["float32", [3, 5]]}, r"'w' of shape \(4, 5\) cannot be reshaped to \(3, 5\)"),
        ({"v": ["float32", [1 << 40]]}, "max_tensor_elements"),
        ({f"v{k}": ["float32", [1 << 30]] for k in range(9)}, "max_total_bytes"),
    ):
        with pytest.raises(nnr.NnrError, match=said):
            flare.NNRDecode().process(message(flare, {**data, "types": types}, kind), site())


@pytest.mark.nvflare
def test_other_data_in_the_place_of_a_model(
    flare: SimpleNamespace, site: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    on_task(flare, flare.NNREncode()).process(message(flare, {"w": np.zeros((4, 5), "f4")}), site())
    decode = on_result(flare, flare.NNRDecode())
    for kind in ("ANALYTIC", "FL_MODEL", "no such"):
        reply = message(flare, {"w": np.full((4, 5), np.nan, "f4")}, kind)
        with pytest.raises(nnr.FormatError, match="the reply to a model must be a model"):
            decode.process(reply, site(peer="site-1"))
        assert flare.from_shareable(decode.process(reply, site(task="statistics"))).data is reply["DXO"]["data"]
    decode.process(message(flare, {"accuracy": 0.5}, "METRICS"), site())
    assert "data of an unknown kind of site-1 rejected" in caplog.text


@pytest.mark.nvflare
def test_a_hostile_difference_is_refused(flare: SimpleNamespace, site: Callable[..., Any]) -> None:
    on_task(flare, flare.NNREncode()).process(message(flare, {"w": np.zeros((40, 50), "f4")}), site())
    decode = on_result(flare, flare.NNRDecode(limits="strict"))
    update = np.random.default_rng(0).normal(0, 0.01, (40, 50)).astype("f4")
    first = nnr.UpdateEncoder()
    first.encode({"w": update})
    of_another = nnr.UpdateEncoder().encode({"w": update[:30]})
    for data in (first.encode({"w": update * 2}), of_another):  # one continues after a missing message
        with pytest.raises((nnr.MissingReferenceError, nnr.LimitError)):
            decode.process(message(flare, {"nnr_codec": data}, "WEIGHT_DIFF"), site(peer="site-1"))
    with pytest.raises(nnr.EncodeError, match="tensor 'w' contains NaN or infinity"):
        flare.NNREncode().process(message(flare, {"w": update * np.inf}, "WEIGHT_DIFF"), flare.FLContext())


@pytest.mark.nvflare
def test_what_one_may_allow(flare: SimpleNamespace, site: Callable[..., Any]) -> None:
    on_task(flare, flare.NNREncode()).process(message(flare, {"w": np.zeros((4, 5), "f4")}), site())
    other = {"mask": np.full((3, 3), -np.inf, "f4")}
    with pytest.raises(nnr.LimitError):
        on_result(flare, flare.NNRDecode(finite=False)).process(message(flare, encoded(flare, other)), site())
    with pytest.raises(nnr.FormatError):
        on_result(flare, flare.NNRDecode(like_sent=False)).process(message(flare, encoded(flare, other)), site())
    lax = on_result(flare, flare.NNRDecode(like_sent=False, finite=False))
    assert_alike(flare.from_shareable(lax.process(message(flare, encoded(flare, other)), site())).data, other, 0)
    with pytest.raises(nnr.LimitError, match="max_tensor_elements"):
        flare.NNRDecode({"max_tensor_elements": 8}).process(message(flare, encoded(flare, other)), site())


# ------------------------------------------------------------------------------------------ jobs
@pytest.mark.nvflare
def test_options_reach_the_sites(flare: SimpleNamespace, tmp_path: Path) -> None:
    recipes = pytest.importorskip("nvflare.app_common.np.recipes.fedavg")
    (tmp_path / "client.py").write_text("")
    recipe = recipes.NumpyFedAvgRecipe(
        name="job", model=[[0.0]], min_clients=1, num_rounds=1, train_script=str(tmp_path / "client.py")
    )
    options = {"preset": "fl", "options": {"effort": 3}, "error_feedback": True, "sparsity": 0.5, "jobs": 2, "sbt": 0.9}
    limits = {"limits": {"max_units": 100}, "finite": False, "like_sent": False, "jobs": 2}
    recipe.add_client_output_filter(flare.NNREncode(**options), tasks=["train"])
    recipe.add_server_input_filter(flare.NNRDecode(**limits), tasks=["train"])
    recipe.export(str(tmp_path / "jobs"))
    found: dict[str, Any] = {}
    for path in (tmp_path / "jobs").rglob("config_fed_*.json"):
        for chain in json.loads(path.read_text()).get("task_result_filters", ()):
            found |= {filter["path"]: filter["args"] for filter in chain["filters"]}
    assert found == {f"{MODULE}.NNREncode": options, f"{MODULE}.NNRDecode": limits}
    assert {path.name for path in (tmp_path / "jobs").rglob("*.py")} == {"client.py"}  # nnr_codec is installed there
    flare.NNREncode(**found[f"{MODULE}.NNREncode"])


@pytest.mark.nvflare
def test_the_line_that_sites_add_to_their_resources(flare: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip("nvflare.app_common.widgets.component_path_authorizer")
    exceptions = importlib.import_module("nvflare.apis.fl_exception")
    text = (Path(__file__).parents[2] / "docs" / "guides" / "nvflare.md").read_text(encoding="utf-8")
    added = "nnr_codec.integrations.nvflare."
    assert f'"{added}"' in text
    standard = list(module.DEFAULT_CLASS_ALLOW_LIST)
    for allowed in (standard, [*standard, added]):
        authorizer = module.ComponentPathAuthorizer()
        policy = (tuple(allowed), module.ClassListEnforcementMode.ENFORCE, "test")
        monkeypatch.setattr(authorizer, "_get_policy", lambda policy=policy, **_: policy)
        for name in ("NNREncode", "NNRDecode"):
            config = {"path": f"{flare.NNREncode.__module__}.{name}"}
            if added in allowed:
                authorizer.authorize_component_config(config)
            else:
                with pytest.raises(exceptions.UnsafeComponentError, match="not in allow_list"):
                    authorizer.authorize_component_config(config)


# One client after another, because simulated clients that run at the same time may be given the same port.
CLIENT = """
import nvflare.client as flare
import numpy as np

flare.init()
while flare.is_running():
    model = flare.receive()
    site = int(flare.get_site_name().rpartition("-")[2])
    (name, value), = model.params.items()
    step = np.arange(value.size, dtype="f4").reshape(value.shape) % 7 - 3
    flare.send(flare.FLModel(params={name: value + site * step / 100}))
"""
RECIPE = """
import sys

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.client.config import TransferType
from nvflare.recipe import SimEnv

from nnr_codec.integrations.nvflare import NNRDecode, NNREncode

if __name__ == "__main__":
    recipe = NumpyFedAvgRecipe(
        name="nnr", model=np.load("model.npy"), min_clients=2, num_rounds=2, train_script="client.py",
        params_transfer_type=TransferType.DIFF,
    )
    recipe.add_server_output_filter(NNREncode(), tasks=["train"])
    recipe.add_client_input_filter(NNRDecode(), tasks=["train"])
    recipe.add_client_output_filter(NNREncode(options={"quality": 40}, error_feedback=True), tasks=["train"])
    recipe.add_server_input_filter(NNRDecode("strict"), tasks=["train"])
    recipe.execute(SimEnv(num_clients=2, num_threads=1, workspace_root=sys.argv[1]))
"""
HOSTILE = """
from nvflare.apis.dxo import from_shareable
from nvflare.apis.filter import Filter


class Hostile(Filter):
    def process(self, shareable, fl_ctx):
        if fl_ctx.get_identity_name() != "site-3":
            return shareable
        dxo = from_shareable(shareable)
        dxo.data = {"nnr_codec": dxo.data["nnr_codec"][:-1]}
        return dxo.update_shareable(shareable)
"""
JOB = """
import sys

import numpy as np
from hostile import Hostile
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.client.config import TransferType
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.job_config.defs import FilterType
from nvflare.job_config.script_runner import ScriptRunner

from nnr_codec.integrations.nvflare import NNRDecode, NNREncode

if __name__ == "__main__":
    job = FedJob(name="nnr", min_clients=3)
    job.to_server(NPModelPersistor(model=np.load("model.npy").tolist()), id="persistor")
    job.to_server(FedAvg(num_clients=3, num_rounds=2, ignore_result_error=True))
    job.to_server(NNREncode(), filter_type=FilterType.TASK_DATA, tasks=["train"])
    job.to_server(NNRDecode("strict"), filter_type=FilterType.TASK_RESULT, tasks=["train"])
    script = ScriptRunner("client.py", framework=FrameworkType.NUMPY, params_transfer_type=TransferType.DIFF)
    job.to_clients(script, tasks=["train"])
    job.to_clients(NNRDecode(), filter_type=FilterType.TASK_DATA, tasks=["train"])
    job.to_clients(NNREncode(options={"quality": 40}), filter_type=FilterType.TASK_RESULT, tasks=["train"])
    job.to_clients(Hostile(), filter_type=FilterType.TASK_RESULT, tasks=["train"])
    job.simulator_run(sys.argv[1], n_clients=3, threads=1)
"""


def run(folder: Path, *command: str) -> tuple[str, int]:
    """Return the output of a script of NVFlare, and its exit code; child processes are terminated."""
    psutil = importlib.import_module("psutil")
    child = psutil.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        return child.communicate(timeout=240)[0], child.returncode
    finally:
        if child.is_running():
            for process in (*child.children(recursive=True), child):
                process.kill()
            child.communicate()


@pytest.mark.slow
@pytest.mark.nvflare
@pytest.mark.usefixtures("flare")
@pytest.mark.parametrize(("job", "clients"), [(RECIPE, 2), (JOB, 3)], ids=["recipe", "job with a hostile client"])
def test_two_rounds(tmp_path: Path, job: str, clients: int) -> None:
    for name, text in (("client", CLIENT), ("hostile", HOSTILE), ("job", job)):
        (tmp_path / f"{name}.py").write_text(text)
    before: Array = np.random.default_rng(0).normal(0, 0.1, (64, 64)).astype("f4")
    np.save(tmp_path / "model.npy", before)
    log, code = run(tmp_path, "job.py", str(tmp_path / "workspace"))
    assert code == 0, log
    (path,) = (tmp_path / "workspace").rglob("server.npy")
    step = np.arange(before.size).reshape(before.shape) % 7 - 3
    np.testing.assert_allclose(np.load(path), before + 2 * 1.5 * step / 100, atol=0.003)  # of sites 1 and 2
    assert log.count("WEIGHTS: 1 tensors of 16,384 bytes in ") == 2 * clients
    assert log.count("WEIGHT_DIFF: 1 tensors of 16,384 bytes in ") == 2 * clients
    assert log.count("WEIGHT_DIFF of site-3 rejected: ") == log.count(" rejected: ") == 2 * (clients == 3)
