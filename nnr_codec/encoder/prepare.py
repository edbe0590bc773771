"""Models as they are coded: reduced step by step, with the blocks of the topology (ISO/IEC 15938-17:2024, 5.3, 8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..bitstream.performance import PerformanceMaps
from ..config import EncoderConfig
from ..model import Model, Wiring, described, source_size
from ..reduction_steps import Step
from .links import Links
from .reduce import apply
from .reduce.blocks import recognised
from .reduce.scaling import with_scales
from .reduce.tool import Pruning, Reduced, decomposed

Note = Callable[[Step, Reduced, Reduced], None]


@dataclass(frozen=True)
class Prepared:
    """A model, ready to be coded.

    Parameters
    ----------
    model : Model
        What is coded.
    restored : Model
        What decoders restore, but for quantization: without the scales that are multiplied into weights. Those of them
        that the caller does not have are optional: only a unit that has one divides its weight by it.
    wiring : Wiring
        What decoders learn from the topology, as far as blocks are concerned.
    links : Links or None
        The tensors are those of an update.
    maps : PerformanceMaps
        Of the kinds of reduction that were applied (6.4.4.3).
    pruning : Pruning or None
        What NNR_TPL_PRUN is to say.
    fitted : frozenset of str
        Weights whose scales follow from their levels.
    source : Model or None
        The model before any step, to whose bytes ratios refer; None where it is ``restored``.
    unused : tuple of Step
        Steps that found nothing to change.
    """

    model: Model
    restored: Model
    wiring: Wiring = field(default_factory=Wiring)
    links: Links | None = None
    maps: PerformanceMaps = field(default_factory=PerformanceMaps)
    pruning: Pruning | None = None
    fitted: frozenset[str] = frozenset()
    source: Model | None = None
    unused: tuple[Step, ...] = ()

    @property
    def scales(self) -> set[str]:
        """The scales that the caller does not have."""
        scales = (block.scale for block in self.model.blocks if block.scale is not None)
        return {scale for scale in scales if scale not in self.restored.tensors}

    @property
    def decomposed(self) -> dict[str, np.dtype[Any]]:
        """The weights that steps decomposed, and their types."""
        tensors = self.restored.tensors
        return {block.weight: described(tensors, block.weight)[0] for block in decomposed(self.model, self.restored)}

    @property
    def factors(self) -> dict[str, str]:
        """The weights that steps decomposed, by the names of G and of H."""
        blocks = decomposed(self.model, self.restored)
        return {name: block.weight for block in blocks for name in (block.g, block.h) if name is not None}

    @property
    def source_bytes(self) -> int:
        """Bytes of the tensors before any step; see :func:`nnr_codec.model.source_size`."""
        return source_size(self.source or self.restored)[0]

    @property
    def products(self) -> set[str]:
        """The weights that come out as a product of several tensors of the restored model."""
        tensors, shapes = self.restored.tensors, self.wiring.shapes
        return {
            block.weight
            for block in self.model.blocks
            if (block.g is not None and block.weight not in tensors)
            or (block.scale in tensors and block.scale not in shapes)
        }


def prepare(model: Model, config: EncoderConfig, wiring: Wiring, note: Note | None = None) -> Prepared:
    """The model as it is coded with these options; EncodeError for a step of reduction that cannot be done.

    ``note`` is told of each step, of the model before and of what comes of it.
    """
    if model.pruned:
        names = [name for name in model.pruned if name in model.tensors]
        wiring = wiring.with_shapes({name: described(model.tensors, name)[1] for name in names})
    coded = replace(model, blocks=[*model.blocks, *recognised(model, wiring)]) if config.has_blocks else model
    reduced = Reduced(coded, model, wiring, config)
    unused = []
    for step, after in apply(reduced, config.steps):
        if note:
            note(step, reduced, after)
        if after is reduced:
            unused.append(step)
        reduced = after
    done = prepared_of(reduced)
    if not done.fitted:
        unused += [step for step in config.steps if step.tool == "scale" and ("method", "gain") not in step.options]
    return replace(done, source=model, unused=tuple(unused))


def prepared_of(reduced: Reduced) -> Prepared:
    """A model, perhaps on its way through the steps, as it would be coded."""
    done = with_scales(reduced)
    return Prepared(done.model, done.restored, done.wiring, None, done.maps, done.pruning, done.fitted)
