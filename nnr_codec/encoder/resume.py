"""Resumption of an encoding: its resolved options and finished units are records of a checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from ..compare import Loss
from ..config import EncoderConfig
from ..constants import PayloadType
from ..model import Array
from ..parallel.checkpoint import Checkpoint, Record
from .coded_unit import CodedUnit
from .prepared import Prepared
from .tensor_report import Histogram, LevelStatistics, TensorStatistics
from .tensor_tasks import Pool, TensorReader, TensorTask

#: Options without JSON values; resolving goals does not change them.
_GIVEN = ("sensitivity", "hessians", "performance")


class Resumption:
    """Checkpoint of one encoding. A resumed run plans again, but does not code finished units again.

    All tensors are read once to compute digests.
    """

    def __init__(
        self, checkpoint: Checkpoint, prepared: Prepared, config: EncoderConfig, read: TensorReader, pool: Pool
    ) -> None:
        self._checkpoint, self._pool, model = checkpoint, pool, prepared.model
        calls = [TensorTask(_digest, read, (name,), (), read.nbytes([name])) for name in model.tensors]
        about = config.sensitivity or {}, config.hessians or {}
        self._about = checkpoint.key(
            replace(
                config, performance=None, overrides={name: dict(config.overrides[name]) for name in config.overrides}
            ),
            [[(name, _digests(of[name])) for name in of] for of in about],
            list(zip(model.tensors, pool.run(calls), strict=True)),
            model.blocks,
            model.aliases,
            prepared.wiring,
            sorted(prepared.scales),
            sorted(prepared.fitted),
            prepared.decomposed,
        )
        self._settled = checkpoint.key("settled", self._about)

    def settled(self, config: EncoderConfig, settle: Callable[[], EncoderConfig]) -> EncoderConfig:
        """Return the options without goals from the checkpoint, or else from a function."""
        record = self._checkpoint.get(self._settled)
        if record:
            return replace(config, **record[0])
        found = settle()
        names = [field.name for field in fields(config) if field.name not in _GIVEN]
        changed = {name: getattr(found, name) for name in names if getattr(found, name) != getattr(config, name)}
        self._checkpoint.put(self._settled, changed)
        return found

    def units(
        self, calls: Sequence[TensorTask[CodedUnit]], before: Sequence[bytes], statistics: bool
    ) -> Iterator[CodedUnit]:
        """Yield the coded units in order. The key of each record covers the bytes of the units in ``before``."""
        about = self._checkpoint.key(self._about, hashlib.sha256(b"".join(before)).digest(), statistics)
        keys = [self._checkpoint.key("unit", about, index) for index in range(len(calls))]
        self._checkpoint.only({self._settled, *keys})
        return self._checkpoint.run(self._pool, calls, keys, _pack, _unpack)


def _pack(coded: CodedUnit) -> Record:
    value = asdict(coded)
    return value, [memoryview(unit) for unit in value.pop("units")]


def _unpack(record: Record) -> CodedUnit:
    value, units = record
    statistics = {name: _statistics(**one) for name, one in value["statistics"].items()}
    losses = {name: Loss(**one) for name, one in value["losses"].items()}
    return CodedUnit([bytes(unit) for unit in units], value["seconds"], value["least_bytes"], losses, statistics)


def _statistics(
    payload_type: int, shift_parameter_ids: dict[str, int], levels: dict[str, Any] | None, **others: Any
) -> TensorStatistics:
    """Return statistics from JSON, which lacks tuples and enumerations and has only string keys."""
    if levels:
        histogram = {**levels["histogram"], "counts": tuple(levels["histogram"]["counts"])}
        levels = {**levels, "histogram": Histogram(**histogram)}
    return TensorStatistics(
        payload_type=PayloadType(payload_type),
        shift_parameter_ids={int(context): value for context, value in shift_parameter_ids.items()},
        levels=LevelStatistics(**levels) if levels else None,
        **others,
    )


def _digests(given: Any) -> list[bytes]:
    """Return the digests of an array, or of a pair of arrays or None."""
    return [_digest([np.asarray(part)]) for part in (given if isinstance(given, tuple) else (given,))]


def _digest(arrays: list[Array]) -> bytes:
    """Return the digest of type, shape and items of an array."""
    (array,) = arrays
    digest = hashlib.sha256(f"{array.dtype.name}{array.shape}".encode())
    if array.dtype.hasobject:
        digest.update(repr(array.tolist()).encode())
    else:
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.digest()
