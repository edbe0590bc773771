"""Report of :func:`nnr_codec.encode_file`, and measurement of the decoded result."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from html import escape

import numpy as np

from ..compare import LossSummary, ModelDifference, TensorDifference, compare_tensors, summarized
from ..config import EncoderConfig
from ..constants import NNR_NDU, NnrUnitType
from ..encoder.prepared import Prepared
from ..encoder.tensor_report import TensorReport
from ..files import output_file
from ..limits import Limits
from ..model import Array, source_size
from .reduced import StepReport

#: File extensions of reports, and the methods of EncodeReport that render them.
ENDINGS = {".json": "to_json", ".html": "to_html"}


@dataclass(frozen=True)
class TensorDetails:
    """Source tensor, and its difference from the decoded tensor.

    Parameters
    ----------
    shape : tuple of int
    type : str
        Name of the :class:`~nnr_codec.dtypes.StoredType`.
    same_as : str
        Tensor to which it is tied; empty if there is none.
    difference : TensorDifference or None
        None for a tensor that is not decoded separately: a factor, or a weight with its scaling.
    """

    shape: tuple[int, ...]
    type: str
    same_as: str = ""
    difference: TensorDifference | None = None


@dataclass
class EncodeReport:
    """Result of :func:`nnr_codec.encode_file`.

    Parameters
    ----------
    source_bytes : int
        Size of the tensors in bytes as the source stores them, before any step of ``config.reduce``; tied tensors count
        once (docs/guides/reports.md).
    parameters : int
        Number of parameters, counted in the same way.
    nbytes : int
        Size of the bitstream in bytes.
    seconds : float
        Wall time in seconds, including reading and writing, but not the measurements for the report.
    tensors : dict of str to TensorReport
    source : str
        Name of the model file; empty if there is none.
    config : EncoderConfig or None
        Options of the encoding.
    version : str
        Version of this package.
    details : dict of str to TensorDetails
        Details by tensor; empty without ``statistics=True``.
    overhead : dict of str to int
        Size of the units without tensors in bytes, by the names of Table 3; empty without ``statistics=True``.
    steps : list of StepReport
        Effects of the steps of ``config.reduce``.
    """

    source_bytes: int = 0
    parameters: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    tensors: dict[str, TensorReport] = field(default_factory=dict)
    source: str = ""
    config: EncoderConfig | None = None
    version: str = ""
    details: dict[str, TensorDetails] = field(default_factory=dict)
    overhead: dict[str, int] = field(default_factory=dict)
    steps: list[StepReport] = field(default_factory=list)

    def __repr__(self) -> str:
        of = f" of {self.source}" if self.source else ""
        sizes = f"{self.source_bytes:,} -> {self.nbytes:,} bytes" + (
            f", {100 * self.ratio:.2f} %" if self.nbytes else ""
        )
        return f"<EncodeReport{of}: {len(self.tensors):,} tensors, {sizes}>"

    def _repr_html_(self) -> str:
        """Return the page of the report in a frame for notebooks; without statistics, a line of text."""
        if not self.details:
            return escape(repr(self))
        return f'<iframe srcdoc="{escape(self.to_html())}" style="width: 100%; height: 50rem; border: 0"></iframe>'

    @property
    def ratio(self) -> float:
        """``nbytes`` divided by ``source_bytes``."""
        return self.nbytes / self.source_bytes if self.source_bytes else float("nan")

    @property
    def bits_per_parameter(self) -> float:
        """Bits of the bitstream, including headers and topology, per parameter."""
        return 8 * self.nbytes / self.parameters if self.parameters else float("nan")

    @property
    def difference(self) -> ModelDifference:
        """Differences between the tensors and their decoded values, for tensors that are decoded separately."""
        found = {name: one.difference for name, one in self.details.items()}
        return ModelDifference({name: one for name, one in found.items() if one is not None})

    @property
    def loss(self) -> LossSummary:
        """Summary of the errors of matrices and vectors; with details, of the decoded tensors."""
        if self.details:
            return self.difference.loss
        return summarized({name: one.loss for name, one in self.tensors.items() if one.loss})

    def to_json(self) -> str:
        """Return the report as JSON (docs/guides/reports.md). Raise ValueError if it has no statistics."""
        from .document import as_json, document

        return as_json(document(self))

    def to_html(self) -> str:
        """Return the report as a self-contained HTML page. Raise ValueError if it has no statistics."""
        from .document import document
        from .page import page

        return page(document(self))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the report in the format of the file extension, ``.json`` or ``.html``; the file appears complete or
        not at all.

        Raises ValueError for another extension or without statistics, and the
        FileExistsError of :func:`nnr_codec.files.output_file`.
        """
        content = self.render(path)
        with output_file(path, overwrite=overwrite) as file:
            file.write(content)

    def render(self, path: str | os.PathLike[str]) -> bytes:
        """Return the content of a file with this name. Raise ValueError as :meth:`save` does."""
        ending = os.path.splitext(os.fspath(path))[1].lower()
        if ending not in ENDINGS:
            raise ValueError(f"{os.fspath(path)}: the name of a report must end in {' or '.join(ENDINGS)}")
        text: str = getattr(self, ENDINGS[ending])()
        return text.encode()


class Notes:
    """Writer of tensor reports into an EncodeReport, with the names of the caller's model.

    Parameters
    ----------
    prepared : Prepared
        The model as encoded and as restored.
    report : EncodeReport
    """

    def __init__(self, prepared: Prepared, report: EncodeReport) -> None:
        self._restored, self._factors, self._report = prepared.restored.tensors, prepared.factors, report
        report.source_bytes, report.parameters = source_size(prepared.source or prepared.restored)
        self._held: dict[str, TensorReport] = {}

    def take(self, tensor: TensorReport) -> bool:
        """Add a tensor report; the report of a decomposed weight follows its factors and includes their sizes.

        Returns whether the caller's model has the tensor. The size of a factor or new scale counts for its weight.
        """
        weight, report = self._factors.get(tensor.name), self._report
        if weight is not None:
            held = self._held.setdefault(weight, replace(tensor, unit_bytes=0, seconds=0.0, loss=None))
            nbytes, seconds = held.unit_bytes + tensor.unit_bytes, held.seconds + tensor.seconds
            self._held[weight] = replace(held, unit_bytes=nbytes, seconds=seconds)
        if tensor.name not in self._restored:
            return False
        if tensor.name in self._held:
            both = self._held.pop(tensor.name)
            kept = both.statistics and replace(both.statistics, levels=None, rows_skipped=None, shift_parameter_ids={})
            tensor = replace(tensor, unit_bytes=both.unit_bytes, seconds=both.seconds, statistics=kept)
        report.tensors[tensor.name] = tensor
        return True


class Witness:
    """Decoder of units during writing that adds the differences from the source tensors to a report.

    Parameters
    ----------
    prepared : Prepared
        The model as encoded and as restored.
    report : EncodeReport
    """

    def __init__(self, prepared: Prepared, report: EncodeReport) -> None:
        from ..decoder.stream import StreamDecoder

        self._model, self._report, self._products = prepared.restored, report, prepared.products
        apart = report.config is not None and report.config.topology == "external" and bool(prepared.wiring.shapes)
        self._decoder = StreamDecoder(
            limits=Limits.unlimited(),
            allow_missing=True,
            topology=self._model.topology if apart else None,
        )
        self._overhead: Counter[str] = Counter()
        self._found: dict[str, TensorDetails] = {}
        self.seconds = 0.0

    def take(self, unit: bytes) -> None:
        """Decode the next unit."""
        started = time.perf_counter()
        kind = unit[4 if unit[0] & 0x80 else 2] >> 2  # nnr_unit_type, after nnr_unit_size (6.3.2)
        if kind != NNR_NDU:
            self._overhead[NnrUnitType(kind).name] += len(unit)
        for name, tensor in self._decoder.feed(unit):
            self._compare(name, tensor)
        self.seconds += time.perf_counter() - started

    def finish(self) -> None:
        """Complete the details of the report at the end of the bitstream."""
        started = time.perf_counter()
        for name, tensor in self._decoder.finish():
            self._compare(name, tensor)
        for name in self._model:
            self._report.details[name] = self._found.get(name) or self._details(name)
        self._report.overhead = dict(self._overhead)
        self.seconds += time.perf_counter() - started

    def _compare(self, name: str, tensor: Array) -> None:
        if name in self._model.tensors and name not in self._products:
            self._found[name] = self._details(name, tensor)

    def _details(self, name: str, decoded: Array | None = None) -> TensorDetails:
        array = np.asarray(self._model[name])
        record = self._decoder.side.tensors.get(name)
        found = compare_tensors(array, decoded) if decoded is not None and decoded.shape == array.shape else None
        return TensorDetails(array.shape, array.dtype.name, record.same_as if record else "", found)
