"""Every tensor is restored: bit for bit in the lossless preset, with its type and shape in the default one."""

from __future__ import annotations

import io
import multiprocessing
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream.aggregate import write_aggregate
from nnr_codec.constants import NNR_NDU, DecompressedDataFormat
from nnr_codec.dtypes import STORED_TYPES, stored_type
from nnr_codec.limits import Limits
from nnr_codec.model import Array

from .arrays import KINDS, LAYOUTS, SHAPES, arrays, assert_identical, from_patterns, in_memory, made, models, specials
from .hostile_record import lossless_model
from .shared import every, examples

pytestmark = pytest.mark.medium

#: topology_storage_format of the side-information record (docs/reference/side-information.md).
RECORD = 128
LOSSLESS: dict[str, Any] = {"exact": True}

FLOATS = tuple(name for name, stored in STORED_TYPES.items() if stored.kind == "f")
#: Types of the standard (Table 15).
OWN = ("int8", "int16", "int32", "int64", "float16", "float32", "float64")


def records(data: bytes) -> list[bytes]:
    """Return the payloads of all side-information records."""
    return [
        unit.payload.topology_data
        for unit in nnr.units(data)
        if unit.type_name == "NNR_TPL" and unit.header.detail.topology_storage_format == RECORD
    ]


def assert_same(got: Mapping[str, Array], want: Mapping[str, Array], what: object = "") -> None:
    """Check that both have the same tensors in the same order, bit for bit."""
    assert list(got) == list(want), what
    for name, array in want.items():
        assert_identical(got[name], array, (what, name))


# --------------------------------------------------------------------------------------------- the ways of decoding
def by_stream(data: bytes, size: int = 97) -> dict[str, Array]:
    decoder = nnr.StreamDecoder()
    got = [
        tensor for start in range(0, len(data), size) for tensor in decoder.feed(data[start : start + size])
    ] + decoder.finish()
    assert len(dict(got)) == len(got)
    return dict(got)


def one_at_a_time(data: bytes) -> dict[str, Array]:
    """Read tensors one by one, the last one first, and each of them twice."""
    with nnr.open(io.BytesIO(data)) as file:
        got = {name: file[name] for name in reversed(list(file))}
        assert list(file.info) == list(file)
        for name, array in got.items():
            assert_identical(file[name], array)
            assert (file.info[name].shape, file.info[name].type) == (array.shape, array.dtype.name)
            assert file.info[name].dtype == array.dtype
        return {name: got[name] for name in file}


def by_rows(data: bytes) -> dict[str, Array]:
    """Read each tensor as two ranges of rows."""
    with nnr.open(data) as file:
        got = {}
        for name, info in file.info.items():
            if not info.shape or not info.parameters:
                got[name] = file[name]
                continue
            middle = (info.shape[0] + 1) // 2
            got[name] = np.concatenate([file.rows(name, 0, middle), file.rows(name, middle, info.shape[0])])
        return got


def in_threads(data: bytes) -> dict[str, Array]:
    with ThreadPoolExecutor(2) as pool:
        assert_same(nnr.decode(data, executor=pool).tensors, nnr.decode(data, jobs=2).tensors)
    return dict(nnr.decode(data, jobs=2).tensors)


WAYS: dict[str, Callable[[bytes], Mapping[str, Array]]] = {
    "decode": lambda data: nnr.decode(data).tensors,
    "strict": lambda data: nnr.decode(data, limits=Limits.strict()).tensors,
    "jobs": in_threads,
    "open": one_at_a_time,
    "rows": by_rows,
    "stream": by_stream,
    "update": lambda data: nnr.UpdateDecoder().decode(data),
}

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "profile": st.just(0),
        "scan_order": st.integers(0, 4),
        "max_unit_size": st.sampled_from([4000, 20_000]),
        "indexed_references": st.just(True),
        "qp_density": st.integers(0, 7),
        "row_skipping": st.just(True),
        "dependent_quantization": st.just(False),
        "cabac_unary_length_minus1": st.sampled_from([0, 255]),
        "choose_shift_parameters": st.just(False),
        "deflate_topology": st.just(False),
    },
).filter(lambda options: not {"profile", "row_skipping"} <= options.keys())  # profile 0 skips no rows


# ------------------------------------------------------------------------------------------------ lossless: identity
@given(model=models(), options=OPTIONS, way=st.sampled_from(list(WAYS)))
@settings(max_examples=examples(400))
def test_lossless_is_the_identity(model: dict[str, Array], options: dict[str, Any], way: str) -> None:
    data = nnr.encode(model, **LOSSLESS, **options)
    assert_same(WAYS[way](data), model, way)
    assert nnr.encode(model, **LOSSLESS, **options) == data


@pytest.mark.parametrize(
    "type_name",
    [pytest.param(name, marks=() if name in ("float32", "bool") else pytest.mark.slow) for name in STORED_TYPES],
)
def test_each_kind_and_shape(type_name: str) -> None:
    """All kinds of content in all shapes form one model, coded losslessly and with default options."""
    model = {
        f"{kind} {k}": in_memory(made(kind, shape, type_name, k), LAYOUTS[k % len(LAYOUTS)])
        for kind in KINDS
        for k, shape in enumerate(SHAPES)
    }
    data = nnr.encode(model, **LOSSLESS)
    assert_same(nnr.decode(data).tensors, model)
    assert_same(by_stream(data, 100_000), model)
    got = nnr.decode(nnr.encode(model))
    for name, array in model.items():
        assert_near(got[name], array, name)


@pytest.mark.slow
@given(model=models(), options=OPTIONS)
@settings(max_examples=examples(400))
def test_lossless_in_all_ways(model: dict[str, Array], options: dict[str, Any]) -> None:
    data = nnr.encode(model, **LOSSLESS, **options)
    for way, decode in WAYS.items():
        assert_same(decode(data), model, way)


@given(model=models(), options=OPTIONS)
@settings(max_examples=examples(60))
def test_lossless_bitstreams_are_legal(model: dict[str, Array], options: dict[str, Any]) -> None:
    """No rule of the standard is broken, and a decoder that ignores the record gets tensors of Table 15."""
    data = nnr.encode(model, **LOSSLESS, **options)
    report = nnr.verify(data)
    assert not report.violations, report.violations
    for tensor in nnr.decode(data, raw=True).tensors.values():
        assert tensor.dtype.name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64")


@given(array=arrays())
def test_the_preset_is_lossless(array: Array) -> None:
    config = nnr.EncoderConfig.preset("lossless")
    assert nnr.encode({"w": array}, config) == nnr.encode({"w": array}, **LOSSLESS)


@given(array=arrays(), seed=st.integers(0, 99))
@settings(max_examples=examples(60))
def test_a_rule_makes_one_tensor_lossless(array: Array, seed: int) -> None:
    lossy = made("normal", (40, 50), "float32", seed)
    got = nnr.decode(nnr.encode({"a": lossy, "b": array}, rules=[nnr.Rule("b", exact=True)]))
    assert_identical(got["b"], array)
    assert np.abs(got["a"] - lossy).max() < 0.15 * np.sqrt((lossy**2).mean())


# ---------------------------------------------------------------------------------- lossy: type, shape, and how near
def assert_near(got: Array, want: Array, what: object = "") -> None:
    """Check types and shapes; finite floats may differ by some step sizes and a rounding, other values are equal."""
    assert (got.dtype.name, got.shape) == (want.dtype.name, want.shape), what
    stored = stored_type(want.dtype)
    assert stored
    with np.errstate(invalid="ignore"):  # of a signaling not-a-number
        is_finite = np.isfinite(want.astype("f8")).all()
    if stored.kind != "f" or not is_finite:
        assert_identical(got, want, what)
        return
    exact, values = want.astype("f8"), got.astype("f8")
    step = 2.0**-9 * float(np.abs(exact).max(initial=0))  # of vectors, such as biases
    if sum(extent > 1 for extent in want.shape) > 1:  # 35 dB
        scale = float(np.abs(exact).max(initial=0)) or 1.0
        step = 0.04 * scale * float(np.linalg.norm(exact / scale)) / max(np.count_nonzero(exact), 1) ** 0.5
    rounding = np.maximum(np.abs(exact) * 2.0 ** -(min(stored.mantissa, 23) + 1), 2.0**-150)
    with np.errstate(over="ignore"):
        assert (np.abs(values - exact) <= 2 * step + rounding).all(), what


@given(model=models(), options=OPTIONS, way=st.sampled_from(list(WAYS)))
@settings(max_examples=examples(300))
def test_the_default_keeps_types_and_shapes(model: dict[str, Array], options: dict[str, Any], way: str) -> None:
    data = nnr.encode(model, **options)
    got = WAYS[way](data)
    assert list(got) == list(model)
    for name, array in model.items():
        assert_near(got[name], array, name)
    assert nnr.encode(model, **options) == data


# --------------------------------------------------------------------------------- who can read it: record or no record
@given(model=models(("float32", "int32")), options=OPTIONS)
@settings(max_examples=examples(200))
def test_plain_models_have_no_record(model: dict[str, Array], options: dict[str, Any]) -> None:
    """Untied, nonempty float32 and int32 tensors with at least one dimension need only elements of the standard."""
    plain = {name: array.copy() for name, array in model.items() if array.shape and array.size}
    data = nnr.encode(plain, **options)
    assert not records(data)
    assert sorted(nnr.decode(data, raw=True).tensors) == sorted(plain)
    assert nnr.encode(plain, side_info=False, **options) == data


@given(model=models(OWN), options=OPTIONS, exact=st.sampled_from([None, True]))
@settings(max_examples=examples(200))
def test_without_a_record_it_is_the_same_or_refused(
    model: dict[str, Array], options: dict[str, Any], exact: bool | None
) -> None:
    try:
        data = nnr.encode(model, side_info=False, exact=exact, **options)
    except nnr.EncodeError as error:
        assert str(error)
        return
    assert not records(data)
    got = nnr.decode(data)
    assert list(got) == list(model)
    for name, array in model.items():
        (assert_identical if exact else assert_near)(got[name], array, name)


@pytest.mark.parametrize("name", ["int2", "int4"])
def test_types_that_numpy_lacks_are_written_without_a_record(name: str) -> None:
    array = made("normal", (4, 4), name)
    with pytest.warns(nnr.EncodeWarning, match=f"tensor 'w' of type {name} will decode to int8"):
        data = nnr.encode({"w": array}, side_info=False)
    assert not records(data)
    assert_identical(nnr.decode(data)["w"], array.astype(np.int8), "w")
    (unit,) = [unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU]
    assert DecompressedDataFormat(unit.nnr_decompressed_data_format).name == f"TENSOR_{name.upper()}"


@pytest.mark.parametrize("name", [name for name in STORED_TYPES if name not in (*OWN, "int2", "int4")])
def test_a_type_that_nnr_lacks_is_refused_without_a_record(name: str) -> None:
    model = {"before": np.zeros(3, "f4"), "culprit": made("normal", (4, 4), name)}
    with pytest.raises(nnr.EncodeError, match="culprit"):
        nnr.encode(model, side_info=False)


@pytest.mark.parametrize(
    "model",
    [
        nnr.Model({"culprit": np.zeros((), "f4")}),
        nnr.Model({"culprit": np.zeros((0, 2), "f4")}),
        nnr.Model({"w": np.zeros(2, "f4")}, metadata={"culprit": "x"}),
    ],
    ids=["0-d", "empty", "metadata"],
)
def test_what_else_is_refused_without_a_record(model: nnr.Model) -> None:
    with pytest.raises(nnr.EncodeError, match=r"culprit|metadata"):
        nnr.encode(model, side_info=False)
    assert nnr.decode(nnr.encode(model)).metadata == model.metadata


@pytest.mark.parametrize("exact", [None, True])
def test_ties_without_a_record(exact: bool | None) -> None:
    """Ties that the model declares are rejected; tensors whose ties were only detected are coded twice."""
    w = made("normal", (8, 8), "float32")
    with pytest.raises(nnr.EncodeError, match=r"'b'"):
        nnr.encode(nnr.Model({"a": w, "b": w}, aliases={"b": "a"}), side_info=False, exact=exact)
    data = nnr.encode({"a": w, "b": w}, side_info=False, exact=exact)
    assert data == nnr.encode({"a": w, "b": w.copy()}, side_info=False, exact=exact)
    assert not records(data)


@pytest.mark.slow
def test_every_code_is_tried_here() -> None:
    """The arrays of this file lead to all codes of the record, and to the exact codes that need no record."""
    kinds: set[str] = set()
    plain: set[str] = set()
    for type_name in STORED_TYPES:
        model = {f"{kind} {k}": made(kind, SHAPES[k], type_name, k) for kind in KINDS for k in (7, 12, 13, 15)}
        with nnr.open(nnr.encode(model, **LOSSLESS)) as file:
            for name in model:
                record = file.side.tensors.get(name)
                if record and record.code:
                    kinds.add(record.code.KIND)
                elif not record:
                    info = file.info[name]
                    plain |= {info.payload_type.name, *info.tools}
    assert kinds == {"float", "integer", "raw", "palette", "grid"}
    assert {"NNR_PT_INT", "NNR_PT_FLOAT", "NNR_PT_RAW_FLOAT"} <= plain


# ------------------------------------------------------------------------------------------------------------- ties
def test_tied_tensors_come_back_tied() -> None:
    w, v = made("normal", (30, 20), "bfloat16"), made("normal", (3,), "float32")
    model = {"a": w, "b": v, "c": w, "d": w, "e": np.zeros(()), "f": v}
    for options in ({}, LOSSLESS):
        data = nnr.encode(model, **options)
        assert len(data) < len(nnr.encode({"a": w, "b": v, "e": model["e"]}, **options)) + 100
        decoded = nnr.decode(data)
        assert list(decoded) == list(model)
        assert decoded["a"] is decoded["c"] is decoded["d"]
        assert decoded["b"] is decoded["f"]
        assert decoded.aliases == {"c": "a", "d": "a", "f": "b"}


def test_ties_of_a_model() -> None:
    """Aliases of a Model are used unchanged; chains are resolved or rejected, never lost."""
    w = made("clustered", (30, 20), "float32")
    model = nnr.Model({"a": w, "b": w.copy()}, aliases={"b": "a"})
    decoded = nnr.decode(nnr.encode(model, **LOSSLESS))
    assert decoded["a"] is decoded["b"]
    assert decoded.aliases == {"b": "a"}
    again = nnr.encode(decoded, **LOSSLESS)
    assert again == nnr.encode(model, **LOSSLESS)


@pytest.mark.parametrize(
    "aliases",
    [{"b": "missing"}, {"missing": "a"}, {"a": "a"}, {"a": "b", "b": "a"}, {"d": "a"}, {"e": "a"}, {"c": "a"}],
    ids=["to nothing", "of nothing", "itself", "a circle", "another shape", "another type", "other values"],
)
def test_declared_ties_are_tied(aliases: dict[str, str]) -> None:
    w = made("normal", (6, 4), "float32")
    tensors = {"a": w, "b": w.copy(), "c": w + 1, "d": w.reshape(4, 6), "e": w.astype("f2")}
    try:
        data = nnr.encode(nnr.Model(tensors, aliases=aliases), **LOSSLESS)
    except nnr.EncodeError:
        return
    assert_same(nnr.decode(data).tensors, tensors)


def test_what_looks_tied_and_is_not() -> None:
    """Views of the same memory with another shape, order, type, offset or extent are separate tensors."""
    w = made("normal", (12, 12), "float32", 1)
    line = np.arange(20, dtype="i4")
    model = {
        "w": w,
        "transposed": w.T,
        "flat": w.reshape(-1),
        "reversed": w[::-1],
        "first rows": w[:6],
        "last rows": w[6:],
        "as int32": w.view("i4"),
        "line": line,
        "one on": line[1:],
        "one off": line[:-1],
        "a column": w[:, 0],
        "a row": w[0],
        "first": w[:1, :1],
        "as uint32": w.view("u4"),
        "spread": np.broadcast_to(w[:1], (12, 12)),
        "spread down": np.broadcast_to(w[:, :1], (12, 12)),
        "big-endian": w.view(">f4"),
    }
    decoded = nnr.decode(nnr.encode(model, **LOSSLESS))
    assert_same(decoded.tensors, {name: array.astype(array.dtype.newbyteorder("=")) for name, array in model.items()})
    assert decoded.aliases == {}


class Lazy(Mapping[str, Array]):
    """Tensors that are created on each access, in new or in the same memory."""

    def __init__(self, arrays: Mapping[str, Array], memory: bool) -> None:
        self.arrays = arrays
        self.memory = np.zeros(max(array.nbytes for array in arrays.values()), "u1") if memory else None

    def __getitem__(self, name: str) -> Array:
        array = self.arrays[name]
        if self.memory is None:
            return array.copy()
        view = self.memory[: array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        return view

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


@pytest.mark.parametrize("memory", [False, True], ids=["made anew", "in the same memory"])
@pytest.mark.parametrize("as_model", [False, True])
def test_tensors_that_are_read_lazily_are_not_taken_for_tied(memory: bool, as_model: bool) -> None:
    """A new array may have the address of a freed one."""
    arrays = {f"t{k}": made("normal", (64, 64), "float32", k) for k in range(6)}
    lazy = Lazy(arrays, memory)
    model: Any = nnr.Model(lazy) if as_model else lazy
    assert_same(nnr.decode(nnr.encode(model, **LOSSLESS)).tensors, arrays)
    got = nnr.decode(nnr.encode(model))
    for name, array in arrays.items():
        assert_near(got[name], array, name)


# ------------------------------------------------------------------------------------------------- metadata and names
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


@given(metadata=st.dictionaries(TEXT, TEXT, max_size=4), source=st.sampled_from(["", "npz", "safetensors"]))
@settings(max_examples=examples(60))
@example(metadata={"": ""}, source="")
@example(metadata={"\0": "\0\x7f\u2028\U0001f600"}, source="safetensors")
@example(metadata={"format": "pt", "long": "x" * 100_000}, source="safetensors")
def test_metadata_comes_back(metadata: dict[str, str], source: str) -> None:
    model = nnr.Model({"w": np.arange(3, dtype="f4")}, metadata=metadata, format=source)
    for options in ({}, LOSSLESS):
        decoded = nnr.decode(nnr.encode(model, **options))
        assert decoded.metadata == metadata
        if metadata:
            assert decoded.format == source


@given(
    names=st.lists(st.text(max_size=6), min_size=1, max_size=4, unique=True), type_name=st.sampled_from(["f4", "bool"])
)
@settings(max_examples=examples(100))
def test_any_name_comes_back_or_is_refused(names: list[str], type_name: str) -> None:
    model = {name: made("normal", (8, 9), np.dtype(type_name).name, k) for k, name in enumerate(names)}
    try:
        data = nnr.encode(model, **LOSSLESS)
    except nnr.EncodeError:
        assert any("\0" in name or not name.isprintable() for name in names)
        return
    assert_same(nnr.decode(data).tensors, model)


@pytest.mark.parametrize("spare", range(8))
def test_names_with_no_room_for_a_suffix(spare: int) -> None:
    """The unit of the other bits has a longer name, which decoders must not reject."""
    name = "w" * (Limits().max_name_bytes - spare)
    model = {name: made("normal", (200, 200), "float32"), "big": made("far_away", (60, 60), "int64", 3)}
    assert_same(nnr.decode(nnr.encode(model, **LOSSLESS)).tensors, model)


def test_names_that_equal_names_of_other_units() -> None:
    """The encoder must not confuse these names with names of units with the other bits."""
    model = {
        f"{name}{'#bits' * k}{'#' * j}": made("normal", (50, 50), "float32", k) if k < 2 else np.arange(3, dtype="u1")
        for name in ("w", "#")
        for k in range(3)
        for j in range(2)
    }
    for options in ({}, {"indexed_references": True}):
        data = nnr.encode(model, **LOSSLESS, **options)
        assert_same(nnr.decode(data).tensors, model)
        assert_same(by_stream(data), model)


def test_the_order_is_kept_where_units_are_missing() -> None:
    """Empty and tied tensors are at the beginning, in the middle and at the end, alone and in runs."""
    w, none = made("normal", (9, 9), "float16"), np.zeros((0, 3), "f4")
    for order in ("eeweawee", "eee", "waaaa", "ewa", "wea", "aew", "ebeweaeb"):
        model: dict[str, Array] = {}
        for k, what in enumerate(order):
            model[f"{k}{what}"] = {"e": none.copy(), "w": w, "a": w, "b": np.arange(5, dtype="u2")}[what]
        for options in ({}, LOSSLESS):
            data = nnr.encode(model, **options)
            for way, decode in WAYS.items():
                assert list(decode(data)) == list(model), (order, way)


def test_a_model_without_tensors() -> None:
    model = nnr.Model({}, metadata={"a": "b"})
    decoded = nnr.decode(nnr.encode(model, **LOSSLESS))
    assert not decoded.tensors
    assert decoded.metadata == {"a": "b"}


# --------------------------------------------------------------------------------------------- further cases
@pytest.mark.parametrize("type_name", ["bool", "int2", "int4", "uint2", "uint4"])
def test_bytes_that_stand_for_the_same_value(type_name: str) -> None:
    """Arrays of narrow items that are views of bytes have bits without meaning."""
    array = np.arange(256, dtype="u1").reshape(16, 16).view(STORED_TYPES[type_name].dtype)
    for options in ({}, LOSSLESS):
        assert_identical(nnr.decode(nnr.encode({"w": array}, **options))["w"], array)


@pytest.mark.parametrize("type_name", FLOATS)
def test_every_pattern_of_a_float(type_name: str) -> None:
    """All patterns of 8 and 16 bits; for wider types, all exponents with the smallest and largest mantissas."""
    stored = STORED_TYPES[type_name]
    if stored.bits <= 16:
        bits = np.arange(1 << stored.bits, dtype="u8")
    else:
        tops = np.arange(1 << (stored.exponent + 1), dtype="u8") << np.uint64(stored.mantissa)
        ends = np.array([0, 1, (1 << stored.mantissa) - 1, 1 << (stored.mantissa - 1)], "u8")
        bits = np.append((tops[:, None] | ends).reshape(-1), specials(stored))
    array = from_patterns(bits, stored)
    for order in (array, np.random.default_rng(0).permutation(array), np.sort(array)):
        assert_identical(nnr.decode(nnr.encode({"w": order}, **LOSSLESS))["w"], order)


@pytest.mark.parametrize("type_name", ["int64", "uint64"])
@pytest.mark.parametrize("width", [2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**64 - 1])
def test_integers_at_the_ends_of_ranges(type_name: str, width: int) -> None:
    """Ranges are slightly narrower and wider than 31, 32, 63 and 64 bits, at the ends of the type and around 0."""
    low, high = STORED_TYPES[type_name].range
    for base in sorted({low, high - width, -(width // 2), -(2**31), 0}):
        if not low <= base <= high - width:
            continue
        values = [base, base + width, base + width // 2, base + 1, base + width - 1] * 40
        array = np.array(values, type_name)
        for options in ({}, LOSSLESS):
            assert_identical(nnr.decode(nnr.encode({"w": array}, **options))["w"], array, (base, width))


@pytest.mark.parametrize("size", [65_534, 65_535, 65_536, 65_537, 70_000])
def test_about_as_many_values_as_a_codebook_may_have(size: int) -> None:
    """Decoders with default limits read up to 65,536 entries."""
    bits = np.arange(size, dtype="u4") * np.uint32(12_345) + np.uint32(7)
    array = np.tile(np.random.default_rng(0).permutation(bits), 3).view("f4")
    assert_identical(nnr.decode(nnr.encode({"w": array}, **LOSSLESS))["w"], array)


@pytest.mark.slow
def test_palettes_of_many_tensors_stay_within_the_limits() -> None:
    """The record as a whole is bounded: tensors that exceed the bound are coded otherwise, not rejected by decoders."""
    rng = np.random.default_rng(0)
    model = {f"t{k}": rng.choice(rng.normal(0, 1, 30_000), 70_000) for k in range(64)}
    assert_same(nnr.decode(nnr.encode(model, **LOSSLESS)).tensors, model)


def test_hundreds_of_dimensions_worth_of_ones() -> None:
    for ndim in (9, 31, 32):
        for array in (np.ones((1,) * ndim, "u8"), made("normal", (3, *(1,) * (ndim - 1)), "float16")):
            assert_identical(nnr.decode(nnr.encode({"w": array}, **LOSSLESS))["w"], array)


@pytest.mark.parametrize("shape", [(0, 1 << 40), (1 << 40, 0), (0,) * 32])
def test_empty_tensors_of_great_extents(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, "f2")
    assert_identical(nnr.decode(nnr.encode({"w": array}))["w"], array)


@pytest.mark.parametrize(
    "dtype",
    ["complex64", "S3", "U2", "O", "M8[s]", "V3", "longdouble", ml_dtypes.float4_e2m1fn, ml_dtypes.float6_e2m3fn],
)
def test_other_types_are_refused_by_name(dtype: Any) -> None:
    array = np.zeros(3, dtype)
    for options in ({}, LOSSLESS):
        with pytest.raises(nnr.EncodeError, match="culprit"):
            nnr.encode({"culprit": array}, **options)


def test_bitstreams_one_after_another() -> None:
    """Each bitstream has its own record."""
    first, second = lossless_model(), {"float": np.zeros((), "i8"), "z": made("normal", (40, 30), "bfloat16")}
    decoder = nnr.StreamDecoder()
    got = decoder.feed(nnr.encode(first, **LOSSLESS) + nnr.encode(second, **LOSSLESS)) + decoder.finish()
    assert_same(dict(got[: len(first)]), first)
    assert_same(dict(got[len(first) :]), second)


def test_some_tensors_by_name() -> None:
    """Each tensor is decoded alone, tied ones without their targets, and two tensors in the order of the model."""
    model = lossless_model()
    with nnr.open(nnr.encode(model, **LOSSLESS)) as file:
        for name, array in model.items():
            assert_same(file.decode(names=[name]).tensors, {name: array})
        assert list(file.decode(names=["tied", "empty"])) == ["empty", "tied"]


def test_one_file_in_many_threads() -> None:
    model = lossless_model()
    names = list(model) * 4
    with nnr.open(io.BytesIO(nnr.encode(model, **LOSSLESS))) as file, ThreadPoolExecutor(4) as pool:
        for name, array in zip(names, pool.map(file.__getitem__, names), strict=True):
            assert_identical(array, model[name], name)


def test_processes() -> None:
    model = lossless_model()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        assert_same(nnr.decode(nnr.encode(model, **LOSSLESS), executor=pool).tensors, model)


def test_a_record_and_its_units_in_an_aggregate() -> None:
    model = lossless_model()
    data = nnr.encode(model, **LOSSLESS)
    units = [data[unit.offset :][: unit.size.nnr_unit_size] for unit in nnr.units(data)]
    assert_same(nnr.decode(b"".join(units[:2]) + write_aggregate(units[2:])).tensors, model)


def test_blocks() -> None:
    """In a block with its weight, exact tensors are coded separately, and others keep their types."""
    rng = np.random.default_rng(0)
    roles = {role: role for role in ("bias", "beta", "gamma", "mean", "var")}
    for type_name in ("float32", "bfloat16", "float16"):
        dtype = STORED_TYPES[type_name].dtype
        tensors = {"w": rng.normal(0, 0.1, (20, 16)).astype(dtype)}
        tensors |= {role: np.abs(rng.normal(1, 0.1, 20)).astype(dtype) for role in roles}
        model = nnr.Model(tensors, blocks=[nnr.Block("w", **roles)])
        assert_same(nnr.decode(nnr.encode(model, **LOSSLESS)).tensors, tensors)
        got = nnr.decode(nnr.encode(model))
        assert type_name == "float16" or "bn" in nnr.open(nnr.encode(model)).info["w"].tools
        for name, array in tensors.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            assert np.abs(got[name].astype("f4") - array.astype("f4")).max() < 2.0**-7


def test_the_order_of_layout_in_memory_does_not_matter() -> None:
    """Equal values give equal bytes, independently of their memory layout."""
    for type_name in ("float32", "bfloat16", "int64", "uint8", "float64")[:: every(4)]:
        for kind in ("normal", "grid", "clustered", "far_away", "narrower"):
            array = made(kind, (48, 64), type_name, 5)
            for options in ({}, LOSSLESS):
                data = {layout: nnr.encode({"w": in_memory(array, layout)}, **options) for layout in LAYOUTS}
                assert len(set(data.values())) == 1, (type_name, kind, options)


@given(model=models(FLOATS, most=2))
@settings(max_examples=examples(60))
def test_decoding_to_another_type(model: dict[str, Array]) -> None:
    """float32 and float16 are conversions of the decoded values; a finite value out of range is an error."""
    data = nnr.encode(model, **LOSSLESS)
    for target in ("float16", "float32"):
        with np.errstate(over="ignore", invalid="ignore"):
            want = {name: array.astype(target) for name, array in model.items()}
            fits = all(
                np.isfinite(want[name].astype("f8"))[np.isfinite(array.astype("f8"))].all()
                for name, array in model.items()
            )
        if not fits:
            with pytest.raises(nnr.ElementError):
                nnr.decode(data, dtype=target)
            continue
        got = nnr.decode(data, dtype=target)
        for name, array in model.items():
            assert (got[name].dtype.name, got[name].shape) == (target, array.shape)
            np.testing.assert_array_equal(got[name], want[name])


@given(model=models(most=3))
@settings(max_examples=examples(60))
def test_the_expected_tensors_are_the_encoded_ones(model: dict[str, Array]) -> None:
    data = nnr.encode(model, **LOSSLESS)
    assert_same(nnr.decode(data, limits=Limits(expected=model)).tensors, model)
    other = {name: np.zeros((*array.shape, 1), array.dtype) for name, array in model.items()}
    with pytest.raises(nnr.LimitError):
        nnr.decode(data, limits=Limits(expected=other))


@pytest.mark.parametrize("kind", ["normal", "clustered", "grid", "ternary", "narrower", "far_away"])
def test_decoded_tensors_can_be_changed(kind: str) -> None:
    """Decoded tensors own their memory and have native byte order."""
    for type_name in ("float32", "bfloat16", "int64", "uint8", "bool", "float64"):
        model = {"w": made(kind, (48, 64), type_name), "s": made(kind, (), type_name), "e": made(kind, (0,), type_name)}
        for array in nnr.decode(nnr.encode(model, **LOSSLESS)).tensors.values():
            assert array.flags.writeable and array.flags.c_contiguous
            assert array.dtype.isnative


def test_exact_codes_are_worth_it() -> None:
    """Sizes in bytes are compared with the size of the tensor (float32: 4 bytes each)."""
    share = {
        kind: len(nnr.encode({"w": made(kind, (256, 256), "float32", 1)}, **LOSSLESS)) / (4 * 256 * 256)
        for kind in ("normal", "pruned", "clustered", "ternary", "grid", "binary_steps", "narrower", "constant")
    }
    most = {
        "normal": 0.85,
        "pruned": 0.23,
        "clustered": 0.07,
        "ternary": 0.06,
        "grid": 0.27,
        "binary_steps": 0.22,
        "narrower": 0.7,
        "constant": 0.001,
    }
    assert {kind: share[kind] for kind in share if share[kind] > most[kind]} == {}
