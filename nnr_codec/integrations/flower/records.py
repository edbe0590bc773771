"""Records of Flower: coded and plain arrays, also from untrusted clients, and checks that replies can be averaged."""

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
        "the package flwr 1.41 or later is required; pip install 'nnr_codec[flower]'"
    ) from None

#: Logger of Flower.
log = logging.getLogger("flwr")

#: Name of the only array in a coded ArrayRecord, and of the ConfigRecord with instructions for clients.
KEY = "__nnr__"
#: Serialization types of arrays: coded, and Flower's name for numpy arrays.
CODED, PLAIN = "nnr", "numpy.ndarray"

#: Version of the ConfigRecord.
VERSION = 1

#: Names of the ConfigRecords of secure aggregation.
MASKED = ("secaggplus_configs", "secaggplus_state")

#: Maximum number of examples of a client; sums of integers up to this size are exact in float64.
MOST_EXAMPLES = 1 << 53
#: Maximum magnitude of a metric: its weighted sum over a million clients is finite.
MOST_METRIC = 1e280


def refuse_masks(content: Any) -> None:
    """Raise UnsupportedError for messages of secure aggregation, which sums masked integers."""
    if found := [name for name in MASKED if name in content]:
        raise UnsupportedError(
            f"secure aggregation ({found[0]}) masks the values that it adds, which cannot be compressed; "
            "use it without NNRMod and NNRStrategy"
        )


def coded_record(payload: bytes) -> Any:
    """Return the ArrayRecord for a bitstream."""
    return app.ArrayRecord({KEY: app.Array("uint8", (len(payload),), CODED, payload)})


def payload_of(record: Any) -> bytes | None:
    """Return the bitstream in an ArrayRecord, None for plain arrays.

    Raises FormatError for a mixture or an empty record.
    """
    if KEY not in record:
        return None
    array = record[KEY]
    if len(record) != 1:
        raise FormatError(f"the record has arrays besides {KEY!r}")
    if array.stype != CODED:
        raise FormatError(f"{KEY!r} is serialized as {array.stype[:64]!r}, not as {CODED!r}")
    data: bytes = array.data
    return data


def plain_record(tensors: Tensors) -> Any:
    """Return the ArrayRecord of tensors."""
    return app.ArrayRecord({name: app.Array(np.asarray(tensor)) for name, tensor in tensors.items()})


def tensors_of(record: Any) -> dict[str, Array]:
    """Return the tensors of a trusted ArrayRecord. Raise TypeError if it is coded."""
    return {name: array.numpy() for name, array in record.items()}


def digest_of(record: Any) -> str:
    """Return a hash of the arrays and their names."""
    total = sha256()
    for name, array in record.items():
        for part in (name.encode(), array.data):
            total.update(len(part).to_bytes(8, "big"))
            total.update(part)
    return total.hexdigest()


def stranger_tensors(record: Any, base: Tensors) -> dict[str, Array]:
    """Return the tensors of plain arrays from a client, in the order and types of the base.

    Raises FormatError for other names or shapes, for values that are not finite, and for invalid data.
    """
    if other := record.keys() ^ base.keys():
        raise FormatError(f"tensor {min(other)[:64]!r} is in only one of the model and its update")
    read = stranger_reader(record, base)
    return {name: read(name) for name in base}


def stranger_reader(record: Any, base: Tensors) -> Reader:
    """Return a function that reads the tensors of :func:`stranger_tensors` one at a time."""
    return lambda name: _stranger_tensor(name, record[name], base[name])


def _stranger_tensor(name: str, array: Any, base: Array) -> Array:
    """Return one tensor; its header is checked before any allocation."""
    if array.stype != PLAIN:
        raise FormatError(f"tensor {name!r} is serialized as {array.stype[:64]!r}, not as {PLAIN!r}", tensor=name)
    file = BytesIO(array.data)
    numpy_format = np.lib.format
    readers = {(1, 0): numpy_format.read_array_header_1_0, (2, 0): numpy_format.read_array_header_2_0}
    try:
        shape, _, dtype = readers[numpy_format.read_magic(file)](file)
    except (ValueError, KeyError):
        raise FormatError(f"tensor {name!r} is not in the format of numpy", tensor=name) from None
    if shape != base.shape or dtype.kind not in "fiub":
        raise FormatError(f"tensor {name!r} is {dtype} {shape}; expected {base.dtype} {base.shape}", tensor=name)
    if len(array.data) - file.tell() != prod(shape) * dtype.itemsize:
        raise FormatError(
            f"tensor {name!r} has {len(array.data) - file.tell():,} bytes; {dtype} of shape {shape} requires "
            f"{prod(shape) * dtype.itemsize:,}",
            tensor=name,
        )
    tensor = array.numpy()
    check_finite(name, tensor, base)
    tensor = as_type(tensor, base.dtype)
    check_finite(name, tensor, base)  # float64 may exceed float32
    return np.asarray(tensor)


def weight_of(content: Any, weighted_by: str) -> float:
    """Return the weight of a reply. Raise FormatError if it is missing or unusable for averages."""
    metrics = [*content.metric_records.values()]
    if len(metrics) != 1:
        raise FormatError(f"the reply must have one MetricRecord, got {len(metrics)}")
    weight = metrics[0].get(weighted_by)
    if not isinstance(weight, int | float) or not isfinite(weight) or not 0 <= weight <= MOST_EXAMPLES:
        raise FormatError(
            f"{weighted_by!r} of the reply must be a number from 0 to {MOST_EXAMPLES}, got {str(weight)[:40]!a}"
        )
    return float(weight)


def check_metrics(content: Any) -> None:
    """Raise FormatError for a metric that cannot be averaged: NaN, infinity or a magnitude above MOST_METRIC."""
    for record in content.metric_records.values():
        for name, value in record.items():
            values = value if isinstance(value, list) else [value]
            if not all(abs(number) <= MOST_METRIC for number in values):
                raise FormatError(f"metric {name[:64]!r} of the reply is not finite, or is above {MOST_METRIC:g}")


def form_of(content: Any) -> tuple[Any, ...]:
    """Return the names of the records and metrics of a reply, with the lengths of list metrics."""
    metrics = {
        name: tuple(sorted((key, len(value) if isinstance(value, list) else -1) for key, value in record.items()))
        for name, record in content.metric_records.items()
    }
    return (*content.array_records, None, *sorted(metrics.items()))


def common_form(forms: Iterable[tuple[Any, ...]], usual: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    """Return the most frequent form of replies; in a tie, the usual one or the first. None without replies."""
    counts = Counter(forms)
    if not counts:
        return None
    most = max(counts.values())
    return usual if usual is not None and counts[usual] == most else counts.most_common(1)[0][0]


def attribute(strategy: Any, name: str) -> Any:
    """Return an attribute of a strategy, or of a strategy that it wraps; None if there is none."""
    while strategy is not None:
        if hasattr(strategy, name):
            return getattr(strategy, name)
        strategy = getattr(strategy, "strategy", None)
    return None


def mapped(content: Any, records: Mapping[str, Any]) -> Any:
    """Return the content of a message with some records replaced by name."""
    return app.RecordDict({name: records.get(name, record) for name, record in content.items()})
