"""One bitstream, unit by unit and then as a whole: checked, decoded, and checked again."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..bitstream.units import Unit, UnitReader
from ..constants import NNR_NDU
from ..decoder.group import Group, is_first_edition
from ..decoder.pruning import PruningWarning
from ..decoder.reconstruct import Rec, reconstruct
from ..decoder.state import node_key
from ..decoder.task import NduTask
from ..errors import ElementError, LimitError, NnrError
from ..limits import Budget, Limits
from ..model import Array, Topology
from ..syntax import Session
from .digest import TensorDigest
from .findings import Findings
from .requirements import END_CHECKS, TENSOR_CHECKS, UNIT_CHECKS, Checked, History, Seen, notes_on
from .walk import Parser


class BitstreamVerifier:
    """Takes the units of a bitstream in order, :meth:`end` after the last.

    Parameters
    ----------
    findings : Findings
        Where what is found goes.
    limits : Limits
    session : Session
        What the units see; changed by :meth:`take`.
    history : History
        Of the bitstreams before it.
    labels : callable or None
        The labels of the variables of an NNEF topology.
    """

    def __init__(
        self,
        findings: Findings,
        limits: Limits,
        session: Session,
        history: History,
        labels: Callable[[Topology], Iterable[str]] | None,
    ) -> None:
        self.findings, self.limits, self.session = findings, limits, session
        self.checked = Checked(limits, history, labels)
        self.parser = Parser(UnitReader(b"", limits, session))
        self.groups: list[Group] = []
        self.budgets = Budget(limits), Budget(limits)  # of tensors as coded and as updated
        # A parameter occurs once in a bitstream, so that no tensor sees what another leaves.
        self.after = replace(
            history,
            state=history.state.fork(),
            names=dict(history.names),
            digests=set(history.digests),
            bitstreams=history.bitstreams + 1,
        )
        self.scratch = history.state.fork()

    @property
    def started(self) -> bool:
        """Whether there was a unit."""
        return self.parser.started

    def take(self, unit: Unit) -> Seen:
        """Check the next unit that can be read."""
        header = unit.header
        seen = self.checked.seen[unit.index] = Seen(unit, replace(self.session))
        try:
            if header.nnr_unit_type == NNR_NDU:
                seen.names = tuple(self.session.names(unit.ndu))
            groups = list(self.parser.take(unit))
            if any(group.first.role == "h" for group in groups):
                raise ElementError(f"H of {seen.names[0]!r} comes without a G that can be read (6.4.3.7)")
            self.groups += groups
        except NnrError as error:
            self.parser.drop(unit, seen.names)
            self.findings.refuse(error, unit.index, unit.label(list(seen.names)), seen)
        self.parser.started = True  # one complaint about the first unit is enough
        for rule, types, check in UNIT_CHECKS:
            if not types or header.nnr_unit_type in types:
                self.findings.add(rule, check(self.checked, seen), seen)
        self.findings.report.notes += notes_on(unit)
        try:
            self.session.activate(header, unit.structure, unit.depth)
        except NnrError as error:
            self.findings.refuse(error, unit.index, unit.label(), seen)
        return seen

    def end(self) -> History:
        """Decode the tensors and check the bitstream as a whole; returns what it leaves."""
        checked, started, notes = self.checked, self.parser.started, self.findings.report.notes
        try:
            self.parser.finish()
        except NnrError as error:
            self.findings.refuse(error, None, "")
        checked.topology = self.parser.topology
        if started and self.parser.profile == 0 and self.groups:
            checked.first_edition = is_first_edition(self.groups)
            edition = "as software of the first edition wrote it" if checked.first_edition else "by the text of 2024"
            notes.append(f"profile 0 was read {edition} (errata K4)")
        if self.session.mps_parent_signalling_enabled_flag and not checked.history.bitstreams:
            notes.append("this is an update, and the bitstreams before it were not given")
        self.plan_pruning()
        for group in self.groups:
            self.tensor(group)
        for rule, check in END_CHECKS:
            self.findings.add(rule, check(checked), None)
        try:
            self.parser.check_complete(lambda _: checked.variables)
        except NnrError as error:
            self.findings.refuse(error, None, "")
        return self.after

    def plan_pruning(self) -> None:
        """Find out what pruning information does to the tensors."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", PruningWarning)
            try:
                self.parser.plan_pruning()
            except NnrError as error:
                self.findings.refuse(error, None, "")
        for warning in told:
            self.findings.refuse(ElementError(str(warning.message)), None, "")

    def tensor(self, group: Group) -> None:
        """Decode and check one tensor or block."""
        last = self.checked.seen[group.tasks[-1].unit.index]
        try:
            recs, tensors = self.decode(group)
        except NnrError as error:
            for task in group.tasks:
                self.checked.seen[task.unit.index].refused = True
            self.findings.refuse(error, last.unit.index, group.tasks[-1].label, last)
            return
        for rule, check in TENSOR_CHECKS:
            self.findings.add(rule, check(self.checked, group, recs), last)
        for name, tensor in tensors.items():
            self.findings.report.tensors.append(TensorDigest.of(name, self.parser.pruning.apply(name, tensor)))
        rest = iter(recs)
        for task in group.tasks:
            levels = [rec.levels for _, rec in zip(task.parts, rest, strict=False) if rec.levels is not None]
            if levels:
                most = max(max(int(array.max()), -1 - int(array.min())) for array in levels)
                self.checked.seen[task.unit.index].level_bits = max(most, 0).bit_length() + 1
            self.remember(group, task)

    def remember(self, group: Group, task: NduTask) -> None:
        """What later bitstreams may refer to."""
        payload, key, after = task.payload, node_key(task.header), self.after
        after.digests |= {hashlib.sha256(payload).digest(), hashlib.sha512(payload).digest()}
        after.updates += task.header.parent_node_id_present_flag
        if key:
            after.names.setdefault(key, tuple(group.first.names))

    def decode(self, group: Group) -> tuple[list[Rec], dict[str, Array]]:
        """The Rec* tensors as coded, and the tensors of the model."""
        edition, last = self.checked.first_edition, group.tasks[-1]
        try:
            if group.first.session.nnr_pre_flag:
                recs = group.recs(state=self.scratch, budget=self.budgets[0], first_edition=edition, raw=True)
                return recs, group.decode(state=self.after.state, budget=self.budgets[1], first_edition=edition)
            recs = group.recs(state=self.after.state, budget=self.budgets[0], first_edition=edition, raw=True)
            return recs, reconstruct(recs, last.header, group.first.names, group.first.dims, False)
        except MemoryError:
            raise LimitError("there is not enough memory for the tensor", unit=last.label) from None
