"""PyTorch files: torch.save writes files that nnr_codec reads, and torch.load reads the written files."""

from __future__ import annotations

import io
import pickle
import struct
import sys
import warnings
from collections import Counter, OrderedDict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.formats import FormatWarning, pytorch
from nnr_codec.formats.lazy import LazyTensors
from nnr_codec.formats.pytorch import description, saving
from nnr_codec.limits import Limits
from nnr_codec.model import Model, Topology

from ..shared import examples
from .support import Pipe, nnef_model
from .torch_support import (
    DESCRIPTION,
    archive_of,
    floats,
    loaded,
    mapping,
    pickle_of,
    rebuilt,
    refused,
    same,
    saved,
    storage,
    tensor,
    text,
    written,
)
from .torch_support import pytorch as torch_or_skip

pytestmark = pytest.mark.torch

BOTH = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


@pytest.fixture(scope="module", name="torch")
def fixture_torch() -> Any:
    return torch_or_skip()


def checkpoint(torch: Any) -> dict[str, Any]:
    """Return most kinds of content of files."""
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    network.append(torch.nn.Linear(16, 5))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    network(torch.randn(2, 1, 4, 4)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "big": -(2**80),
        "rate": 0.1,
        "texts": ["é\0", "\ud800", "", None, True],
        "floats": (float("nan"), float("inf"), -0.0, 5e-324),
        "struct": struct.unpack("<d", b"\1\0\0\0\0\0\xf8\xff")[0],  # another not-a-number
        "complex": complex(float("nan"), -0.0),
        "shape": torch.Size([2, 3]),
        "types": [torch.bfloat16, torch.device("cuda:1")],
        "set": {1, "1", (2, None)},
        "counter": Counter("abca"),
        "model": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "parameters": list(network.parameters()),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "leaf": torch.ones(2, requires_grad=True),
        (1, "x"): {2: torch.zeros(())},
        2.5: [],
    }


# ------------------------------------------------------------------------------------------------ reading and writing
@pytest.mark.medium
@BOTH
def test_all_of_a_checkpoint_comes_back(torch: Any, legacy: bool) -> None:
    content = checkpoint(torch)
    model = nnr.load(saved(torch, content, legacy=legacy))
    assert model.format == "pytorch"
    assert "model.0.weight" in model.tensors
    restored = loaded(torch, written(model))
    assert same(torch, content, restored)
    assert restored["model"]._metadata[""] == {"version": 1}
    assert same(torch, content, loaded(torch, written(nnr.decode(nnr.encode(model, exact=True)))))


CONTENTS: dict[str, Any] = {
    "integers": lambda _: [0, 255, 256, 65535, 65536, -1, -(2**31), 2**31, 2**63, -(2**80), 2**2039 - 1, True, False],
    "floats": lambda _: [0.0, -0.0, 1.5, float("nan"), float("-inf"), 5e-324, complex(float("nan"), -0.0), 1j],
    "texts": lambda _: ["", "é", "\ud800", "a\0b", "𝄞", "x" * 300],
    "tuples": lambda _: [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((((),),),)],
    "sets": lambda torch: [set(), {1}, {1, "1", (2, None), (3,)}, {torch.float32, 2.5}],
    "keys": lambda torch: {1: 1, 2.5: 2, None: 3, (1, "x", (None, 2.0)): 4, "": 5, torch.int8: 6, -(2**70): 8, "1": 9},
    "ordered": lambda _: [OrderedDict([("b", 1), (2, OrderedDict())]), Counter("abca"), Counter()],
    "sizes": lambda torch: [torch.Size([]), torch.Size([2, 3])],
    "devices": lambda torch: [torch.device(name) for name in ("cpu", "cuda:1", "cuda", "meta", "mps:0")],
    "dtypes": lambda torch: [getattr(torch, name) for name in (*TYPES, "complex64", "complex128", "float8_e8m0fnu")],
    "many": lambda _: [{f"k{k}": k for k in range(3000)}, list(range(3000))],
    "one of each": lambda torch: [[], {}, {"a": 1}, ["a"], torch.ones(2)],
    "shared": lambda _: [{"x": item, "y": [item, item], "z": (item,)} for item in ([1, (2, 3), {"k": "v"}],)],
    "module": lambda torch: torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2)).state_dict(),
    "parameters": lambda torch: [
        torch.nn.Parameter(torch.ones(2)),
        torch.nn.Parameter(torch.ones(2), requires_grad=False),
        torch.nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False),
        torch.ones(2, requires_grad=True),
    ],
    "types": lambda torch: [torch.randint(0, 2, (3, 4), dtype=torch.uint8).to(getattr(torch, name)) for name in TYPES],
    "strides": lambda torch: [
        *views(torch).values(),
        torch.as_strided(torch.arange(10.0), (1, 3, 1), (7, 2, 9)),
        torch.as_strided(torch.arange(10.0), (3, 3), (1, 1), 2),
    ],
    "empty": lambda torch: [torch.zeros(0), torch.zeros(3, 0, 2), torch.zeros(0, dtype=torch.int64)],
    "ties": lambda torch: [{"a": w, "b": w, "c": {"d": w.view(-1)}, "e": w.clone()} for w in (torch.randn(2, 3),)],
}


@BOTH
@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.filterwarnings("ignore:tensors that share only part")
def test_a_file_holds_what_pytorch_reads_in_it(torch: Any, name: str, legacy: bool) -> None:
    """In the old format, types that PyTorch writes but does not read are compared with the source."""
    content = CONTENTS[name](torch)
    data = saved(torch, content, legacy=legacy)
    if not (legacy and name == "types"):
        content = loaded(torch, data)
    assert same(torch, content, loaded(torch, written(nnr.load(data))))


@BOTH
def test_a_flat_dict_needs_no_description(torch: Any, legacy: bool) -> None:
    content = {"b.weight": torch.randn(3, 4), "a": torch.tensor(7), "ü": torch.zeros(0, 2)}
    model = nnr.load(saved(torch, content, legacy=legacy))
    assert model.topology is None
    assert model.metadata == {}
    assert list(model) == ["b.weight", "a", "ü"]
    assert same(torch, content, loaded(torch, written(model)))


@pytest.mark.parametrize("content", ["OrderedDict", "parameter", "gradient", "text", "nested", "key", "empty key"])
def test_everything_else_has_one(torch: Any, content: str) -> None:
    w = torch.ones(2)
    contents: dict[str, Any] = {
        "OrderedDict": OrderedDict(w=w),
        "parameter": {"w": torch.nn.Parameter(w)},
        "gradient": {"w": torch.ones(2, requires_grad=True)},
        "text": {"w": w, "t": "t"},
        "nested": {"w": {"v": w}},
        "key": {1: w},
        "empty key": {"": w},
    }
    model = nnr.load(saved(torch, contents[content]))
    assert model.topology
    assert same(torch, contents[content], loaded(torch, written(model)))


INTEGERS = ["bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))]
FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]
TYPES = [*INTEGERS, *FLOAT8, "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("name", TYPES)
def test_types(torch: Any, name: str, tmp_path: Path) -> None:
    for shape in ((), (5,), (3, 2), (0, 4)):
        assert_type_and_items_are_kept(torch, name, shape, tmp_path)


def assert_type_and_items_are_kept(torch: Any, name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    size = int(np.prod(shape, dtype=int))
    bits = np.random.default_rng(1).integers(0, 2 if name == "bool" else 256, size * 8, np.uint8)
    dtype = getattr(torch, name)
    items = torch.zeros(shape, dtype=dtype)
    if size:
        items = torch.from_numpy(bits[: size * dtype.itemsize].copy()).view(dtype).reshape(shape)
    (tmp_path / "x.pt").write_bytes(saved(torch, {"w": items}))
    model = nnr.load(tmp_path / "x.pt")
    assert (model["w"].dtype.name, model["w"].shape) == (name, shape)
    assert model["w"].tobytes() == bits[: size * dtype.itemsize].tobytes()
    assert same(torch, {"w": items}, loaded(torch, written(model)))


def views(torch: Any) -> dict[str, Any]:
    w = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "transposed": w.permute(2, 0, 1),
        "part": w[1:, ::2, 1:3],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "one": w[0, 0, 3],
        "last": torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "empty": w[:, 3:].permute(1, 2, 0),
    }


@BOTH
@pytest.mark.filterwarnings("ignore:tensors that share only part")
def test_views(torch: Any, legacy: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(saved(torch, views(torch), legacy=legacy))
    model = nnr.load(path)
    for name, view in views(torch).items():
        assert np.array_equal(model[name], view.numpy()), name
        assert model[name].flags.c_contiguous


@BOTH
def test_tied_tensors_stay_tied(torch: Any, legacy: bool) -> None:
    w = torch.randn(8, 4)
    content = {"embed": w, "head": w, "x": {"again": w}, "copy": w.clone()}
    model = nnr.load(saved(torch, content, legacy=legacy))
    assert model.aliases == {"head": "embed", "x.again": "embed"}
    decoded = nnr.decode(nnr.encode(model, exact=True))
    assert decoded.aliases == model.aliases
    for found in (model, decoded):
        restored = loaded(torch, written(found))
        pointers = {each.data_ptr() for each in (restored["embed"], restored["head"], restored["x"]["again"])}
        assert len(pointers) == 1
        assert restored["copy"].data_ptr() not in pointers
        assert same(torch, content, restored)


def test_a_tie_that_is_none_any_more(torch: Any) -> None:
    model = Model({"a": floats(2), "b": floats(2) + 1}, aliases={"b": "a"})
    restored = loaded(torch, written(model))
    assert restored["b"].tolist() == [1, 2]


@BOTH
def test_other_views_of_one_memory_are_said(torch: Any, legacy: bool) -> None:
    w = torch.randn(6)
    data = saved(torch, {"whole": w, "part": w[2:4], "apart": torch.ones(1)}, legacy=legacy)
    with pytest.warns(FormatWarning, match=r"stored separately: 'whole', 'part'$"):
        model = nnr.load(data)
    assert model.aliases == {}
    with pytest.raises(nnr.FormatError, match="'whole', 'part'"):
        nnr.load(data, strict=True)
    # Adjacent parts share nothing.
    assert set(nnr.load(saved(torch, {"a": w[:3], "b": w[3:]}), strict=True)) == {"a", "b"}


def test_names_are_unique(torch: Any) -> None:
    one = torch.ones(1)
    content = {"a": {"b": one * 1}, "a.b": one * 2, "a.b~2": one * 3, 1: one * 4, "1": one * 5, "c": {None: [one]}}
    model = nnr.load(saved(torch, content))
    assert {name: float(model[name][0]) for name in model} == {
        "a.b": 1, "a.b~3": 2, "a.b~2": 3, "1": 4, "1~2": 5, "c.null.0": 1,
    }  # fmt: skip
    assert same(torch, content, loaded(torch, written(model)))


def test_a_single_tensor(torch: Any) -> None:
    model = nnr.load(saved(torch, torch.ones(3)))
    assert list(model) == ["tensor"]
    assert same(torch, torch.ones(3), loaded(torch, written(model)))


def test_shared_containers_become_several(torch: Any) -> None:
    betas = (0.9, 0.999)
    content = {"groups": [{"betas": betas}, {"betas": betas}]}
    assert same(torch, content, loaded(torch, written(nnr.load(saved(torch, content)))))


@pytest.mark.medium
def test_the_same_bytes(torch: Any) -> None:
    content = checkpoint(torch)
    model = nnr.load(saved(torch, content))
    assert written(model) == written(nnr.load(saved(torch, content)))
    assert nnr.load(written(model)).topology == model.topology


def test_a_description_has_one_text_only(torch: Any) -> None:
    """Sets have no order."""
    texts = {
        description.to_bytes({"set": sorted(items, key=description.text)}) for items in ([1, "1", "b"], ["b", "1", 1])
    }
    assert len(texts) == 1
    first, again = (nnr.load(saved(torch, {"s": set(items)})).topology for items in (["x", 1], [1, "x"]))
    assert first == again


# ------------------------------------------------------------------------------------------------ files
@pytest.mark.parametrize("name", ["x.pt", "x.PTH", "x.ckpt", "pytorch_model.bin"])
def test_names_of_files(torch: Any, tmp_path: Path, name: str) -> None:
    nnr.save(Model({"w": floats(2)}), tmp_path / name)
    assert pytorch.recognise(tmp_path / name)
    assert torch.load(tmp_path / name, weights_only=True)["w"].tolist() == [0, 1]
    with pytest.raises(FileExistsError):
        nnr.save(Model({"w": floats(2)}), tmp_path / name)


def test_streams(torch: Any) -> None:
    data = saved(torch, {"w": torch.ones(2)})
    model = nnr.load(io.BufferedReader(Pipe(data)))
    assert written(model) == written(nnr.load(data))
    # A model from a PyTorch file is written to a stream as one.
    file = io.BytesIO()
    nnr.save(model, file)
    assert file.getvalue() == written(model)


@BOTH
def test_tensors_are_read_on_access(torch: Any, legacy: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(saved(torch, {f"l{k}": torch.full((256, 256), float(k)).t() for k in range(8)}, legacy=legacy))
    model = nnr.load(path)
    assert isinstance(model.tensors, LazyTensors)
    assert model["l3"] is not model["l3"]
    portable = pickle.dumps(model.tensors.only(["l2"]))
    assert len(portable) < 600
    assert pickle.loads(portable)["l2"][0, 0] == 2
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(nnr.FormatError, match="has changed since the model was opened"):
        model["l3"]


@pytest.mark.parametrize("order", ["little", "big"])
def test_byte_order(torch: Any, order: str) -> None:
    items = np.array([1.5, -2, 3], ">f4" if order == "big" else "<f4").tobytes()
    data = rebuilt(saved(torch, {"w": torch.ones(3)}), {"byteorder": order.encode(), "data/0": items})
    assert nnr.load(data)["w"].tolist() == [1.5, -2, 3]


def test_archives_of_other_programs(torch: Any) -> None:
    """Archives lack PyTorch's markers and have unused members, which a warning lists."""
    data = saved(torch, {"a": torch.ones(3), "b": torch.zeros(2, 2)})
    drop = {".format_version": None, ".storage_alignment": None, "byteorder": None, ".data/serialization_id": None}
    for changes in ({}, drop):
        assert same(torch, loaded(torch, data), loaded(torch, written(nnr.load(rebuilt(data, changes)))))
    for name in ("data/99", "extra/readme"):
        with pytest.warns(FormatWarning, match=f"unused members of the archive are left out: '{name}'"):
            model = nnr.load(rebuilt(data, {name: b"x"}))
        assert same(torch, loaded(torch, data), loaded(torch, written(model)))


@pytest.mark.medium
def test_large_models_are_written_from_a_file(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = checkpoint(torch) | {"tie": torch.ones(3)}
    content["tied"] = content["tie"]
    model = nnr.load(saved(torch, content))
    expected = written(model)
    monkeypatch.setattr(saving, "IN_MEMORY", 0)
    assert written(model) == expected
    nnr.save(model, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").read_bytes() == expected
    assert [path.name for path in tmp_path.iterdir()] == ["x.pt"]


def test_reading_needs_no_pytorch(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {legacy: saved(torch, checkpoint(torch), legacy=legacy) for legacy in (False, True)}
    monkeypatch.setitem(sys.modules, "torch", None)
    models = [nnr.load(data) for data in files.values()]
    assert models[0].topology == models[1].topology
    with pytest.raises(nnr.MissingDependencyError, match=r"writing PyTorch files .* pip install 'nnr_codec\[torch\]'"):
        nnr.save(models[0], tmp_path / "x.pt")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------ other models
def test_a_model_of_another_format(torch: Any) -> None:
    model = nnef_model({"a/w": floats(2, 3)})
    with pytest.warns(FormatWarning, match="cannot store the topology"):
        data = written(model)
    assert loaded(torch, data)["a/w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert nnr.load(data).topology is None


def test_metadata_are_not_kept(torch: Any) -> None:
    topology = Topology("pytorch", DESCRIPTION)
    with pytest.warns(FormatWarning, match="a PyTorch file cannot store the metadata"):
        assert loaded(torch, written(Model({"w": floats(2, 3)}, topology, metadata={"by": "somebody"})))


def test_types_that_pytorch_lacks(torch: Any) -> None:
    import ml_dtypes

    for dtype in (ml_dtypes.float8_e3m4, ml_dtypes.int4, np.dtype("c8")):
        with pytest.raises(nnr.FormatError, match="tensor 'w': pytorch does not support dtype"):
            written(Model({"w": np.zeros(2, dtype)}))


def test_a_model_that_does_not_fit_its_description(torch: Any) -> None:
    topology = Topology("pytorch", description.to_bytes({"dict": [["w", {"tensor": [2, 3]}], ["s", {"tensor": []}]]}))
    with pytest.raises(nnr.FormatError, match="has no tensor 's'"):
        written(Model({"w": floats(2, 3)}, topology))
    with pytest.raises(nnr.FormatError, match=r"'w' has shape \(3, 2\); the PyTorch description says \(2, 3\)"):
        written(Model({"w": floats(3, 2), "s": floats(1)}, topology))
    with pytest.warns(FormatWarning, match="left out: 'more'"):
        data = written(Model({"w": floats(1, 2, 3), "s": floats(1), "more": floats(1)}, topology))
    assert [tuple(each.shape) for each in loaded(torch, data).values()] == [(2, 3), ()]
    # Pruning gives tensors other shapes.
    assert loaded(torch, written(Model({"w": floats(1, 3), "s": floats(1)}, topology, pruned=["w"])))["w"].shape == (
        1,
        3,
    )


def test_a_description_for_another_pytorch(torch: Any) -> None:
    for node, match in (
        ({"dtype": "float3"}, "has no dtype 'float3'"),
        ({"dtype": "nn"}, "has no dtype"),
        ({"device": "moon:1"}, "has no device"),
        ({"dict": [[1, 1], [True, 2]]}, "a repeated key"),
        ({"list": 1}, "unknown kind"),
    ):
        with pytest.raises(nnr.FormatError, match=match):
            written(Model({}, Topology("pytorch", description.to_bytes(node))))
    integers = Topology("pytorch", description.to_bytes({"parameter": [1]}))
    with pytest.raises(nnr.FormatError, match="integers that require gradients"):
        written(Model({"tensor": np.ones(1, np.int32)}, integers))


def test_a_topology_kept_apart(torch: Any, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(saved(torch, checkpoint(torch)))
    data = nnr.encode(nnr.load(tmp_path / "x.pt"), topology="external", exact=True)
    assert nnr.decode(data).topology is None
    model = nnr.decode(data, topology=tmp_path / "x.pt")
    assert same(torch, checkpoint(torch).keys(), loaded(torch, written(model)).keys())
    with pytest.raises(nnr.NnrError, match="does not match the bitstream"):
        nnr.decode(nnr.encode({"w": floats(2)}), topology=tmp_path / "x.pt")


# ------------------------------------------------------------------------------------------------ left-out content
def sparse(torch: Any) -> Any:
    return torch.eye(3).to_sparse()


def quantized(torch: Any) -> Any:
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


def subclass(torch: Any) -> Any:
    value = torch.ones(2)
    value.owner = "somebody"
    return value


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (sparse, "disallowed function: torch._utils._rebuild_sparse_tensor, after 'x'"),
        (quantized, "disallowed function: torch._utils._rebuild_qtensor, after 'x'"),
        (subclass, "disallowed function: torch._tensor._rebuild_from_type_v2, after 'x'"),
        (lambda torch: torch.ones(2, dtype=torch.complex64), r"has type torch.complex64, which is not supported"),
        (lambda _: b"bytes", "disallowed function: _codecs.encode"),
        (lambda _: np.ones(2), "disallowed function: numpy"),
        (lambda _: Path("x"), "disallowed function: pathlib"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_content_that_is_left_out(torch: Any, make: Any, match: str) -> None:
    data = saved(torch, {"x": make(torch)})
    with pytest.raises(nnr.FormatError, match=match):
        nnr.load(data)


def test_a_module_is_refused(torch: Any) -> None:
    """Checkpoints of whole modules name their classes, and reading them would import and call these."""
    assert "torch.nn.modules.linear.Linear" in refused(saved(torch, torch.nn.Linear(2, 2)))


# ------------------------------------------------------------------------------------------------ any content
def contents(torch: Any) -> st.SearchStrategy[Any]:
    leaves = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**100), 2**100),
        st.floats(),
        st.text(st.characters(codec=None), max_size=5),
        st.sampled_from([torch.float16, torch.Size([1, 2]), torch.device("cpu")]),
        st.sampled_from(TYPES).flatmap(
            lambda name: st.lists(st.integers(0, 1), max_size=4).map(
                lambda items: torch.tensor(items, dtype=torch.uint8).to(getattr(torch, name))
            )
        ),
    )
    keys = st.one_of(st.text(max_size=3), st.integers(-3, 3), st.tuples(st.integers(0, 2)), st.none())
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(keys, inner, max_size=3),
            st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        ),
        max_leaves=8,
    )


@pytest.mark.medium
@settings(max_examples=examples(60))
@given(st.data())
def test_any_content(data: st.DataObject) -> None:
    torch = torch_or_skip()
    content = data.draw(contents(torch))
    try:
        model = nnr.load(saved(torch, content))
    except nnr.FormatError as error:
        assert "the name is empty, contains a zero byte" in str(error)  # surrogates and zeros
        return
    assert same(torch, content, loaded(torch, written(model)))
    if model.topology:
        assert list(formats.wiring(model.topology).shapes) == list(model)
        decoded = nnr.decode(nnr.encode(model, exact=True))
        assert same(torch, content, loaded(torch, written(decoded)))


# ------------------------------------------------------------------------------------------------ damaged files
@pytest.mark.medium
@BOTH
def test_truncated_everywhere(torch: Any, legacy: bool) -> None:
    data = saved(torch, {"w": torch.ones(2)}, legacy=legacy)
    for size in range(len(data)):
        with pytest.raises(nnr.NnrError):
            nnr.load(data[:size])


@cache
def small_file(legacy: bool) -> bytes:
    """Save a file; its size varies in the old format, which contains addresses."""
    torch = torch_or_skip()
    return bytes(saved(torch, {"w": torch.ones(2), "n": [1.5, "x"]}, legacy=legacy))


@pytest.mark.medium
@BOTH
@settings(max_examples=examples(80))
@given(st.data())
def test_mutated_bytes(legacy: bool, data: st.DataObject) -> None:
    file = bytearray(small_file(legacy))
    for _ in range(data.draw(st.integers(1, 3))):
        file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        try:
            model = nnr.load(bytes(file), limits=Limits.strict())
        except nnr.NnrError:
            return
    for name in model:
        assert model[name].nbytes <= 1 << 20


@pytest.mark.medium
@settings(max_examples=examples(80))
@given(st.data())
def test_mutated_pickles(data: st.DataObject) -> None:
    torch = torch_or_skip()
    archive = saved(
        torch, {"w": torch.ones(2), "n": [1.5, ("x", {})], "o": OrderedDict(a=torch.nn.Parameter(torch.ones(1)))}
    )
    pickled = bytearray(pickle_of(archive))
    for _ in range(data.draw(st.integers(1, 3))):
        pickled[data.draw(st.integers(0, len(pickled) - 1))] = data.draw(st.integers(0, 255))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        try:
            nnr.load(rebuilt(archive, {"data.pkl": bytes(pickled)}), limits=Limits.strict())
        except nnr.NnrError as error:
            assert "\n" not in str(error)


# ------------------------------------------------------------------------------------------------ limits
def test_limits(torch: Any) -> None:
    data = saved(torch, {"w": torch.ones(10), "v" * 50: torch.ones(2), "t": "x" * 100})
    for name, value in (
        ("max_archive_bytes", len(data) - 1),
        ("max_names", 5),
        ("max_name_bytes", 40),
        ("max_tensor_elements", 9),
        ("max_tensor_bytes", 39),
        ("max_total_bytes", 47),
        ("max_topology_bytes", 99),
        ("max_dims", 0),
    ):
        with pytest.raises(nnr.LimitError, match=name):
            nnr.load(data, limits=Limits(**{name: value}))
    assert nnr.load(data).topology


def test_what_the_pickle_says_need_not_be(torch: Any) -> None:
    good = tensor(4, 0, [2, 2], [2, 1])
    assert nnr.load(archive_of(mapping({"w": good}), {"0": bytes(16)}))["w"].shape == (2, 2)
    for content, storages, match in (
        (good, {"0": bytes(15)}, "storage '0' has 15 bytes; the pickle says 16"),
        (good, {}, "the archive has no storage '0'"),
        (tensor(1 << 60, 0, [2], [1]), {"0": bytes(16)}, "the pickle says"),
        (tensor(4, 1, [2, 2], [2, 1]), {"0": bytes(16)}, "outside"),
        (tensor(4, 0, [2, 2], [1 << 40, 1]), {"0": bytes(16)}, "outside"),
        (tensor(4, 1 << 62, [2, 2], [2, 1]), {"0": bytes(16)}, "outside"),
        (tensor(4, -1, [2], [1]), {"0": bytes(16)}, "outside"),
        (tensor(-4, 0, [2], [1]), {"0": bytes(16)}, "the size of storage '0' is invalid"),
        (tensor(4, 0, [-2], [1]), {"0": bytes(16)}, "shape and stride of a tensor do not match"),
        (tensor(4, 0, [1 << 40], [0]), {"0": bytes(16)}, "max_tensor_elements"),
        (storage(4), {"0": bytes(16)}, "'w' is a storage"),
        (b"ctorch\nFloatStorage\n" + b"\x8a\x05\0\0\0\0\1\x85R", {}, "calls an object that is not a function"),
    ):
        refused(archive_of(mapping({"w": content}), storages), match)


def test_a_storage_that_is_compressed(torch: Any) -> None:
    import zipfile

    data = saved(torch, {"w": torch.zeros(64)})
    refused(rebuilt(data, {}, method=zipfile.ZIP_DEFLATED), "storage 0 is compressed or encrypted")


@BOTH
def test_booleans_are_zero_or_one(torch: Any, legacy: bool, tmp_path: Path) -> None:
    data = saved(torch, {"w": torch.tensor([True, False, True, True, True, False, True])}, legacy=legacy)
    items = bytes([1, 0, 1, 1, 1, 0, 1])
    assert data.count(items) == 1
    with pytest.raises(nnr.FormatError, match="neither 0 nor 1"):
        nnr.load(data.replace(items, bytes([1, 0, 1, 2, 1, 0, 1])))


@pytest.mark.medium
def test_names_that_no_bitstream_has(torch: Any) -> None:
    for name in ("a\0b", "\ud800"):
        refused(saved(torch, {"x": {name: torch.ones(1)}}), "the name is empty, contains a zero byte")
    refused(saved(torch, {"n" * 5000: torch.ones(1)}), "max_name_bytes")
    refused(saved(torch, {"n" * 30_000_000: [torch.ones(1)] * 1000}), "max_name_bytes")


def test_a_text_is_no_name(torch: Any) -> None:
    assert nnr.load(archive_of(b"\x80\x02" + text("x" * 5000) + b".")).topology
