"""The units of one tensor or block, decoded with what earlier updates left (ISO/IEC 15938-17:2024, 7.3, 9.2.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..constants import NNR_PT_FLOAT, NNR_PT_INT
from ..errors import BitstreamError, LimitError, MissingReferenceError, NnrError
from ..limits import Budget, Limits
from ..model import Array
from ..tensor.quant import add_update
from .info import TensorInfo
from .reconstruct import Rec, reconstruct
from .state import Key, Node, UpdateState, check_parent, node_key
from .task import Arrays, NduTask


@dataclass(frozen=True)
class Group:
    """One compressed data unit, or the G unit and the H unit of a decomposed tensor.

    It is never changed, so that several threads may decode it.
    """

    tasks: tuple[NduTask, ...]
    infos: tuple[TensorInfo, ...]
    limits: Limits

    @property
    def first(self) -> NduTask:
        """The unit that names the tensor."""
        return self.tasks[0]

    def decode(
        self, *, state: UpdateState, budget: Budget, first_edition: bool = False, raw: bool = False
    ) -> dict[str, Array]:
        """The tensors by name.

        Parameters
        ----------
        state : UpdateState
            What earlier updates left; it takes over what later ones refer to.
        budget : Budget
            Charged before anything is allocated.
        first_edition : bool
            Read profile 0 as the first edition's software wrote it (errata K1, K4).
        raw : bool
            Give the Rec* tensors as coded: no recomposition, no scaling, no WeightUpdateCache.
        """
        last = self.tasks[-1]
        try:
            recs = self.recs(state=state, budget=budget, first_edition=first_edition, raw=raw)
            return reconstruct(recs, last.header, self.first.names, self.first.dims, raw)
        except BitstreamError as error:
            error.unit = error.unit or last.label
            raise
        except MemoryError:
            raise LimitError("there is not enough memory for the tensor", unit=last.label) from None

    def recs(self, *, state: UpdateState, budget: Budget, first_edition: bool = False, raw: bool = False) -> list[Rec]:
        """The Rec* tensors in coding order, with their integers; parameters as for :meth:`decode`."""
        recs: list[Rec] = []
        memory: dict[Key, _Memory] = {}
        for task in self.tasks:
            try:
                task.charge(budget)
                recs += self._task(task, state, memory, first_edition, raw)
            except MissingReferenceError as error:
                error.args = (f"{task.label}: {error}",)
                raise
        for key, remembered in memory.items():
            state.put(key, remembered.node(), self.limits)
        return recs

    def _task(
        self, task: NduTask, state: UpdateState, memory: dict[Key, _Memory], first_edition: bool, raw: bool
    ) -> list[Rec]:
        """The tensors of one unit, and what to remember of them."""
        header, key = task.header, node_key(task.header)
        before = state.node(key) if key and header.parent_node_id_present_flag else None
        predictable = header.nnr_compressed_data_unit_payload_type in (NNR_PT_INT, NNR_PT_FLOAT)
        check_parent(header, before, task.names[0], bool(task.session.nnr_pre_flag and predictable))
        if key is None:
            return task.decode(first_edition, (), ())
        remembered = memory.setdefault(key, _Memory(header.put_node_depth, before))
        if not before:
            before = Node(0)
        # The two units of a decomposed tensor may have one key, and then share a node.
        own = slice(len(remembered.recs), len(remembered.recs) + len(task.parts))
        follows = header.temporal_context_modeling_flag and 0 < before.put_node_depth == header.put_node_depth - 1
        recs = task.decode(first_edition, before.levels[own] if follows else (), before.any_sig[own])
        if header.parent_node_id_present_flag:
            remembered.keep(recs)
            if predictable:
                cache = before.updates[own] if task.session.nnr_pre_flag else ()
                update = self._update(task, recs[0].values, cache)
                remembered.updates.append(update.copy())  # the caller owns what is returned
                if not raw:
                    recs[0].values = update
        return recs

    @staticmethod
    def _update(task: NduTask, residual: npt.NDArray[Any], cache: Arrays) -> npt.NDArray[Any]:
        """Undo predictive residual encoding (7.3.2, 7.3.3, 9.2.4)."""
        if not cache:
            return residual
        if cache[0].shape != residual.shape or cache[0].dtype.kind != residual.dtype.kind:
            raise MissingReferenceError(f"the update before {task.names[0]!r} has another shape or type (9.2.4)")
        return add_update(residual, cache[0], task.data_format)


@dataclass
class _Memory:
    """What will be kept of one parameter."""

    put_node_depth: int
    before: Node | None
    recs: list[Rec] = field(default_factory=list)
    levels: list[npt.NDArray[np.int32]] = field(default_factory=list)
    updates: list[npt.NDArray[Any]] = field(default_factory=list)

    def keep(self, recs: list[Rec]) -> None:
        """Add the tensors of a unit; copies of what the caller will own."""
        self.recs += recs
        for rec in recs:
            if rec.levels is not None:
                shared = np.may_share_memory(rec.levels, rec.values)
                self.levels.append(rec.levels.copy() if shared else rec.levels)

    def node(self) -> Node:
        """The node that replaces the one before."""
        any_sig: Arrays = tuple(levels != 0 for levels in self.levels)
        old = self.before.any_sig if self.before else ()
        if not any_sig:
            any_sig = old  # raw parameters have no levels, and history goes on (errata D4)
        elif old:
            if [a.shape for a in old] != [a.shape for a in any_sig]:
                raise MissingReferenceError("the updates of one parameter differ in shape (10.2.1.5)")
            any_sig = tuple(one | other for one, other in zip(old, any_sig, strict=True))
        # Nor do raw parameters touch WeightUpdateCache (7.3.4).
        updates = tuple(self.updates) or (self.before.updates if self.before else ())
        return Node(self.put_node_depth, tuple(self.levels), any_sig, updates)


def is_first_edition(groups: Iterable[Group]) -> bool:
    """Whether a bitstream of profile 0 is one of the first edition's software (errata K1, K4).

    A payload may be legal in both readings, and one reading holds for the whole bitstream. So the first payload that is
    legal in one of them only decides; where none does, the 2024 text holds.
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


def decode_groups(
    groups: Iterable[Group],
    limits: Limits,
    *,
    first_edition: bool,
    state: UpdateState,
    raw: bool = False,
    progress: Callable[[str], None] | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
) -> dict[str, Array]:
    """The tensors of all groups; each name is told to ``progress``."""
    budget = Budget(limits)
    tensors: dict[str, Array] = {}
    for group in groups:
        for name, array in group.decode(state=state, budget=budget, first_edition=first_edition, raw=raw).items():
            tensors[name] = array
            if progress:
                progress(name)
    return tensors
