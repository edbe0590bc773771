"""Decoding of the units of one tensor or block, with state from earlier updates (ISO/IEC 15938-17:2024, 7.3, 9.2.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..constants import NNR_PT_FLOAT, NNR_PT_INT
from ..errors import MissingReferenceError, NnrError
from ..limits import Budget, Limits
from ..model import Array
from ..rules import Requirement
from ..tensor.quant import add_update
from .info import TensorInfo
from .parents import Reference, refer
from .reconstruct import Rec, reconstruct
from .state import Arrays, Digest, Key, UpdateNode, UpdateState
from .task import NduTask
from .unit import Piece, UnitDecoder, complete, located

#: The tensors of a group by name, and the nodes for later updates.
Result = tuple[dict[str, Array], list["Left"]]
#: References to earlier updates, one for each unit of a group.
References = Sequence[Reference | None]


class Left(NamedTuple):
    """Node for later updates, and its reference."""

    reference: Reference
    node: UpdateNode


class Group(NamedTuple):
    """A compressed data unit, or the G unit and the H unit of a decomposed tensor.

    It is immutable, so that several threads may decode it.
    """

    tasks: tuple[NduTask, ...]
    infos: tuple[TensorInfo, ...]
    limits: Limits

    @property
    def first(self) -> NduTask:
        """Unit with the names of the tensors."""
        return self.tasks[0]

    @property
    def label(self) -> str:
        """Label of the unit that completes the group."""
        return self.tasks[-1].label

    @property
    def cost(self) -> int:
        """Approximate decoding cost, from parameters and bits."""
        return sum(8 * task.nbytes + sum(prod(part.dims) for part in task.parts) for task in self.tasks)

    @property
    def nbytes(self) -> int:
        """Size of the tensors in bytes."""
        return sum(info.parameters for info in self.infos) * self.first.dtype.itemsize

    def charge(self, budget: Budget) -> None:
        """Charge the cost of decoding before it starts."""
        for task in self.tasks:
            task.charge(budget)

    def decode(
        self, *, state: UpdateState, budget: Budget, first_edition: bool = False, raw: bool = False
    ) -> dict[str, Array]:
        """Return the tensors by name.

        Parameters
        ----------
        state : UpdateState
            State after earlier updates; it is updated.
        budget : Budget
            Charged before any allocation.
        first_edition : bool
            Read profile 0 as written by the software of the first edition (errata K1, K4).
        raw : bool
            Return the Rec* tensors as coded: no recomposition, no scaling, no WeightUpdateCache.
        """
        self.charge(budget)
        tensors, left = GroupDecoder(self, self.references(state), first_edition=first_edition, raw=raw).run()
        self.commit(state, left)
        return tensors

    def recs(self, *, state: UpdateState, budget: Budget, first_edition: bool = False, raw: bool = False) -> list[Rec]:
        """Return the Rec* tensors in coding order, with their integers; parameters as for :meth:`decode`."""
        self.charge(budget)
        references = self.references(state)
        decoder = GroupDecoder(self, references, first_edition=first_edition, raw=raw, keep_levels=True)
        for piece in decoder.whole():
            piece()
        recs = decoder.recs()
        self.commit(state, decoder.left())
        return recs

    def rows(
        self, name: str, start: int, stop: int, *, budget: Budget, first_edition: bool = False
    ) -> npt.NDArray[Any]:
        """Return some coded rows of one tensor, without earlier updates.

        A tensor with its own unit and entry points is decoded, and its payload checked, only around these rows. Any
        other tensor is decoded completely.

        Parameters
        ----------
        name : str
            Name of a tensor of the group.
        start, stop : int
            Indices on the first coded axis, 0 <= start <= stop <= its extent. Other values raise IndexError.
        budget, first_edition
            As for :meth:`decode`.

        Returns
        -------
        ndarray
            ``np.take(tensor, range(start, stop), axis)``, where the axis is TensorInfo.first_tensor_dimension_shift.
        """
        task, info = self.first, next(info for info in self.infos if info.name == name)
        axis = info.first_tensor_dimension_shift
        info.check_rows(start, stop)
        self.charge(budget)
        alone = len(self.tasks) == 1 and len(task.names) == 1 and not task.header.parent_node_id_present_flag
        if alone:
            some = UnitDecoder(task, first_edition=first_edition, keep_levels=False).rows(start, stop)
            if some is not None:
                return some
        references = self.references(None)
        whole = GroupDecoder(self, references, first_edition=first_edition).run()[0][name]
        return np.take(whole, np.arange(start, stop), axis=axis)

    def references(self, state: UpdateState | None) -> References:
        """Return the reference of each unit; see :func:`refer`."""
        return [self._reference(task, state) for task in self.tasks]

    def _reference(self, task: NduTask, state: UpdateState | None) -> Reference | None:
        residual = bool(task.session.nnr_pre_flag and _is_predictable(task))
        try:
            return refer(task.header, task.names[0], residual, state)
        except MissingReferenceError as error:
            complete(error, task)
            raise

    def commit(self, state: UpdateState, left: Iterable[Left]) -> None:
        """Store the nodes that decoding produced in ``state``."""
        for reference, node in left:
            with located(self.tasks[-1]):
                digests = tuple(Digest.of(task.payload) for task in self.tasks) if state.keep_digests else ()
                state.put(reference.key, node._replace(digests=digests), self.limits, reference.used)


class GroupDecoder:
    """Decoder of a group: call all :meth:`pieces`, then :meth:`finish`.

    Parameters
    ----------
    group : Group
    references : sequence of Reference or None
        References of its units; see Group.references.
    first_edition, raw
        As for :meth:`Group.decode`.
    keep_levels : bool
        Whether :meth:`recs` includes the integers.

    Raises MissingReferenceError if an earlier update has another shape.
    """

    def __init__(
        self,
        group: Group,
        references: References,
        *,
        first_edition: bool,
        raw: bool = False,
        keep_levels: bool = False,
    ) -> None:
        self.references = references
        self._group, self._raw = group, raw
        self._memory: dict[Key, _Memory] = {}
        self.units: list[UnitDecoder] = []
        for task, reference in zip(group.tasks, references, strict=True):
            if not reference:
                self.units.append(UnitDecoder(task, first_edition=first_edition, keep_levels=keep_levels))
                continue
            memory = self._memory.setdefault(reference.key, _Memory(reference))
            own = memory.own(task)
            with located(task):
                self.units.append(
                    UnitDecoder(
                        task,
                        first_edition=first_edition,
                        co_loc=reference.co_loc.levels[own] if reference.co_loc else (),
                        any_sig=reference.history.any_sig[own] if reference.history else (),
                        keep_levels=keep_levels or bool(task.header.parent_node_id_present_flag),
                    )
                )

    def whole(self) -> list[Piece]:
        """Return calls that decode one unit each."""
        return [unit.run for unit in self.units]

    def pieces(self) -> list[Piece]:
        """Return calls that decode the units in any order and in any thread; see UnitDecoder.pieces."""
        return [piece for unit in self.units for piece in unit.pieces()]

    def run(self) -> Result:
        """Decode everything; return the tensors by name, and the nodes to store."""
        task = self._group.tasks[0]
        if len(self.units) == 1 and not task.header.parent_node_id_present_flag:  # the most frequent case
            try:
                recs = self.units[0].at_once()
                tensors = reconstruct(recs, task.header, task.names, task.dims, self._raw, task.outputs)
            except Exception as error:
                complete(error, task)
                raise
            return tensors, self.left() if self._memory else []
        for piece in self.whole():
            piece()
        return self.finish()

    def finish(self) -> Result:
        """Return the tensors by name, and the nodes to store, after all pieces are done."""
        recs, left, first, last = self.recs(), self.left(), self._group.first, self._group.tasks[-1]
        with located(last):
            return reconstruct(recs, last.header, first.names, first.dims, self._raw, first.outputs), left

    def recs(self) -> list[Rec]:
        """Return the Rec* tensors in coding order; call it once, after all pieces are done."""
        found = []
        for task, reference, unit in zip(self._group.tasks, self.references, self.units, strict=True):
            recs = unit.recs()
            if reference and task.header.parent_node_id_present_flag:
                with located(task):
                    self._remember(task, recs, self._memory[reference.key])
            found += recs
        return found

    def left(self) -> list[Left]:
        """Return the nodes to store, after :meth:`recs`."""
        with located(self._group.tasks[-1]):
            return [Left(memory.reference, memory.node()) for memory in self._memory.values()]

    def _remember(self, task: NduTask, recs: list[Rec], memory: _Memory) -> None:
        own = slice(len(memory.recs), len(memory.recs) + len(recs))
        memory.keep(recs)
        if not _is_predictable(task):
            return
        before = memory.reference.cache
        cache = before.updates[own] if before and task.session.nnr_pre_flag else ()
        update = _add(task, recs[0].values, cache)
        memory.updates.append(update.copy())  # the caller owns the returned tensor
        if not self._raw:
            recs[0].values = update


def _is_predictable(task: NduTask) -> bool:
    """Return whether nnr_pre_flag applies to the unit."""
    return task.header.nnr_compressed_data_unit_payload_type in (NNR_PT_INT, NNR_PT_FLOAT)


def _add(task: NduTask, residual: npt.NDArray[Any], cache: Arrays) -> npt.NDArray[Any]:
    """Undo predictive residual encoding (7.3.2, 7.3.3, 9.2.4)."""
    if not cache:
        return residual
    if cache[0].shape != residual.shape or cache[0].dtype.kind != residual.dtype.kind:
        raise MissingReferenceError(
            f"the update before {task.names[0]!r} has a different shape or type",
            clause="9.2.4",
            rule=Requirement.UPDATE_SHAPE,
        )
    return add_update(residual, cache[0], task.data_format)


@dataclass(slots=True)
class _Memory:
    """Next node of one parameter, while it is built."""

    reference: Reference
    parts: int = 0
    recs: list[Rec] = field(default_factory=list)
    levels: list[npt.NDArray[np.int32]] = field(default_factory=list)
    updates: list[npt.NDArray[Any]] = field(default_factory=list)

    def own(self, task: NduTask) -> slice:
        """Return the range of parts of the next unit; both units of a decomposed tensor may share a key and a node."""
        first, self.parts = self.parts, self.parts + len(task.parts)
        return slice(first, self.parts)

    def keep(self, recs: list[Rec]) -> None:
        """Add the tensors of a unit; copy arrays that the caller will own."""
        self.recs += recs
        for rec in recs:
            if rec.levels is not None:
                shared = np.may_share_memory(rec.levels, rec.values)
                self.levels.append(rec.levels.copy() if shared else rec.levels)

    def node(self) -> UpdateNode:
        """Return the node that replaces the previous one."""
        _, depth, name, history, cache, *_ = self.reference
        if not self.recs:
            return UpdateNode(depth, name=name)
        any_sig: Arrays = tuple(levels != 0 for levels in self.levels)
        old = history.any_sig if history else ()
        if not any_sig:
            any_sig = old  # raw parameters have no levels and do not change the history (errata D4)
        elif old:
            if [a.shape for a in old] != [a.shape for a in any_sig]:
                raise MissingReferenceError(
                    "the updates of one parameter differ in shape", clause="10.2.1.5", rule=Requirement.UPDATE_SHAPE
                )
            any_sig = tuple(one | other for one, other in zip(old, any_sig, strict=True))
        # Raw parameters do not change WeightUpdateCache (7.3.4).
        updates = tuple(self.updates) or (cache.updates if cache else ())
        return UpdateNode(depth, tuple(self.levels), any_sig, updates, name)


def is_first_edition(groups: Iterable[Group]) -> bool:
    """Return whether a profile-0 bitstream was written by the software of the first edition (errata K1, K4).

    A payload may be legal in both readings, and one reading applies to the whole bitstream. The first payload that is
    legal in exactly one reading decides; if there is none, the 2024 text applies.
    """
    for group in groups:
        legal = []
        for first_edition in (False, True):
            try:
                group.decode(state=UpdateState(), budget=Budget(group.limits), first_edition=first_edition, raw=True)
                legal.append(True)
            except NnrError:
                legal.append(False)
        if legal[0] != legal[1]:
            return legal[1]
    return False
