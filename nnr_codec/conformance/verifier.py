"""Verification of one bitstream: unit by unit, then as a whole, with decoding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import starmap

from ..bitstream.attachments import attachment_data
from ..bitstream.summary import side_information
from ..bitstream.units import Unit, UnitReader
from ..constants import NNR_MPS, NNR_NDU, NNR_STR, NNR_TPL
from ..decoder.decode import BitstreamParser
from ..decoder.group import Group, is_first_edition
from ..decoder.parents import node_key
from ..decoder.reconstruct import Rec, reconstruct
from ..decoder.restore import Restorer
from ..decoder.task import NduTask
from ..errors import ElementError, LimitError, MissingDependencyError, MissingReferenceError, NnrError
from ..limits import Budget, Limits
from ..model import Array, Topology
from ..rules import Requirement
from ..syntax import Session
from .digest import TensorDigest
from .report import ReportBuilder
from .requirements import END_CHECKS, TENSOR_CHECKS, UNIT_CHECKS, CheckedBitstream, History, SeenUnit, notes_on


class BitstreamVerifier:
    """Verifier of a bitstream: call :meth:`take` for each unit in order, then :meth:`end`.

    Parameters
    ----------
    findings : ReportBuilder
        Builder of the report.
    limits : Limits
    session : Session
        State before the units; updated by :meth:`take`.
    history : History
        State after the preceding bitstreams.
    topology : Topology or None
        Replaces the topology of the bitstream.
    """

    def __init__(
        self,
        findings: ReportBuilder,
        limits: Limits,
        session: Session,
        history: History,
        topology: Topology | None,
    ) -> None:
        self.findings, self.limits, self.session = findings, limits, session
        self.findings.lost.clear()
        self.checked = CheckedBitstream(limits, history)
        reader = UnitReader(b"", limits, session)
        self.given = topology is not None
        self.parser = BitstreamParser(reader, given=topology, before=history.topology)
        self.groups: list[Group] = []
        self.active = session.snapshot()  # shared by many units
        self.skipped = 0  # number of compressed data units that are unreadable without an NNR_MPS
        self.gaps = False  # whether tensors may be missing because their units are faulty
        self.budgets = Budget(limits), Budget(limits)  # for tensors as coded and as updated
        # A parameter occurs once in a bitstream, so no tensor depends on another one of the same bitstream.
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
        """True if at least one unit was readable."""
        return bool(self.checked.seen)

    def skip(self, kind: int) -> bool:
        """Skip a unit that is unreadable because of a missing unit, which was already reported."""
        skipped = kind == NNR_NDU and NNR_MPS in self.findings.lost
        self.skipped += skipped
        self.gaps |= skipped
        return skipped

    def lose(self, kind: int) -> None:
        """Record an unreadable unit of this type (-1: unknown type)."""
        self.findings.lost.add(kind)
        self.checked.complete = False
        self.gaps |= kind == NNR_NDU
        if not self.started:
            self.findings.lost.add(NNR_STR)

    def take(self, unit: Unit) -> SeenUnit:
        """Check the next readable unit."""
        kind = unit.header.nnr_unit_type
        if vars(self.active) != vars(self.session) or self.active.lps is not self.session.lps:
            self.active = self.session.snapshot()
        seen = self.checked.seen[unit.index] = SeenUnit(unit, self.active)
        if kind == NNR_NDU:
            with suppress(MissingReferenceError):  # reported by the parser
                seen.names = tuple(self.session.names(unit.ndu))
        self.check(seen)
        try:
            groups = list(self.parser.take(unit))
            if any(group.first.role == "h" for group in groups):
                raise ElementError(
                    f"H of {seen.names[0]!r} has no readable G",
                    clause="6.4.3.7",
                    rule=Requirement.DECOMPOSITION_PAIR,
                )
            self.groups += groups
            if kind != NNR_TPL:  # one topology unit does not replace another
                self.findings.lost.discard(kind)
        except NnrError as error:
            extension = side_information(unit) is not None
            self.findings.refuse(error, unit.index, unit.label(list(seen.names)), seen, extension=extension)
            self.gaps |= extension
            if kind == NNR_NDU:
                self.parser.drop(unit)
                self.gaps = True
                self.findings.lost.add(NNR_NDU if self.session.has_mps else NNR_MPS)
        self.parser.started = True  # report the first unit only once
        self.findings.report.notes += notes_on(unit)
        try:
            self.session.activate(unit.header, unit.structure, unit.depth)
        except NnrError as error:
            self.findings.refuse(error, unit.index, unit.label(), seen)
            self.findings.lost.add(kind)
        self.session.general_profile_idc = min(self.session.general_profile_idc, 1)
        return seen

    def check(self, seen: SeenUnit) -> None:
        """Run the checks of units; for a tensor in parts, on its last part."""
        header = seen.unit.header
        is_whole = header.nnr_unit_type != NNR_NDU or header.part < 2
        for rule, types, check in UNIT_CHECKS:
            if not types or (header.nnr_unit_type in types and is_whole):
                self.findings.add(rule, check(self.checked, seen), seen)

    def end(self) -> History:
        """Decode the tensors and check the whole bitstream; return the state for later bitstreams."""
        checked, notes = self.checked, self.findings.report.notes
        if attached := sum(attachment_data(seen.unit) is not None for seen in checked.of(NNR_TPL)):
            notes.append(f"attachments in {attached} NNR_TPL are not part of the standard")
        if self.skipped:
            notes.append(f"{self.skipped} NNR_NDU cannot be read without the NNR_MPS")
        try:
            self.parser.finish()
        except NnrError as error:
            self.findings.refuse(error, None, "")
        checked.topology, checked.owners = self.parser.context, self.parser.restoration.owners
        self.after.topology = checked.topology
        # After a rejected unit, such as an NNR_STR in the middle, units may have been read in another profile.
        if self.groups and all(group.first.session.general_profile_idc == 0 for group in self.groups):
            checked.first_edition = is_first_edition(self.groups)
            edition = "as written by first-edition software" if checked.first_edition else "according to the 2024 text"
            notes.append(f"profile 0 was read {edition} (errata K4)")
        if self.session.mps_parent_signalling_enabled_flag and not checked.history.bitstreams:
            notes.append("the bitstream is an update, but the preceding bitstreams were not given")
        self.plan_pruning()
        restorer = self.restorer()
        infos = self.parser.restoration.infos(self.parser.info)
        if not self.given:  # all tensors are compared with a given topology elsewhere
            pruned = self.parser.pruning.dimensions
            checked.shapes = {name: info.shape for name, info in infos.items() if name not in pruned}
        digests = {digest.name: digest for group in self.groups for digest in self.digests(group, restorer)}
        digests |= {digest.name: digest for digest in self.last_digests(restorer)}
        for name in infos:
            if name in digests:
                self.findings.report.tensors.append(digests[name])
        for rule, check in END_CHECKS:
            try:
                self.findings.add(rule, check(checked), None)
            except LimitError as error:
                self.findings.refuse(error, None, "")
        try:
            if not self.gaps:
                self.parser.check_fit()
                self.parser.check_complete()
        except NnrError as error:
            self.findings.refuse(error, None, "")
        return self.after

    def plan_pruning(self) -> None:
        """Apply pruning information to the list of tensors."""
        try:
            self.parser.plan_pruning()
        except NnrError as error:
            self.findings.refuse(error, None, "")
        if ignored := self.parser.pruning.ignored:
            self.findings.refuse(ElementError(ignored, rule=Requirement.PRUNE_MASK), None, "")

    def restorer(self) -> Restorer | None:
        """Return the restorer of model tensors; None if only unit tensors are available."""
        try:
            return self.parser.restorer(self.budgets[0])
        except NnrError as error:
            self.findings.refuse(error, None, "", extension=True)
            return None

    def digests(self, group: Group, restorer: Restorer | None) -> Iterator[TensorDigest]:
        """Yield the digests of the model tensors that a group completes."""
        task = group.tasks[-1]
        for name, tensor in self.tensor(group).items():
            part, given = self.parser.pruning.apply(name, tensor), []
            try:
                given = restorer.take(name, part, task.label) if restorer else [(name, part)]
            except MissingDependencyError as error:
                self.findings.report.notes.append(f"{task.label} is not checked any further: {error}")
            except NnrError as error:
                seen = self.checked.seen[task.unit.index]
                self.findings.refuse(error, task.unit.index, task.label, seen, extension=True)
            yield from starmap(TensorDigest.of, given)

    def last_digests(self, restorer: Restorer | None) -> Iterator[TensorDigest]:
        """Yield the digests of the model tensors that remain after all units."""
        try:
            yield from starmap(TensorDigest.of, restorer.finish() if restorer else [])
        except MissingDependencyError as error:
            self.findings.report.notes.append(f"not all tensors are checked: {error}")
        except NnrError as error:
            self.findings.refuse(error, None, "", extension=True)

    def tensor(self, group: Group) -> dict[str, Array]:
        """Decode and check one tensor or block; return its unit tensors."""
        last = self.checked.seen[group.tasks[-1].unit.index]
        try:
            recs, tensors = self.decode(group)
        except NnrError as error:
            for task in group.tasks:
                self.checked.seen[task.unit.index].refused = True
            self.findings.refuse(error, last.unit.index, group.tasks[-1].label, last)
            return {}
        for rule, check in TENSOR_CHECKS:
            self.findings.add(rule, check(self.checked, group, recs), last)
        rest = iter(recs)
        for task in group.tasks:
            levels = [rec.levels for _, rec in zip(task.parts, rest, strict=False) if rec.levels is not None]
            if levels:
                most = max(max(int(array.max()), -1 - int(array.min())) for array in levels)
                self.checked.seen[task.unit.index].level_bits = max(most, 0).bit_length() + 1
            self.remember(group, task)
        return tensors

    def remember(self, group: Group, task: NduTask) -> None:
        """Store the state to which later bitstreams may refer."""
        payload, key, after = task.payload, node_key(task.header), self.after
        after.digests |= {hashlib.sha256(payload).digest(), hashlib.sha512(payload).digest()}
        after.updates += task.header.parent_node_id_present_flag
        if key:
            after.names.setdefault(key, tuple(group.first.names))

    def decode(self, group: Group) -> tuple[list[Rec], dict[str, Array]]:
        """Return the Rec* tensors as coded, and the unit tensors."""
        edition, last = self.checked.first_edition, group.tasks[-1]
        try:
            if group.first.session.nnr_pre_flag:
                recs = group.recs(state=self.scratch, budget=self.budgets[0], first_edition=edition, raw=True)
                return recs, group.decode(state=self.after.state, budget=self.budgets[1], first_edition=edition)
            recs = group.recs(state=self.after.state, budget=self.budgets[0], first_edition=edition, raw=True)
            return recs, reconstruct(recs, last.header, group.first.names, group.first.dims, False, group.first.outputs)
        except MemoryError:
            raise LimitError("not enough memory for the tensor", unit=last.label) from None
