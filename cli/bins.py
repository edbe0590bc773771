"""``nnr inspect --bins``: the bins of tensors, one per line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from .errors import say
from .nodes import print_line

if TYPE_CHECKING:
    from nnr_codec.bitstream.units import UnitReader
    from nnr_codec.decoder.bins import TensorBin
    from nnr_codec.decoder.state import UpdateState
    from nnr_codec.decoder.task import NduTask

HEADING = (
    f"{'number':>7} {'element':<30} {'ctxInc':>6} {'bin':>6} {'range':>6} {'offset':>7} {'p0':>5} {'p1':>6}  parameter"
)


def print_bins(
    reader: UnitReader,
    state: UpdateState,
    units: Sequence[int],
    names: Sequence[str],
    everything: bool,
    limit: int,
    style: str | None,
) -> None:
    """Print the bins of one unit or of all units.

    Parameters
    ----------
    reader : UnitReader
        A reader at the start of a bitstream.
    state : UpdateState
        State after the preceding bitstreams.
    units, names : sequence of int, sequence of str
        Unit numbers and globs of tensor names that select the unit.
    everything : bool
        Print all selected units instead of requiring exactly one.
    limit : int
        Maximum number of bins; 0 for all.
    style : str or None
        ``json`` for a list of objects.
    """
    from nnr_codec.decoder.bins import trace_bins

    tasks, first_edition = _tasks(reader, units, names)
    if len(tasks) != 1 and not everything:
        raise click.UsageError(
            f"{len(tasks)} compressed data units match; choose one with --unit or --name, or all with --all"
        )
    printer = _Printer(limit, style == "json")
    try:
        for task in tasks:
            if not printer.more:
                printer.begin(task)
                trace_bins(task, printer, first_edition, state)
    finally:
        printer.end()


def _tasks(reader: UnitReader, units: Sequence[int], names: Sequence[str]) -> tuple[list[NduTask], bool]:
    from nnr_codec.decoder.decode import BitstreamParser
    from nnr_codec.decoder.group import is_first_edition

    parser = BitstreamParser(reader)
    groups = list(parser.groups())
    first_edition = parser.profile == 0 and is_first_edition(groups)
    chosen = [
        task
        for group in groups
        for task in group.tasks
        if (not units or task.unit.index in units)
        and (not names or any(fnmatchcase(name, glob) for name in task.names for glob in names))
    ]
    return chosen, first_edition


class _Printer:
    """Printer of a limited number of bins."""

    def __init__(self, limit: int, as_json: bool) -> None:
        self.limit, self.as_json = limit, as_json
        self.count = 0
        self.more = False
        self.task: NduTask | None = None
        if not as_json:
            print_line(HEADING)

    def begin(self, task: NduTask) -> None:
        """Start a unit."""
        self.task = task
        if not self.as_json:
            print_line(task.label)

    def __call__(self, tensor_bin: TensorBin) -> None:
        from nnr_codec.decoder.bins import StopTracing

        if self.count == self.limit > 0:
            self.more = True
            raise StopTracing
        if self.as_json:
            sys.stdout.write(",\n" if self.count else "[\n")
            sys.stdout.write(json.dumps(self._fields(tensor_bin)))
        else:
            print_line(_line(tensor_bin))
        self.count += 1

    def _fields(self, tensor_bin: TensorBin) -> dict[str, Any]:
        part = tensor_bin.part
        unit = self.task.unit.index if self.task else -1
        return {
            "unit": unit,
            "number": tensor_bin.number,
            "tensor": part.name,
            "role": part.role,
            **tensor_bin.bin._asdict(),
            "parameter": tensor_bin.parameter,
        }

    def end(self) -> None:
        """Finish the output, and report whether bins were omitted."""
        if self.as_json:
            sys.stdout.write("\n]\n" if self.count else "[]\n")
        if self.more:
            say(f"nnr: only the first {self.count:,} bins are shown; raise --bins-limit, or use 0 for all")


def _line(tensor_bin: TensorBin) -> str:
    b, place, state = tensor_bin.bin, "", ""
    context = "end" if b.element == "terminating_one_bit" else "bypass"
    if tensor_bin.parameter is not None:
        role = "" if tensor_bin.part.role == "weight" else tensor_bin.part.role
        place = f"{role}[{', '.join(map(str, tensor_bin.parameter))}]"
    if b.ctx_inc >= 0:
        context, state = str(b.ctx_inc), f"{b.p0:>5} {b.p1:>6}"
    interval = f"{b.ivl_curr_range:>6} {b.ivl_offset:>7}"
    return f"{tensor_bin.number:>7} {b.element:<30} {context:>6} {b.bin:>6} {interval} {state:<12}  {place}".rstrip()
