"""Flower's records: arrays coded and plain, also those of strangers, and replies that can be averaged together."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from importlib import import_module
from io import BytesIO
from math import isfinite, prod
from typing import Any

import numpy as np

from ...errors import FormatError, MissingDependencyError, UnsupportedError
from ...model import Array
from ..rounds import Reader, Tensors, as_type, check_finite

try:
    app: Any = import_module("flwr.app")
    strategies: Any = import_module("flwr.serverapp.strategy")
except ImportError:
    raise MissingDependencyError(
        "this needs the package flwr, 1.41 or later: pip install 'nnr_codec[flower]'"
    ) from None

#: Flower's own logger.
log = logging.getLogger("flwr")

#: Name of the one array of a coded ArrayRecord, and of the ConfigRecord that tells clients what to do.
KEY = "__nnr__"
#: How its data are serialized; Flower's name of numpy's.
CODED, PLAIN = "nnr", "numpy.ndarray"

#: Of what the ConfigRecord tells.
VERSION = 1

#: ConfigRecords of secure aggregation.
MASKED = ("secaggplus_configs", "secaggplus_state")

#: More examples no client has; sums of so many are exact.
MOST_EXAMPLES = 1 << 53
#: Largest magnitude of a metric: weighted by examples, the sum of a million clients is finite.
MOST_METRIC = 1e280


def refuse_masks(content: Any) -> None:
    """Raise UnsupportedError for messages of secure aggregation, which adds up masked integers of its own."""
    if found := [name for name in MASKED if name in content]:
        raise UnsupportedError(
            f"secure aggregation ({found[0]}) masks what it adds up, which leaves nothing to compress: "
            "use it without NNRMod and NNRStrategy"
        )


def coded_record(payload: bytes) -> Any:
    """The ArrayRecord that a bitstream is sent in."""
    return app.ArrayRecord({KEY: app.Array("uint8", (len(payload),), CODED, payload)})


def payload_of(record: Any) -> bytes | None:
    """The bitstream in an ArrayRecord; None where it has plain arrays. FormatError where it has both, or neither."""
    if KEY not in record:
        return None
    array = record[KEY]
    if len(record) != 1:
        raise FormatError(f"beside {KEY!r} there are other arrays")
    if array.stype != CODED:
        raise FormatError(f"{KEY!r} is serialized as {array.stype[:64]!r}, not as {CODED!r}")
    data: bytes = array.data
    return data


def plain_record(tensors: Tensors) -> Any:
    """The ArrayRecord of tensors."""
    return app.ArrayRecord({name: app.Array(np.asarray(tensor)) for name, tensor in tensors.items()})


def tensors_of(record: Any) -> dict[str, Array]:
    """The tensors of an ArrayRecord of our own side; TypeError where it is coded."""
    return {name: array.numpy() for name, array in record.items()}


def digest_of(record: Any) -> str:
    """A hash of the arrays and their names."""
    total = sha256()
    for name, array in record.items():
        for part in (name.encode(), array.data):
            total.update(len(part).to_bytes(8, "big"))
            total.update(part)
    return total.hexdigest()


def stranger_tensors(record: Any, base: Tensors) -> dict[str, Array]:
    """The tensors of plain arrays that a client sent, in the order and types of the base.

    Raises FormatError for other names or shapes, for values that are not finite, and for data that are none.
    """
    if other := record.keys() ^ base.keys():
        raise FormatError(f"tensor {min(other)[:64]!r} is in one of the model and its update only")
    read = stranger_reader(record, base)
    return {name: read(name) for name in base}


def stranger_reader(record: Any, base: Tensors) -> Reader:
    """What gives the tensors of :func:`stranger_tensors` one at a time."""
    return lambda name: _stranger_tensor(name, record[name], base[name])


def _stranger_tensor(name: str, array: Any, base: Array) -> Array:
    """One tensor; what its header says is checked before anything is allocated."""
    if array.stype != PLAIN:
        raise FormatError(f"tensor {name!r} is serialized as {array.stype[:64]!r}, not as {PLAIN!r}", tensor=name)
    file = BytesIO(array.data)
    numpy_format = np.lib.format
    readers = {(1, 0): numpy_format.read_array_header_1_0, (2, 0): numpy_format.read_array_header_2_0}
    try:
        shape, _, dtype = readers[numpy_format.read_magic(file)](file)
    except (ValueError, KeyError):
        raise FormatError(f"tensor {name!r} is not in numpy's format", tensor=name) from None
    if shape != base.shape or dtype.kind not in "fiub":
        raise FormatError(f"tensor {name!r} is {dtype} {shape}; expected is {base.dtype} {base.shape}", tensor=name)
    if len(array.data) - file.tell() != prod(shape) * dtype.itemsize:
        raise FormatError(f"tensor {name!r} of shape {shape} has {len(array.data) - file.tell()} bytes", tensor=name)
    tensor = array.numpy()
    check_finite(name, tensor, base)
    tensor = as_type(tensor, base.dtype)
    check_finite(name, tensor, base)  # float64 that float32 cannot hold
    return np.asarray(tensor)


def weight_of(content: Any, weighted_by: str) -> float:
    """What a reply counts for; FormatError where it does not say, or not with a number that averages can take."""
    metrics = [*content.metric_records.values()]
    if len(metrics) != 1:
        raise FormatError(f"it has {len(metrics)} MetricRecords, not one")
    weight = metrics[0].get(weighted_by)
    if not isinstance(weight, int | float) or not isfinite(weight) or not 0 <= weight <= MOST_EXAMPLES:
        raise FormatError(f"its {weighted_by!r} is no number of examples")
    return float(weight)


def check_metrics(content: Any) -> None:
    """Raise FormatError for a metric that makes the mean useless: NaN, infinity or a magnitude above MOST_METRIC."""
    for record in content.metric_records.values():
        for name, value in record.items():
            values = value if isinstance(value, list) else [value]
            if not all(abs(number) <= MOST_METRIC for number in values):
                raise FormatError(f"its metric {name[:64]!r} is not finite, or above {MOST_METRIC:g}")


def form_of(content: Any) -> tuple[Any, ...]:
    """Names of the records and metrics of a reply, with the lengths of those metrics that are lists."""
    metrics = {
        name: tuple(sorted((key, len(value) if isinstance(value, list) else -1) for key, value in record.items()))
        for name, record in content.metric_records.items()
    }
    return (*content.array_records, None, *sorted(metrics.items()))


def common_form(forms: Iterable[tuple[Any, ...]], usual: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """The form that most replies have; of those that as many have the usual one, or the first. None of none."""
    counts = Counter(forms)
    if not counts:
        return None
    most = max(counts.values())
    return usual if usual is not None and counts[usual] == most else counts.most_common(1)[0][0]


def attribute(strategy: Any, name: str) -> Any:
    """An attribute of a strategy, or of the one that it wraps; None where none of them has it."""
    while strategy is not None:
        if hasattr(strategy, name):
            return getattr(strategy, name)
        strategy = getattr(strategy, "strategy", None)
    return None


def mapped(content: Any, records: Mapping[str, Any]) -> Any:
    """The content of a message with some records in the place of those of their names."""
    return app.RecordDict({name: records.get(name, record) for name, record in content.items()})
