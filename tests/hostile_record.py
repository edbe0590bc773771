"""Bitstreams with side information, and hostile changes of it: see docs/reference/side-information.md."""

from __future__ import annotations

import json
import random
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.constants import NNR_DFL
from nnr_codec.errors import NnrError
from nnr_codec.limits import Limits
from nnr_codec.model import Array

from .arrays import made
from .hostile import STRICT

RECORD = 128  # topology_storage_format


def lossless_model() -> dict[str, Array]:
    """Return tensors that need every code of the side-information record, and tensors without code or unit."""
    weights = made("normal", (40, 30), "float32")
    return {
        "empty": made("zeros", (0, 3), "float32"),
        "float": weights,
        "rows": made("narrower", (64, 48), "float32", 3),
        "positive": made("positive", (40, 30), "float64"),
        "pruned": made("pruned", (40, 30), "bfloat16"),
        "palette": made("clustered", (40, 30), "float64"),
        "grid": made("grid", (70, 70), "float32", 1),
        "channels": made("grid_by_channel", (30, 200), "float32", 2),
        "tied": weights,
        "near": made("far_away", (300,), "int64", 1),
        "far": made("patterns", (50, 6), "uint64"),
        "raw": made("normal", (9,), "float64"),
        "bytes": made("patterns", (100,), "uint8"),
        "nibbles": made("patterns", (10, 10), "int4"),
        "bool": made("patterns", (50,), "bool"),
        "scalar": made("special", (), "float16"),
        "plain": made("ternary", (20, 20), "float32"),
        "repeated": np.concatenate([weights, -weights[::-1, ::-1]]),
    }


def lossless(**options: Any) -> bytes:
    """Return the bitstream of `lossless_model`."""
    return nnr.encode(lossless_model(), exact=True, **options)


def lossless_update(**options: Any) -> bytes:
    """Return an update of tensors of `lossless_model`: differences of bit patterns, and new tensors with codes."""
    new = lossless_model()
    base = {name: tensor for name, tensor in new.items() if name not in ("palette", "raw", "far")}
    base |= {name: np.nextafter(new[name], np.float32(1)) for name in ("float", "grid", "scalar")}
    return nnr.encode_update(base, new, lossless=True, **options)


def record(data: bytes) -> bytes:
    """Return the inflated side-information record of a bitstream."""
    found: list[bytes] = []
    with_record(data, lambda text: found.append(text) or text)
    (text,) = found
    return text


def with_record(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return a copy with another side-information record, deflated."""
    units = list(nnr.units(data))
    for unit in units:
        if unit.type_name == "NNR_TPL" and unit.header.detail.topology_storage_format == RECORD:
            text = bytes(unit.payload.topology_data)
            is_deflated = unit.header.detail.topology_compression_format == NNR_DFL
            text = zlib.decompress(text) if is_deflated else text.removesuffix(b"\0")
            unit.header.detail.topology_compression_format = NNR_DFL
            unit.payload.topology_data = zlib.compress(change(text))
    return nnr.write_units(units)


def canonical(value: Any) -> bytes:
    """Return JSON in the form of the record, so that only the value can be wrong."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


#: Replacements of any value of a record.
HOSTILE: tuple[Any, ...] = (
    *(0, 1, 2, 7, 8, 23, 31, 32, 33, 63, 64, 65, 127, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1),
    *(
        -1,
        -(2**31),
        -(2**63),
        10**19,
        10**25,
        True,
        False,
        None,
        1.5,
        "",
        "float",
        "#bits",
        "float#bits",
        "float#levels",
        "delta",
        "raw",
        "AAAA",
        "repeats",
    ),
    *("AAAA", "A" * 400, "palette", "integer", "grid", "bool", "int4", "uint64", "float64", "bfloat16", "\ud800", "\0"),
    *([], [0], [1], [40, 30], [30, 40], [1200], [2**31, 2**31], [2**62, 4], [0, 2**63], [1] * 33, {}),
    {"kind": "raw"},
    {"kind": "delta"},
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield paths to everything in a JSON value."""
    if path:
        yield path
    for key, member in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        yield from places(member, (*path, key))


def changed(value: Any, path: tuple[Any, ...], what: Any) -> Any:
    """Return a copy with another value at a path; ``...`` removes the value."""
    copy = json.loads(json.dumps(value))
    at = copy
    for key in path[:-1]:
        at = at[key]
    if what is ...:
        del at[path[-1]]
    else:
        at[path[-1]] = what
    return copy


def mutated(text: bytes, rnd: random.Random) -> bytes:
    """Return a record with one or several changes that keep its JSON canonical where possible."""
    value = json.loads(text)
    for _ in range(rnd.choice([1, 1, 1, 2, 4])):
        all_places = list(places(value))
        if not all_places:
            break
        path = rnd.choice(all_places)
        kind = rnd.randrange(6)
        what: Any = rnd.choice(HOSTILE)
        if kind == 0:
            what = ...
        elif kind <= 2:  # of another place, at the same depth if possible
            other = rnd.choice([place for place in all_places if len(place) == len(path)])
            what = value
            for key in other:
                what = what[key]
        elif kind == 3:
            path = (
                *path[:-1],
                rnd.choice(["w", "float", "rows", "bits", "unit", "index", "same_as", "x" * 5000, "axis", "code"]),
            )
        try:
            value = changed(value, path, what)
        except (TypeError, IndexError):  # the list has no such place
            continue
    return canonical(value)


def all_ways(data: bytes, limits: Limits = STRICT, part: slice = slice(None)) -> Counter[str]:
    """Return the outcome of all ways of reading, ``valid`` or the name of the NnrError; warnings are errors.

    ``part`` selects some of the ways.
    """

    def stream() -> None:
        decoder = nnr.StreamDecoder(limits=limits)
        for start in range(0, len(data), 1000):
            decoder.feed(data[start : start + 1000])
        decoder.finish()

    def one_by_one() -> None:
        with nnr.open(data, limits=limits) as file:
            errors = Counter[str]()
            for name, info in file.info.items():
                try:
                    assert file[name].shape == info.shape
                    if info.shape and info.parameters:
                        assert file.rows(name, 0, 1).shape == (1, *info.shape[1:])
                except NnrError as error:
                    errors[type(error).__name__] += 1
            assert errors or len(file) == len(list(file))

    ways: tuple[Callable[[], object], ...] = (
        lambda: nnr.decode(data, limits=limits),
        lambda: nnr.decode(data, limits=limits, jobs=2),
        lambda: nnr.decode(data, limits=limits, raw=True),
        lambda: nnr.decode(data, limits=limits, dtype="float32"),
        lambda: nnr.decode(data, limits=limits, allow_missing=True),
        lambda: nnr.UpdateDecoder(limits=limits).decode(data),
        lambda: nnr.inspect(data, limits=limits),
        lambda: nnr.verify(data, limits=limits),
        stream,
        one_by_one,
    )
    outcomes = Counter[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for way in ways[part]:
            try:
                way()
            except NnrError as error:
                assert str(error)
                outcomes[type(error).__name__] += 1
            else:
                outcomes["valid"] += 1
    return outcomes
