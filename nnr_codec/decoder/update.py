"""Decoding a sequence of bitstreams in which later ones update the tensors of earlier ones.

The topology of a base model is that of the updates after it. Where local scaling is a variable of it, updates are of
that variable; where a batch normalization was folded, they are of gamma and beta, to which they are added (8.2.1). Mean
and variance come with the base model alone: their differences are not coded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..limits import Limits
from ..model import Array, Topology
from .index import NnrFile
from .state import UpdateState
from .wiring import Wire

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..bitstream.source import Bitstream


class UpdateDecoder:
    """Decodes one bitstream after another, keeping what later updates refer to.

    Parameters
    ----------
    limits : Limits, optional
    topology_dimensions : mapping of str to sequence of int, optional
        Dimensions of tensors whose units leave them out.
    dtype : str
        What floats are decoded to, as for :func:`nnr_codec.decode`.
    topology : Topology, Model or path, optional
        As for :func:`nnr_codec.decode`.

    Attributes
    ----------
    state : UpdateState
        Changed only by bitstreams that decode as a whole.
    """

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        topology_dimensions: Mapping[str, Sequence[int]] | None = None,
        wire: Wire | None = None,
        dtype: str = "source",
        topology: Topology | None = None,
    ) -> None:
        self.state = UpdateState(keep_digests=True)
        self._limits, self._dimensions, self._dtype = limits, topology_dimensions, dtype
        self._wire, self._given = wire, topology
        self._before: Topology | None = None

    def decode(
        self, data: Bitstream, *, raw: bool = False, jobs: int = 1, executor: Executor | None = None
    ) -> dict[str, Array]:
        """The tensors of one bitstream, by name: full tensors of a base model, differences of an update.

        Parameters
        ----------
        data : bytes-like, path or binary file
            A whole bitstream.
        raw : bool
            Give the Rec* tensors as coded: no recomposition or scaling, and no WeightUpdateCache added (7.3.3).
        jobs, executor
            As for :func:`nnr_codec.decode`.

        Raises
        ------
        BitstreamError
            The bitstream is malformed, or asks for more than the limits permit.
        MissingReferenceError
            The update that this one continues was not decoded here.
        """
        fork = self.state.fork()
        file = NnrFile(
            data, self._limits, self._dimensions, self._wire, self._dtype, topology=self._given, before=self._before
        )
        model = file.decode(raw=raw, state=fork, allow_missing=True, jobs=jobs, executor=executor)
        self.state, self._before = fork, file.context
        return dict(model.tensors)
