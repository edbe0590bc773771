"""Decoding of a sequence of bitstreams in which later bitstreams update the tensors of earlier bitstreams.

The topology of a base model also applies to its updates. If local scaling is a variable of the topology, updates change
that variable. If a batch normalization was folded, updates are added to gamma and beta (8.2.1). Only the base model has
mean and variance: their differences are not coded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import formats
from ..dtypes import STORED_TYPES
from ..errors import LimitError
from ..limits import Budget, Limits
from ..model import Array, Progress, Topology
from .index import NnrFile
from .state import Schema, UpdateState

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..bitstream.source import Bitstream
    from ..formats import TopologySource


class Update(dict[str, Array]):
    """Tensors of a bitstream by name, most of them differences.

    Parameters
    ----------
    tensors : mapping of str to ndarray
    whole : iterable of str
        Tensors that are not differences but replace the previous tensors (parent_node_id_present_flag is 0).
    left_out : iterable of str
        Unchanged tensors that the bitstream omits: zeros.
    base_model_id : str or None
        Identifier of the base model, as given by the sender.
    metadata : mapping of str to str
        Metadata of the side information.
    topology : Topology or None
        Topology in the bitstream.
    by_exponent : iterable of str
        Differences of bit patterns that are sorted by the exponents of the base, for :func:`nnr_codec.apply_update`.
    """

    def __init__(
        self,
        tensors: Mapping[str, Array] | None = None,
        *,
        whole: Iterable[str] = (),
        left_out: Iterable[str] = (),
        base_model_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        topology: Topology | None = None,
        by_exponent: Iterable[str] = (),
    ) -> None:
        super().__init__(tensors or {})
        self.whole, self.left_out = frozenset(whole), frozenset(left_out)
        self.by_exponent = frozenset(by_exponent)
        self.base_model_id, self.topology = base_model_id, topology
        self.metadata = dict(metadata or {})


class UpdateDecoder:
    """Decoder of consecutive bitstreams that keeps the state for later updates; not thread-safe.

    The sending device is determined by the bitstream. Use a separate decoder for each sender that is not trusted by the
    others.

    Parameters
    ----------
    limits : Limits, optional
        ``max_history_bytes`` limits the state: before it is exceeded, the least recently updated devices are removed,
        and their later updates raise MissingReferenceError.
    like : mapping of str to ndarray, or to other objects with shape and dtype
        The model to update. Other tensors in a bitstream are rejected before allocation: unknown names, other shapes,
        floats instead of integers or vice versa. Tensors that a bitstream omits are returned as zeros of this shape
        and type. Without ``like``, the tensors of the sender's earlier bitstreams are used instead.
    state : UpdateState, optional
        State after earlier bitstreams; it is not changed.
    topology_dimensions : mapping of str to sequence of int, optional
        Dimensions of tensors whose units omit them.
    dtype : str
        Type of decoded floats, as for :func:`nnr_codec.decode`.
    topology : Topology, Model or path, optional
        As for :func:`nnr_codec.decode`.

    Attributes
    ----------
    state : UpdateState
        Replaced only after a bitstream is decoded completely.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        like: Mapping[str, Any] | None = None,
        state: UpdateState | None = None,
        topology_dimensions: Mapping[str, Sequence[int]] | None = None,
        dtype: str = "source",
        topology: TopologySource | None = None,
    ) -> None:
        self.state = UpdateState(keep_digests=True) if state is None else state.fork()
        limits = limits or Limits()
        self._limits = limits if like is None else replace(limits, expected=like, expected_kinds=True)
        self._like: Schema | None = None if like is None else dict(self._limits.expected or {})
        self._dimensions, self._dtype = topology_dimensions, dtype
        self._given = formats.topology_of(topology, limits=limits)
        self._before: Topology | None = None

    def decode(
        self,
        data: Bitstream,
        progress: Progress | None = None,
        *,
        raw: bool = False,
        jobs: int = 1,
        executor: Executor | None = None,
    ) -> Update:
        """Return the tensors of one bitstream by name: full tensors of a base model, differences of an update.

        Parameters
        ----------
        data : bytes-like, path or binary file
            A complete bitstream.
        progress : callable, optional
            Called as ``progress(name, done, total)`` after each tensor.
        raw : bool
            Return the Rec* tensors as coded: no recomposition or scaling, no added WeightUpdateCache (7.3.3), and no
            omitted tensors.
        jobs, executor
            As for :func:`nnr_codec.decode`.

        Raises
        ------
        BitstreamError
            The bitstream is malformed or exceeds the limits.
        IncompleteError
            The bitstream is not an update and ends before all tensors of its topology or reference list.
        TruncatedError
            The topology that the bitstream declares is missing.
        MissingReferenceError
            The bitstream is repeated or out of order, or its parent was not decoded here.

        Warns
        -----
        PruningWarning
            As for :func:`nnr_codec.decode`; the state is already replaced.
        """
        fork = self.state.fork()
        file = NnrFile(data, self._limits, self._dimensions, self._dtype, topology=self._given, before=self._before)
        model = file.decode(progress, raw=raw, state=fork, jobs=jobs, executor=executor, warn=False)
        tensors, zeros = dict(model.tensors), dict[str, Array]()
        if not raw:
            zeros = self._left_out(file, fork)
            if self._like:
                both = tensors | zeros
                tensors = {name: both[name].reshape(self._like[name][0]) for name in self._like if name in both}
            else:
                tensors |= zeros
        self._remember(file, fork)
        update = Update(
            tensors,
            whole=file.whole,
            left_out=zeros,
            base_model_id=file.base_model_id,
            metadata=file.side.metadata,
            topology=model.topology,
            by_exponent=file.side.by_exponent,
        )
        self.state, self._before = fork, file.context
        if not raw:
            file.warn()
        return update

    def reset(self, device_id: int | None = None) -> None:
        """Discard the state of one device, or of all; topologies are kept."""
        fork = self.state.fork()
        for device in list(fork.senders) if device_id is None else [device_id]:
            fork.forget(device)
        self.state = fork

    def _left_out(self, file: NnrFile, state: UpdateState) -> dict[str, Array]:
        """Return zeros for tensors that an update omits (errata H4)."""
        if not file.is_update:
            return {}
        schema: Schema = self._like or {}
        if self._like is None:
            for device in file.device_ids or state.senders:  # an update without units may come from any device
                schema = {**schema, **state.schema(device)}
        budget, zeros = Budget(self._limits), dict[str, Array]()
        for name, (shape, type_) in schema.items():
            if name in file:
                continue
            stored = STORED_TYPES[type_ if self._dtype == "source" or STORED_TYPES[type_].kind != "f" else self._dtype]
            budget.tensor(shape, stored.itemsize, f"{name!r}, which the update omits")
            try:
                zeros[name] = np.zeros(shape, stored.dtype)
            except MemoryError:
                raise LimitError(f"not enough memory for tensor {name!r}, which the update omits") from None
        return zeros

    def _remember(self, file: NnrFile, state: UpdateState) -> None:
        """Record the tensors of the senders."""
        schema = {name: (info.shape, info.type) for name, info in file.info.items()}
        for device in file.device_ids:
            known = state.schema(device) if file.is_update else {}
            if not known.items() >= schema.items():
                state.remember(device, {**known, **schema}, self._limits)
