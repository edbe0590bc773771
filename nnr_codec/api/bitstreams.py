"""Looking into bitstreams, and checking them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import formats
from ..bitstream.summary import UnitInfo, summarise
from ..bitstream.units import Unit, UnitReader
from ..bitstream.units import write_units as write
from ..errors import FormatError
from ..limits import Limits
from .decoding import session_for

if TYPE_CHECKING:
    from ..bitstream.nodes import UnitNode
    from ..bitstream.source import Bitstream
    from ..conformance.report import Report
    from ..decoder.tools import Tool
    from ..difference import BitstreamDifference
    from ..formats.nnef.rules import ModelReport
    from .arguments import Given, Source


def units(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
) -> Iterator[Unit]:
    """The units of a bitstream in order, headers and parameter sets as structures, payloads as bytes.

    They may be changed, and written by :func:`write_units`.
    """
    return iter(UnitReader(data, limits, session_for(topology_dimensions, topology, limits)))


def write_units(
    units: Iterable[Unit],
    *,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
) -> bytes:
    """The bitstream of units; see :func:`nnr_codec.bitstream.units.write_units`."""
    return write(units, session_for(topology_dimensions, topology, None))


def inspect(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
) -> list[UnitInfo]:
    """Facts about each unit of a bitstream, from headers alone."""
    return list(summarise(data, limits, session_for(topology_dimensions, topology, limits)))


def tree(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
    inferred: bool = False,
    payloads: bool = False,
) -> list[UnitNode]:
    """The syntax elements of a bitstream, a tree for each unit; the units of an aggregate are in its tree.

    Parameters
    ----------
    data, limits, topology_dimensions, topology
        As for :func:`decode`.
    inferred : bool
        Add elements that are not present and have an inferred value.
    payloads : bool
        Add what precedes the levels in payloads.

    Raises
    ------
    BitstreamError, MissingReferenceError
        The bitstream is malformed; :func:`~nnr_codec.bitstream.tree.trees` gives what can be read of it.
    """
    from ..decoder import tools

    return tools.tree(
        data,
        limits=limits,
        topology_dimensions=topology_dimensions,
        inferred=inferred,
        payloads=payloads,
        wire=formats.wiring,
        topology=formats.topology_of(topology, limits=limits),
    )


def requirements(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
) -> list[Tool]:
    """The tools that a decoder needs for a bitstream; parameters and errors are those of :func:`tree`.

    Of payloads only what precedes the levels is decoded, and in a block the levels before it.
    """
    from ..decoder import tools

    given = formats.topology_of(topology, limits=limits)
    return tools.requirements(
        data, limits=limits, topology_dimensions=topology_dimensions, wire=formats.wiring, topology=given
    )


def diff(
    a: Bitstream,
    b: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    topology: Given | None = None,
) -> BitstreamDifference | None:
    """The first difference of two bitstreams: syntax element, or payload, and the first value that comes out otherwise.

    nnr_unit_size follows from what a unit holds; it is no difference as long as something else is.

    Parameters and errors are those of :func:`decode`, except that tensors which cannot be decoded are told in ``note``.

    Returns
    -------
    BitstreamDifference or None
        None when the bitstreams are the same.
    """
    from ..difference import diff as compare

    given = formats.topology_of(topology, limits=limits)
    return compare(a, b, limits=limits, topology_dimensions=topology_dimensions, wire=formats.wiring, topology=given)


def verify(
    data: Bitstream,
    *,
    limits: Limits | None = None,
    topology_dimensions: Mapping[str, Sequence[int]] | None = None,
    inputs: Iterable[Bitstream] = (),
    topology: Given | None = None,
) -> Report:
    """Check a bitstream against every rule of the standard that a program can check, and report all violations.

    See :func:`nnr_codec.conformance.verify.verify`; an NNEF topology, in the bitstream or given, is read as well.
    """
    from ..conformance.verify import verify as check

    given = formats.topology_of(topology, limits=limits)
    return check(data, limits=limits, topology_dimensions=topology_dimensions, inputs=inputs, topology=given)


def verify_model(source: Source, *, limits: Limits | None = None) -> ModelReport:
    """Check an NNEF model against the rules of NNEF 1.0.3, chapter 6, and report all that is wrong.

    Parameters
    ----------
    source : path, bytes-like or binary file
        A directory, a tar, a gzipped tar, or the text of a graph, of which alone no tensor files are asked for.
    limits : Limits, optional
        What the model may cost.

    Returns
    -------
    ModelReport
        Shapes are not propagated through operations.

    Raises
    ------
    FormatError
        It is no NNEF model, or its container is malformed.
    LimitError
        It asks for more than the limits permit.
    OSError
        It cannot be read.
    """
    from ..formats.nnef import recognise
    from ..formats.nnef.validate import validate

    with formats.opened(source, limits or Limits()) as file:
        if not recognise(file) and not (isinstance(file, Path) and file.is_dir()):
            raise FormatError("not an NNEF model")
        return validate(file, limits)
