"""Loading of bitstreams into PyTorch: nnr_codec.torch, nnr_codec.safetensors.torch, distributed checkpoints."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.decoder.index import NnrFile
from nnr_codec.safetensors import safe_open
from nnr_codec.safetensors import torch as st
from nnr_codec.torch import load_into, load_state_dict

torch: Any = pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.medium]
nn = torch.nn


def network(seed: int, tied: bool = False) -> Any:
    """Return a network of two linear layers, whose weights may be tied, and a batch normalization."""
    torch.manual_seed(seed)
    found = nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20), nn.Linear(20, 20))
    if tied:
        found[2].weight = found[0].weight
    return found


def equal(first: Any, second: Any) -> bool:
    """Return whether the tensors of two modules or dicts are equal."""
    one, other = (each if isinstance(each, dict) else dict(each.state_dict()) for each in (first, second))
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_tensors_of_all_types_round_trip(tmp_path: Path) -> None:
    types = ("float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2fnuz", "bool", "uint8", "int16", "uint64")
    tensors = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in types}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3)}
    st.save_file(tensors, tmp_path / "a", {"epoch": "3"})
    for found in (
        st.load_file(tmp_path / "a"),
        st.load((tmp_path / "a").read_bytes()),
        load_state_dict(tmp_path / "a"),
    ):
        assert {k: (v.dtype, v.shape) for k, v in found.items()} == {k: (v.dtype, v.shape) for k, v in tensors.items()}
        assert all(torch.equal(found[k].double(), tensors[k].double()) for k in tensors)
        found["float64"][0, 0] = 7  # writable
    with safe_open(tmp_path / "a", "pt", device=torch.device("cpu")) as file:
        assert file.metadata() == {"epoch": "3"}
        assert torch.equal(file.get_slice("int16")[:, 1:], tensors["int16"][:, 1:])


@pytest.mark.parametrize(
    ("tensors", "kind", "message"),
    [
        ([], ValueError, "Expected a dict of [str, torch.Tensor] but received <class 'list'>"),
        ({"a": 3}, ValueError, "Key `a` is invalid, expected torch.Tensor but received <class 'int'>"),
        ({"a": torch.eye(2).to_sparse()}, ValueError, "You are trying to save a sparse tensors: `['a']`"),
        ({"a": torch.zeros(2, 3).T}, ValueError, "tensor 'a' is not contiguous; call contiguous(), or use"),
        (
            {"a": torch.zeros(2, dtype=torch.complex64)},
            ValueError,
            "tensor 'a' has dtype torch.complex64, which is not",
        ),
        ({"a": torch.zeros(2, device="meta")}, RuntimeError, "Cannot copy out of meta tensor"),
        ({"a": (w := torch.zeros(4)), "b": w[1:]}, RuntimeError, "tensors share memory: 'a', 'b'; use save_model"),
    ],
)
def test_tensors_that_the_library_rejects_are_rejected(tmp_path: Path, tensors: Any, kind: Any, message: str) -> None:
    with pytest.raises(kind) as found:
        st.save_file(tensors, tmp_path / "a")
    assert str(found.value).startswith(message)
    assert not list(tmp_path.iterdir())


def test_a_model_with_ties_round_trips(tmp_path: Path) -> None:
    tied, other = network(1, tied=True), network(2, tied=True)
    st.save_model(tied, tmp_path / "a", {"format": "pt"})
    with safe_open(tmp_path / "a", "pt") as file:
        assert file.metadata() == {"format": "pt", "2.weight": "0.weight"}
        assert "2.weight" not in file.keys()  # noqa: SIM118  # it is no mapping
    assert st.load_model(other, tmp_path / "a") == ([], [])
    assert equal(other, tied)
    assert other[0].weight is other[2].weight
    # Another module needs both weights, and the tied module cannot have two.
    free = network(3)
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "2.weight"$'):
        st.load_model(free, tmp_path / "a")
    assert equal(free, network(3))
    assert st.load_model(free, tmp_path / "a", strict=False) == (["2.weight"], [])
    st.save_model(free, tmp_path / "b", quality=40)
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "2.weight"$'):
        st.load_model(other, tmp_path / "b")
    # nnr.encode stores ties, so both names are in the bitstream.
    assert load_into(network(4, tied=True), nnr.encode(tied)) == ([], [])


def test_a_module_that_cannot_be_saved_leaves_no_file(tmp_path: Path) -> None:
    def module(**buffers: Any) -> Any:
        found = nn.Module()
        for name, buffer in buffers.items():
            found.register_buffer(name, buffer)
        return found

    class WithExtra(nn.Module):  # type: ignore[misc]
        def get_extra_state(self) -> str:
            return "text"

    memory = torch.zeros(9)
    for broken, kind, message in (
        (module(a=memory[:6], b=memory[3:]), RuntimeError, "'a', 'b' share memory, but none of them covers all of it"),
        (module(a=torch.zeros(2, 3).T), ValueError, "tensor 'a' is not contiguous; "),
        (WithExtra(), ValueError, "Key `_extra_state` is invalid, expected torch.Tensor but received <class 'str'>"),
    ):
        with pytest.raises(kind) as found:
            st.save_model(broken, tmp_path / "a", force_contiguous=False)
        assert str(found.value).startswith(message)
    assert not list(tmp_path.iterdir())


def test_a_mismatch_leaves_the_module_unchanged(tmp_path: Path) -> None:
    data, module = nnr.encode(network(1), exact=True), network(2)
    extra = {"x": torch.zeros(2), **network(1).state_dict()}
    wide = network(1).state_dict() | {"2.bias": torch.zeros(21)}
    whole = network(1).state_dict() | {"2.bias": torch.zeros(20, dtype=torch.int32)}
    for state, message in (
        (extra, "the tensors do not match the module; unknown: 'x'"),
        ({"0.weight": extra["0.weight"]}, "the tensors do not match the module; missing: "),
        (wide, r"tensor '2.bias' has shape \(21,\); the module has \(20,\)"),
        (whole, "tensor '2.bias' has dtype int32; the module has torch.float32"),
    ):
        with pytest.raises(nnr.FormatError, match=f"^{message}"):
            load_into(module, nnr.encode(state, exact=True))
    for source in (data[:-5], b"", tmp_path / "absent"):
        with pytest.raises((nnr.NnrError, OSError)):
            load_into(module, source)
        with pytest.raises((nnr.NnrError, OSError)):
            load_state_dict(source)
    with torch.device("meta"):
        empty = network(3)
    with pytest.raises(nnr.FormatError, match=r"is on device meta and has no items$"):
        load_into(empty, data)
    assert equal(module, network(2))
    assert load_into(module, nnr.encode(extra, exact=True), strict=False) == ([], ["x"])
    assert equal(module, network(1))


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_prefix_of_wrapped_modules_is_added_or_removed(wrapped: bool) -> None:
    inner, outer = network(1), nn.DataParallel(network(1), device_ids=[])
    assert next(iter(outer.state_dict())) == "module.0.weight"
    source, target = (outer, network(2)) if wrapped else (inner, nn.DataParallel(network(2), device_ids=[]))
    assert load_into(target, nnr.encode(dict(source.state_dict()), exact=True)) == ([], [])
    assert equal(target if wrapped else target.module, inner)


def test_a_lazy_state_decodes_on_access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nnr.encode_file(network(1, tied=True), tmp_path / "a", exact=True)
    decoded: list[str] = []
    decode = NnrFile.__getitem__
    monkeypatch.setattr(NnrFile, "__getitem__", lambda self, name: decoded.append(name) or decode(self, name))
    with load_state_dict(tmp_path / "a", lazy=True) as state:
        assert list(state) == list(network(1).state_dict())
        assert len(state) == len(network(1).state_dict())
        assert torch.equal(state["2.bias"], network(1, tied=True)[2].bias)
    assert decoded == ["2.bias"]
    with pytest.raises(ValueError, match="closed"):
        state["2.bias"]
    state = load_state_dict(tmp_path / "a")
    assert state["0.weight"] is state["2.weight"]
    with pytest.raises(RuntimeError, match="device"):
        load_state_dict(tmp_path / "a", device="nowhere")


def test_loading_into_a_module_keeps_one_tensor_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnr_codec.parallel.pool.WINDOW", 1 << 20)  # bytes of tensors that are decoded side by side
    tensors = {str(k): np.random.default_rng(k).normal(0, 0.1, (500, 500)).astype("f4") for k in range(8)}
    data, module = nnr.encode(tensors, quality=30), nn.Module()
    for name in tensors:
        module.register_buffer(name, torch.zeros(500, 500))
    load_into(module, data)  # imports
    tracemalloc.start()  # of numpy; PyTorch allocates nothing, because tensors share the memory of arrays
    load_into(module, data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * 1_000_000  # bytes of one tensor


def test_a_distributed_checkpoint_round_trips(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    from nnr_codec.integrations.distributed_checkpoint import NnrStorageReader, NnrStorageWriter

    def state(seed: int) -> Any:
        return {"model": network(seed).state_dict(), "step": seed, "ids": torch.arange(4) + seed}

    def run(function: Any, *arguments: Any, **options: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a single process
            function(*arguments, **options, no_dist=True)

    run(checkpoint.save, state(1), storage_writer=NnrStorageWriter(tmp_path / "a"))
    found = state(2)
    run(checkpoint.load, found, storage_reader=NnrStorageReader(tmp_path / "a"))
    assert equal(found["model"], network(1))
    assert found["step"] == 1
    assert torch.equal(found["ids"], torch.arange(4) + 1)
    run(checkpoint.save, state(1), storage_writer=NnrStorageWriter(tmp_path / "b", quality=20))
    run(checkpoint.load, found, storage_reader=NnrStorageReader(tmp_path / "b"))
    assert not equal(found["model"], network(1))
    assert torch.equal(found["ids"], torch.arange(4) + 1)
    for options in ({"qality": 3}, {"quality": 400}):
        with pytest.raises((TypeError, nnr.EncodeError)):
            NnrStorageWriter(tmp_path / "c", **options)
    (tmp_path / "b" / "__0_0.nnr").write_bytes(b"\0")
    with pytest.raises(checkpoint.api.CheckpointException, match="TruncatedError"):
        run(checkpoint.load, found, storage_reader=NnrStorageReader(tmp_path / "b"))


#: Arguments: rank and folder.
RANK = """
import sys, torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor
from nnr_codec.integrations.distributed_checkpoint import NnrStorageReader, NnrStorageWriter
from nnr_codec.torch import load_into, load_state_dict
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
torch.manual_seed(rank)
module = nn.parallel.DistributedDataParallel(nn.Linear(20, 20))
load_into(module, f"{folder}/model")
for name, tensor in load_state_dict(f"{folder}/model").items():
    assert torch.equal(module.module.state_dict()[name], tensor)
module(torch.randn(4, 20)).sum().backward()  # averages the gradients
mesh, whole = DeviceMesh("cpu", [0, 1]), torch.arange(60.0).reshape(10, 6)
rows, columns = distribute_tensor(whole, mesh, [Shard(0)]), distribute_tensor(0 * whole, mesh, [Shard(1)])
checkpoint.save({"w": rows}, storage_writer=NnrStorageWriter(f"{folder}/checkpoint"))
checkpoint.load({"w": columns}, storage_reader=NnrStorageReader(f"{folder}/checkpoint"))
assert torch.equal(columns.full_tensor(), whole)
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_each_process_of_a_group_reads_for_itself(tmp_path: Path) -> None:
    nnr.encode_file(nn.Linear(20, 20), tmp_path / "model", quality=40)
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(tmp_path)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=300)
        assert rank.returncode == 0, errors
