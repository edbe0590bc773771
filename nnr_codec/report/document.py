"""Report as plain data (docs/guides/reports.md); a changed meaning of a key requires a new version."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ..compare import LossSummary, TensorDifference
from ..config import EncoderConfig, Rule
from ..constants import NNR_PT_INT, NNR_PT_RAW_FLOAT
from ..encoder.tensor_report import TensorReport, TensorStatistics
from ..reduction_steps import Step
from .encoded import EncodeReport, TensorDetails
from .reduced import number

FORMAT, VERSION = "nnr-encode-report", 1

#: Minimum number of levels per distinct level for which their entropy is a meaningful lower bound.
ENOUGH = 8

Document = dict[str, Any]


def as_json(document: Document) -> str:
    """Return the JSON text with one line for each tensor, so that reports can be compared by line."""
    lines = ",\n  ".join(json.dumps(row, allow_nan=False) for row in document["tensors"])
    rest = json.dumps({**document, "tensors": []}, indent=1, allow_nan=False).removesuffix("]\n}")
    return f"{rest}\n  {lines}\n ]\n}}\n" if lines else f"{rest}]\n}}\n"


def document(report: EncodeReport) -> Document:
    """Return the report as plain data. Raise ValueError if it has no statistics."""
    if len(report.details) < len(report.tensors) or not report.overhead:
        raise ValueError("the report has no statistics; use encode_file with statistics=True")
    rows = [_tensor(one, report.details[name]) for name, one in report.tensors.items()]
    return {
        "format": FORMAT,
        "version": VERSION,
        "made_by": {"nnr_codec": report.version, "numpy": np.__version__, "python": platform.python_version()},
        "source": report.source or None,
        "options": _options(report.config) if report.config else None,
        "totals": _totals(report, rows),
        "overhead": report.overhead,
        "seconds": number(report.seconds),
        "steps": [step.document() for step in report.steps],
        "tensors": rows,
    }


def _totals(report: EncodeReport, rows: list[Document]) -> Document:
    difference = report.difference
    bounded = [row for row in rows if is_bounded(row)]
    return {
        "tensors": len(rows),
        "parameters": report.parameters,
        "source_bytes": report.source_bytes,
        "bytes": report.nbytes,
        "overhead_bytes": sum(report.overhead.values()),
        "ratio": number(report.ratio),
        "bits_per_parameter": number(report.bits_per_parameter),
        "entropy_bytes": math.ceil(math.fsum(row["entropy"] * row["parameters"] for row in bounded) / 8),
        "entropy_coded_bytes": sum(row["bytes"] for row in bounded),
        "exact_tensors": sum(row["exact"] is True for row in rows),
        "snr_db": number(difference.snr),
        "max_error": number(max((one.largest for one in difference.tensors.values()), default=0.0)),
        "worst_tensor": difference.worst,
        **loss_facts(report.loss),
    }


def loss_facts(loss: LossSummary) -> Document:
    """Return the SNR of matrices and vectors, the worst matrix, and the share of zeroed values."""
    return {
        "matrices_snr_db": number(loss.matrices),
        "vectors_snr_db": number(loss.vectors),
        "worst_matrix": loss.worst,
        "worst_matrix_snr_db": number(loss.worst_snr),
        "zeroed": number(loss.zeroed),
    }


def is_bounded(row: Document) -> bool:
    """Return whether the entropy of a tensor's levels is a meaningful bound: false if most levels occur only once."""
    return row["levels"] is not None and ENOUGH * row["levels"]["distinct"] <= row["parameters"]


def _tensor(one: TensorReport, details: TensorDetails) -> Document:
    statistics, difference = one.statistics, details.difference
    n = math.prod(details.shape)
    levels = statistics.levels if statistics else None
    entropy = levels.entropy + statistics.other_bits / n if statistics and levels and n else None
    return {
        "name": one.name,
        "shape": list(details.shape),
        "type": details.type,
        "parameters": n,
        "source_bytes": one.source_bytes,
        "bytes": one.unit_bytes,
        "bits_per_parameter": number(8 * one.unit_bytes / n) if n else None,
        "entropy": number(entropy),
        "coding": _coding(statistics, details, n),
        "code": statistics.code or None if statistics else None,
        "same_as": details.same_as or None,
        **_distortion(difference),
        "tools": _tools(statistics) if statistics else None,
        "levels": _levels(statistics) if statistics else None,
        "seconds": number(one.seconds),
    }


def _coding(statistics: TensorStatistics | None, details: TensorDetails, n: int) -> str:
    if statistics is None:
        return "tied" if details.same_as else "empty" if not n else "folded"
    if statistics.payload_type == NNR_PT_RAW_FLOAT:
        return "raw"
    if statistics.codebook_size:
        return "codebook"
    if statistics.payload_type == NNR_PT_INT:
        return "integer"
    return "dependent" if statistics.dq_flag else "uniform"


def _distortion(difference: TensorDifference | None) -> Document:
    if difference is None:
        return {"exact": None, "snr_db": None, "max_error": None, "rms_error": None, "zeroed": None}
    return {
        "exact": not difference.count,
        "snr_db": number(difference.snr),
        "max_error": number(difference.largest),
        "rms_error": number(difference.rms),
        "zeroed": difference.zeroed,
    }


def _tools(statistics: TensorStatistics) -> Document:
    quantized = bool(statistics.step)
    return {
        "payload_type": statistics.payload_type.name,
        "qp": statistics.qp if quantized else None,
        "step": statistics.step if quantized else None,
        "rate": number(statistics.rate) if quantized else None,
        "dq_flag": statistics.dq_flag,
        "cabac_unary_length_minus1": statistics.cabac_unary_length_minus1 if statistics.levels else None,
        "scan_order": statistics.scan_order,
        "rows_skipped": statistics.rows_skipped,
        "codebook_size": statistics.codebook_size or None,
        "shift_parameter_ids": {str(context): value for context, value in statistics.shift_parameter_ids.items()},
    }


def _levels(statistics: TensorStatistics) -> Document | None:
    if (levels := statistics.levels) is None:
        return None
    histogram = levels.histogram
    return {
        "entropy": number(levels.entropy),
        "other_bits": statistics.other_bits,
        "zeros": levels.zeros,
        "distinct": levels.distinct,
        "least": levels.least,
        "greatest": levels.greatest,
        "histogram": {
            "first": histogram.first,
            "width": histogram.width,
            "counts": list(histogram.counts),
            "below": histogram.below,
            "above": histogram.above,
        },
    }


def _options(config: EncoderConfig) -> Document:
    return {option.name: _plain(getattr(config, option.name)) for option in fields(config)}


def _plain(value: object) -> Any:
    """Return the value of an option in JSON; arrays and objects become descriptions."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return number(float(value))
    if isinstance(value, Step):
        return str(value)
    if isinstance(value, Rule):
        return {"pattern": value.pattern, **_plain(value.options)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return type(value).__name__
