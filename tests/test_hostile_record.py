"""Damaged side information gives tensors or an NnrError in all ways of decoding, quickly and within the limits."""

from __future__ import annotations

import itertools
import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.limits import Limits
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader

from .arrays import made
from .hostile import flips, header_bytes, trial, truncations
from .hostile_record import (
    HOSTILE,
    all_ways,
    canonical,
    changed,
    lossless,
    lossless_model,
    lossless_update,
    mutated,
    places,
    record,
    with_record,
)
from .soon import soon

pytestmark = pytest.mark.medium


def tried(name: str, inputs: Iterable[tuple[str, bytes]], parts: int = 4) -> Counter[str]:
    """Read every input in one of ``parts`` of all ways in turn; an AssertionError names an unexpected outcome."""
    outcomes = Counter[str]()
    for k, (what, data) in enumerate(inputs):
        try:
            outcomes += soon(lambda: all_ways(data, part=slice(k % parts, None, parts)), 5)[0]  # noqa: B023
        except Exception as error:
            raise AssertionError(f"{name}, {what}: {type(error).__name__}: {error}") from error
    return outcomes


def test_the_lossless_bitstream_has_all_codes() -> None:
    data = lossless()
    assert set(all_ways(data)) == {"valid"}
    codes = {entry["code"]["kind"] for entry in json.loads(record(data))["tensors"].values() if "code" in entry}
    assert codes == {"float", "integer", "raw", "palette", "grid"}
    assert with_record(data, lambda text: text)[-1000:] == data[-1000:]
    assert canonical(json.loads(record(data))) == record(data)


@pytest.mark.slow
def test_lossless_bitstreams_truncated_and_flipped() -> None:
    data = lossless()
    headers = header_bytes(data)
    payloads = sorted(set(range(len(data))) - set(headers))
    tally = trial("lossless", truncations(data, [*headers[::5], *payloads[::499]]))
    assert tally.outcomes["valid"] < 40
    trial("lossless", flips(data, headers[::3], bits=[5]))
    tally = trial("lossless", flips(data, payloads[::97], bits=[3]))
    assert tally.outcomes["valid"]  # words have no redundancy


def test_each_value_of_a_record_replaced() -> None:
    """Every value of the JSON text is replaced by every hostile value and removed, in all ways of decoding."""
    data = lossless()
    value = json.loads(record(data))
    rnd = random.Random(0)
    inputs = (
        (f"{path}: {what!r}", with_record(data, lambda _, path=path, what=what: canonical(changed(value, path, what))))
        for path in places(value)
        for what in (..., *rnd.sample(HOSTILE, 2))
    )
    outcomes = tried("record", inputs)
    assert outcomes["ElementError"] > outcomes["valid"] / 4


def test_records_with_bytes_changed() -> None:
    """Bits of the inflated text are flipped, and parts of it are removed, repeated or moved."""
    data, rnd = lossless(), random.Random(1)
    text = record(data)

    def inputs() -> Iterator[tuple[str, bytes]]:
        for k in range(150):
            copy = bytearray(text)
            at, length = rnd.randrange(len(copy)), rnd.randrange(1, 9)
            kind = rnd.randrange(4)
            if kind == 0:
                copy[at] ^= 1 << rnd.randrange(8)
            elif kind == 1:
                del copy[at : at + length]
            elif kind == 2:
                copy[at:at] = copy[at : at + length]
            else:
                copy[at : at + length] = copy[rnd.randrange(len(copy)) :][:length]
            yield f"{k}: {kind} at {at}", with_record(data, lambda _, copy=copy: bytes(copy))

    tried("bytes", inputs())


def test_records_with_several_changes() -> None:
    data = lossless()
    text = record(data)
    seeds = range(150)
    tried("mutated", ((str(k), with_record(data, lambda _, k=k: mutated(text, random.Random(k)))) for k in seeds))


def test_records_of_updates_with_several_changes() -> None:
    data = lossless_update()
    text = record(data)
    assert {"delta", "palette"} <= {
        code["code"]["kind"] for code in json.loads(text)["tensors"].values() if "code" in code
    }
    seeds = range(100)
    tried("mutated", ((str(k), with_record(data, lambda _, k=k: mutated(text, random.Random(k)))) for k in seeds))


@pytest.mark.slow
def test_records_with_several_changes_many_more() -> None:
    data = lossless()
    text = record(data)
    seeds = range(1000, 1500)
    tried("mutated", ((str(k), with_record(data, lambda _, k=k: mutated(text, random.Random(k)))) for k in seeds), 1)


def test_units_of_coded_tensors_changed() -> None:
    """Levels, words, shapes, types and ids of units differ from the record that refers to them."""
    data, rnd = lossless(), random.Random(2)
    units = list(nnr.units(data))
    coded = [k for k, unit in enumerate(units) if unit.type_name == "NNR_NDU"]

    def inputs() -> Iterator[tuple[str, bytes]]:
        for k in coded:
            header, name = units[k].ndu, units[k].ndu.topology_elem_id
            shape = tuple(header.tensor_dimensions)
            for what, dims in (
                ("longer", (shape[0] + 1, *shape[1:])),
                ("shorter", (max(shape[0] - 1, 1), *shape[1:])),
                ("as many", (1, prod(shape))),
                ("one", (1,)),
            ):
                for kind in ("levels", "great levels", "words"):
                    yield f"{name}: {kind}, {what}", replaced(k, dims, kind)
            yield f"{name}: gone", nnr.write_units([*units[:k], *units[k + 1 :]])
            yield f"{name}: twice", nnr.write_units([*units[: k + 1], *units[k:]])
            yield f"{name}: at the end", nnr.write_units([*units[:k], *units[k + 1 :], units[k]])
            other = rnd.choice([other for other in coded if other != k])
            swapped = list(units)
            swapped[k], swapped[other] = swapped[other], swapped[k]
            yield f"{name}: swapped with {other}", nnr.write_units(swapped)

    def replaced(k: int, dims: tuple[int, ...], kind: str) -> bytes:
        header = NnrCompressedDataUnitHeader(
            nnr_compressed_data_unit_payload_type=NNR_PT_RAW_FLOAT if kind == "words" else NNR_PT_INT,
            input_parameters_present_flag=1,
            tensor_dimensions_flag=1,
            tensor_dimensions=list(dims),
            topology_elem_id=units[k].ndu.topology_elem_id,
        )
        if kind != "words":
            header.cabac_unary_length_flag, header.cabac_unary_length_minus1 = 1, 10
        bound = {"levels": 40, "great levels": 1 << 30, "words": 1 << 31}[kind]
        content = np.random.default_rng(k).integers(-bound, bound, dims).astype(np.int32)
        values = content.view(np.float32) if kind == "words" else content
        return nnr.write_units(units[:k]) + b"".join(nnr.write_ndu(header, values)) + nnr.write_units(units[k + 1 :])

    outcomes = tried("units", inputs())
    assert outcomes["ElementError"]
    assert outcomes["IncompleteError"]


@pytest.mark.slow
def test_memory_while_a_damaged_record_is_decoded() -> None:
    """Allocated memory, not only touched memory, is within a few times the limits of one bitstream."""
    data = lossless()
    text = record(data)
    limits = Limits(
        max_tensor_bytes=1 << 18,
        max_total_bytes=1 << 20,
        max_names=1000,
        max_codebook=4096,
        max_side_info_bytes=1 << 18,
    )
    assert set(all_ways(data, limits)) == {"valid"}
    tracemalloc.start()
    try:
        for k in range(40):
            damaged = with_record(data, lambda _, k=k: mutated(text, random.Random(k)))
            tracemalloc.reset_peak()
            all_ways(damaged, limits)
            peak = tracemalloc.get_traced_memory()[1]
            assert peak < 8 << 20, f"{k}: {peak:,} bytes"
    finally:
        tracemalloc.stop()


def test_a_record_that_inflates_to_more_than_is_allowed() -> None:
    data = lossless()
    blown = with_record(data, lambda text: text[:-1] + b" " * (1 << 28) + b"}")
    assert len(blown) < len(data) + (1 << 20)
    tracemalloc.start()
    try:
        outcomes = all_ways(blown, Limits(max_side_info_bytes=1 << 18, max_topology_bytes=1 << 18))
        assert outcomes["LimitError"] >= 5
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_all_types_and_shapes_are_as_robust() -> None:
    """One bit is flipped in each of many lossless bitstreams of one tensor."""
    for k, (type_name, kind) in enumerate(itertools.product(STORED_TYPES, ("normal", "clustered", "patterns", "grid"))):
        data = nnr.encode({"w": made(kind, (24, 20) if k % 3 else (), type_name, k)}, exact=True)
        rnd = random.Random(k)
        trial(
            f"{type_name} {kind}", flips(data, rnd.sample(range(len(data)), min(len(data), 8)), bits=[rnd.randrange(8)])
        )


def test_the_hostile_model_is_the_lossless_one() -> None:
    assert list(nnr.decode(lossless())) == list(lossless_model())
