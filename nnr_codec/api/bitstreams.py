"""Functions to inspect and verify bitstreams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import formats
from ..bitstream.summary import UnitInfo, summarise
from ..bitstream.units import Unit, UnitReader
from ..bitstream.units import write_units as write
from ..decoder.texts import session_for
from ..errors import FormatError
from ..limits import Limits

if TYPE_CHECKING:
    from ..bitstream.source import Bitstream
    from ..conformance.report import Report
    from ..formats import TopologySource
    from ..formats.findings import ModelReport
    from .arguments import Source


def units(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: TopologySource | None = None,
) -> Iterator[Unit]:
    """Return the units of a bitstream in order, with headers and parameter sets as structures and payloads as bytes.

    Units may be changed and written with :func:`write_units`.

    Parameters
    ----------
    data, limits, topology_dimensions, topology
        As for :func:`decode`.

    Returns
    -------
    iterator of Unit
        Units are read during iteration, which raises BitstreamError for a malformed unit.
    """
    return iter(UnitReader(data, limits, session_for(topology_dimensions, topology, limits)))


def write_units(
    units: Iterable[Unit],
    *,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: TopologySource | None = None,
) -> bytes:
    """Write a bitstream from units; see :func:`nnr_codec.bitstream.units.write_units`.

    An index (docs/reference/unit-index.md) is written unchanged; remove its unit if others change.
    """
    return write(units, session_for(topology_dimensions, topology, None))


def inspect(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: TopologySource | None = None,
) -> list[UnitInfo]:
    """Return a summary of each unit of a bitstream, from headers only.

    Takes the parameters of :func:`decode`. Raises BitstreamError if a header is malformed.
    """
    return list(summarise(data, limits, session_for(topology_dimensions, topology, limits)))


def verify(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    inputs: Iterable[Bitstream] = (),
    topology: TopologySource | None = None,
) -> Report:
    """Check a bitstream against every requirement of the standard that a program can check; report all violations.

    An NNEF topology, in the bitstream or passed separately, is checked too. For parameters and errors see
    :func:`nnr_codec.conformance.verify.verify`; ``topology`` is as for :func:`decode`.
    """
    from ..conformance.verify import verify as check

    given = formats.topology_of(topology, limits=limits)
    return check(data, limits=limits, topology_dimensions=topology_dimensions, inputs=inputs, topology=given)


def verify_model(source: Source, *, limits: Limits | None = None) -> ModelReport:
    """Check a model of NNEF (1.0.3, or SkriptND), or an OpenVINO IR against opset1.

    The report has up to 100 findings of each rule, and a note about further ones.

    Parameters
    ----------
    source : path, bytes-like or binary file
        NNEF: a directory, a tar, a gzipped tar, or the text of a graph; for a text alone, tensor files are not
        required. SkriptND: a directory with a ``main.sknd``, or this text. OpenVINO: the path of the XML, with the
        ``.bin`` beside it, or the content of the XML.
    limits : Limits, optional
        Resource limits for reading the model.

    Returns
    -------
    ModelReport
        Findings.

    Raises
    ------
    FormatError
        It is not an NNEF, SkriptND or OpenVINO model, or its container is malformed.
    LimitError
        It exceeds the limits.
    OSError
        It cannot be read.
    """
    from ..formats import nnef, openvino, skriptnd
    from ..formats.nnef.validate import validate as validate_nnef
    from ..formats.openvino.validate import validate as validate_ir
    from ..formats.skriptnd.validate import validate as validate_skriptnd

    limits = limits or Limits()
    with formats.opened(source, limits) as file:
        if openvino.recognise(file):
            return validate_ir(file, limits)
        if skriptnd.recognise(file):
            return validate_skriptnd(file, limits)
        if not nnef.recognise(file) and not (isinstance(file, Path) and file.is_dir()):
            raise FormatError("not an NNEF, SkriptND or OpenVINO model")
        return validate_nnef(file, limits)
