"""Encoding of updates: of two models, or in sequence with earlier updates (6.4.3.7, 9.2.4, 10.3.4.2.2).

Clause numbers refer to ISO/IEC 15938-17:2024.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from math import isfinite
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack

import numpy as np
import numpy.typing as npt

from .. import formats
from ..config import MODEL_GOALS, EncoderConfig, EncoderOptions, configured
from ..constants import ICNN_NDU_EXT, ICNN_NDU_ID, ICNN_NDU_PL_SHA256, ICNN_NDU_PL_SHA512
from ..decoder.lineage import Lineage
from ..decoder.restore import BITS, UPDATE
from ..decoder.state import UpdateNode, UpdateState
from ..decoder.update_sequence import Update, UpdateDecoder
from ..dtypes import stored_type
from ..encoder.encode import encode_units
from ..encoder.encode_warnings import warn_not_update, warn_unmatched
from ..encoder.facts import native
from ..encoder.goals import resolve_goals, with_exact
from ..encoder.overlay import overlaid, with_factors
from ..encoder.prepared import Prepared
from ..encoder.rate_distortion import power
from ..encoder.reduce.sparsify import sparsify
from ..encoder.tensor_report import TensorReport
from ..encoder.tensor_tasks import Pool, TensorReader
from ..encoder.update_tree import Link, Links
from ..errors import EncodeError, EncodeWarning, Option
from ..limits import Limits
from ..model import Array, Model, Progress
from ..report.encoded import EncodeReport, Notes, Witness
from .apply import identity
from .difference import Difference, difference
from .feedback import ErrorFeedback
from .folding import fold
from .sbt import BinaryTernary, binary_ternary_of, stepped

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..bitstream.performance import Performance
    from ..bitstream.source import Bitstream

    Source = str | os.PathLike[str] | BinaryIO | bytes | bytearray | memoryview

#: Values of the option ``parent``: identification of the parent node (Table 8).
PARENTS = {
    "node": ICNN_NDU_ID,
    "sha256": ICNN_NDU_PL_SHA256,
    "sha512": ICNN_NDU_PL_SHA512,
    "external": ICNN_NDU_EXT,
}
#: Number of device_id values that decoders accept with any limits: the range of Exp-Golomb codes of max_eg_bits.
DEVICES = 1 << 32
#: Range of float64 differences that float32 can represent, in which they may be coded.
FLOAT32 = (float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max))
#: Bound below which a value added to the largest bfloat16 or float32 is less than half of its last place.
LOST = 2.0**96
#: Residuals are coded only if their energy is less than this share of the energy of the updates.
PROMISE = 0.9
#: Ratio of the step sizes of uniform and dependent quantization at the same error, in octaves.
UNIFORM = 0.8


def encode_update(
    base: Model | Mapping[str, Array] | Source,
    new: Model | Mapping[str, Array] | Source,
    config: EncoderConfig | None = None,
    *,
    lossless: bool = False,
    sbt: float | None = None,
    sbt_ternary: float | None = None,
    report: EncodeReport | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
    executor: Executor | None = None,
    **options: Unpack[EncoderOptions],
) -> bytes:
    """Encode the difference between two models.

    Equal tensors are omitted. Tensors that are new, have another shape or type than in the base, or have a difference
    that is not finite are coded whole; so are lossless floats whose difference takes more bits. Integers are lossless.

    Parameters
    ----------
    base, new : Model, mapping of str to ndarray, path, bytes-like or binary file
    config : EncoderConfig, optional
        Default: ``EncoderConfig.preset("update")``. Goals apply to the differences, and ``quality`` to each tensor
        separately; with ``fold_batchnorm``, both models have folded batch normalizations (8.2.1).
    lossless : bool
        Keep every bit of ``new``. Tensors with ``exact`` are lossless in any case.
    sbt, sbt_ternary : float, optional
        As for :class:`UpdateEncoder`. The differences quantized this way are held in memory together.
    report : EncodeReport, optional
        Filled with sizes, errors and statistics of the coded differences; ``ratio`` is relative to all of ``new``.
    progress : callable, optional
        Called as ``progress(name, done, total)`` after each changed tensor.
    jobs, executor, options
        As for :func:`nnr_codec.encode`.

    Returns
    -------
    bytes
        The bitstream. Its base_model_id is the :func:`nnr_codec.identity` of the base, which
        :func:`nnr_codec.apply_update` checks.

    Raises
    ------
    EncodeError
        A tensor of the base is missing in ``new``, or a tensor cannot be coded with these options.
    FormatError
        A model file is malformed.
    """
    settings = update_settings(encode_update, config, options)
    quantization = binary_ternary_of(sbt, sbt_ternary, settings)
    goals = [goal for goal in MODEL_GOALS if options.get(goal) is not None] + ["sbt"] * (sbt is not None)
    if lossless and goals:
        raise EncodeError(
            Option("lossless", True), " keeps every bit, so ", Option(goals[0]), " has no effect; omit it"
        )
    before, after = formats.as_model(base), formats.as_model(new)
    if settings.fold_batchnorm:
        before, after, settings = fold(before), fold(after), replace(settings, fold_batchnorm=False)
    if missing := [name for name in before.tensors if name not in after.tensors]:
        raise EncodeError(
            f"tensor {missing[0]!r} of the base model is missing from the new model; an update cannot remove or rename "
            "tensors; use a base with the same names, or encode the whole model",
            tensor=missing[0],
        )
    warn_unmatched(settings, after.tensors)
    warn_not_update(settings)
    files = [name for name, data in after.attachments.items() if before.attachments.get(name) != data]
    if files:
        message = f"an update does not carry attachments; these differ from the base: {formats.listed(files)}"
        warnings.warn(message, EncodeWarning, stacklevel=2)
    prepared, settings, asked = prepare_update(before, after, settings, lossless, quantization)
    notes, done = Notes(prepared, report) if report is not None else None, count(1)

    def note(tensor: TensorReport) -> None:
        if notes:
            notes.take(tensor)
        if progress:
            progress(tensor.name, next(done), len(prepared.model.tensors))

    if report is None:
        return b"".join(encode_units(prepared, settings, note, jobs=jobs, executor=executor, asked=asked))
    report.config = asked
    witness, started = Witness(prepared, report), time.perf_counter()
    units = []
    for unit in encode_units(prepared, settings, note, jobs=jobs, executor=executor, statistics=True, asked=asked):
        units.append(unit)
        witness.take(unit)
    witness.finish()
    report.nbytes, report.seconds = sum(map(len, units)), time.perf_counter() - started - witness.seconds
    return b"".join(units)


def prepare_update(
    before: Model,
    after: Model,
    settings: EncoderConfig,
    lossless: bool,
    quantization: BinaryTernary | None = None,
    base_id: str = "",
) -> tuple[Prepared, EncoderConfig, EncoderConfig]:
    """Compute the differences of two models for :func:`encode_units`.

    Parameters
    ----------
    before, after : Model
        ``after`` has all tensors of ``before``.
    settings : EncoderConfig
        Result of :func:`update_settings`.
    lossless, quantization
        As for :func:`encode_update`.
    base_id : str
        Identity of ``before``, if it is known.

    Returns
    -------
    prepared : Prepared
    settings, asked : EncoderConfig
        Options with step sizes, and the same options with goals.
    """
    settings = with_exact(settings, formats.quantized(after))
    exact = {name for name in after.tensors if lossless or settings.for_tensor(name).exact}
    in_memory = type(before.tensors) is dict and type(after.tensors) is dict
    differences = _Differences(before.tensors, after.tensors, exact, keep=in_memory)
    whole = {name for name, kind in differences.kinds.items() if kind == "whole"}
    metadata = {key: value for key, value in after.metadata.items() if before.metadata.get(key) != value}
    if "bits" in differences.kinds.values():
        metadata[UPDATE] = BITS
    tensors = dict(differences) if in_memory else differences
    settings = asked = _of_changes(settings, after.tensors, tensors)
    elements = {"parent_node_id_present_flag": 1, "parent_node_id_type": ICNN_NDU_EXT}
    of = {
        name: Link(elements, is_bits=kind == "bits", by_exponent=name in differences.by_exponent)
        for name, kind in differences.kinds.items()
        if kind != "whole"
    }
    links = Links(of, base_id or identity(before), names=tuple(after.tensors))
    topology = after.topology if after.topology != before.topology else None
    ties = _ties(before, after, differences.kinds, exact) if settings.side_info else {}
    model = Model(tensors, topology, metadata=metadata, format=after.format if metadata else "", aliases=ties)
    if quantization:
        changes = ((name, tensors[name]) for name in tensors if name not in whole)
        found = quantization.quantized(changes, settings, links.base_model_id, ties=ties)
        others = with_factors(tensors, {name: {} for name in found})
        found, settings = stepped(found, _steps(Model(others), whole, settings, lossless), {})
        model = replace(model, tensors=overlaid(tensors, found))
    else:
        settings = _steps(model, whole, settings, lossless)
    return Prepared(model, model, links=links, source=after), settings, asked


def _ties(before: Model, after: Model, kinds: Mapping[str, str], exact: set[str]) -> dict[str, str]:
    """Return the ties of both models that also hold for differences that are coded in the same way."""
    return {
        name: target
        for name, target in after.aliases.items()
        if before.aliases.get(name) == target and name in kinds and kinds[name] == kinds.get(target)
        if (name in exact) == (target in exact)
    }


class _Differences(Mapping[str, Array]):
    """Differences of all changed tensors, computed on access unless they are kept.

    Parameters
    ----------
    base, new : mapping of str to ndarray
    exact : set of str
        Tensors to store losslessly.
    keep : bool
        Whether to compute all differences in advance.

    Attributes
    ----------
    kinds : dict of str to str
        Kind of difference of each tensor; see :class:`Difference`.
    by_exponent : set of str
        Tensors whose differences are sorted.
    """

    def __init__(self, base: Mapping[str, Array], new: Mapping[str, Array], exact: set[str], *, keep: bool) -> None:
        self._base, self._new, self._exact = base, new, exact
        self.kinds: dict[str, str] = {}
        self.by_exponent: set[str] = set()
        self._kept: dict[str, Array] = {}
        for name in new:
            if keep and new[name] is base.get(name):
                continue
            found = self._found(name)
            if found.kind != "same" and (found.kind == "whole" or found.array.any()):
                self.kinds[name] = found.kind
                if found.by_exponent:
                    self.by_exponent.add(name)
                if keep:
                    self._kept[name] = _coded(found)

    def _found(self, name: str) -> Difference:
        before, after = np.asarray(self._base[name]) if name in self._base else None, np.asarray(self._new[name])
        found = difference(before, after, lossless=name in self._exact, smallest=True)
        return Difference("whole", after) if _overflows(found, after) else found

    def __getitem__(self, name: str) -> Array:
        return self._kept[name] if name in self._kept else _coded(self._found(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds)

    def __len__(self) -> int:
        return len(self.kinds)


def _coded(found: Difference) -> Array:
    """Return the array to code for a difference, with at least one dimension."""
    return found.array if found.kind == "whole" else found.array.reshape(found.array.shape or 1)


def _overflows(found: Difference, new: Array) -> bool:
    """Return whether quantization may make a float difference, or the sum with it, overflow."""
    if found.kind != "difference" or found.array.dtype.kind != "f":
        return False
    largest = _largest(found.array)
    if found.array.dtype == np.float64 and largest and not FLOAT32[0] <= largest <= FLOAT32[1]:
        return True
    if largest < LOST and new.dtype.name in ("bfloat16", "float32", "float64"):
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        values = new.astype(found.array.dtype, copy=False)
        total = np.asarray(_largest(values[np.isfinite(values)]) + largest)
        return not np.isfinite(total.astype(new.dtype))


def _largest(array: Array) -> float:
    """Return the largest magnitude."""
    return float(max(array.max(initial=0), -array.min(initial=0)))


class UpdateEncoder:
    """Encoder of a sequence of updates that uses earlier updates as references.

    Parameters
    ----------
    config : EncoderConfig, optional
        Default: ``EncoderConfig.preset("update")``.
    device_id : int
        Identifier of the sender, in the headers of all tensors; small numbers take fewer bits.
    parent : str
        Identification of the previous update: ``"node"`` by device_id, parameter_id and put_node_depth; ``"sha256"``
        and ``"sha512"`` by the digest of each tensor's payload, 32 or 64 bytes; ``"external"`` without
        identification, so that earlier updates are not used (Table 8).
    base_model_id : str
        First part of base_model_id, before the position of the bitstream in the sender's sequence.
    error_feedback : bool
        Add the coding error of the previous update to each update.
    sparsity : float, optional
        Share of the parameters of all matrices together, 0..1, that is set to zero: the smallest of each matrix.
    structured_sparsity : float, optional
        Share of the parameters of all matrices together, 0..1, that is set to zero in whole rows: the rows with the
        smallest mean magnitude relative to their matrix.
    sbt : float, optional
        Share of the parameters of each matrix, 0..1, that is set to zero; all others get one magnitude (stochastic
        binary-ternary quantization). Goals then apply to the other tensors.
    sbt_ternary : float, optional
        Probability, 0..1, that a matrix keeps both signs instead of one; default 0.5.
    state : UpdateState, optional
        State after earlier updates, from an encoder or from a decoder that decoded all bitstreams of this sender. It is
        not changed.
    names : iterable of str
        Tensors in the order of their parameter_ids; further tensors are appended. Default: the tensors of ``state``,
        with its ids.
    **options
        As for :func:`nnr_codec.encode`.

    Attributes
    ----------
    state : UpdateState
        State of a decoder after the last bitstream.
    decoded : Update
        Result of decoding the last bitstream.
    feedback : ErrorFeedback or None
        Coding errors to add to the next update.

    An encoder can be pickled. Raises EncodeError for options that do not apply to updates.
    """

    def __init__(
        self,
        config: EncoderConfig | None = None,
        *,
        device_id: int = 0,
        parent: str = "node",
        base_model_id: str = "",
        error_feedback: bool = False,
        sparsity: float | None = None,
        structured_sparsity: float | None = None,
        sbt: float | None = None,
        sbt_ternary: float | None = None,
        state: UpdateState | None = None,
        names: Iterable[str] = (),
        **options: Unpack[EncoderOptions],
    ) -> None:
        if parent not in PARENTS:
            raise EncodeError(Option("parent"), f" {parent!r} is unknown; choose from {', '.join(PARENTS)}")
        if not isinstance(device_id, (int, np.integer)) or not 0 <= device_id < DEVICES:
            raise EncodeError(Option("device_id"), f" must be an integer from 0 to {DEVICES - 1}, got {device_id!r}")
        if parent in ("sha256", "sha512") and state is not None and not state.keep_digests:
            raise EncodeError(
                Option("parent"),
                f" {parent!r} requires digests, which the state lacks; use UpdateState(keep_digests=True)",
            )
        for name, part in (("sparsity", sparsity), ("structured_sparsity", structured_sparsity)):
            if part is not None and not (isfinite(part) and 0 <= part <= 1):
                raise EncodeError(Option(name), f" {part} is outside 0..1")
        self._config = update_settings(UpdateEncoder, config, options)
        self._device_id, self._parent = int(device_id), parent
        if self._config.fold_batchnorm:
            raise EncodeError(
                Option("fold_batchnorm"), " does not apply to differences; fold the models with nnr_codec.folded"
            )
        self._base_model_id = base_model_id
        self._sparsity, self._structured_sparsity = sparsity, structured_sparsity
        self._quantization = binary_ternary_of(sbt, sbt_ternary, self._config)
        self._decoder = UpdateDecoder(limits=Limits.unlimited(), state=state)
        self._ids = {name: parameter_id for parameter_id, name in enumerate(names)}
        if not self._ids and (sender := self.state.senders.get(self._device_id)):
            self._ids = {node.name: number for number, node in sender.nodes.items() if isinstance(number, int)}
        self._depths: dict[int, int] = {}  # largest put_node_depth by parameter_id, for use after reset()
        self._anew = False
        self.decoded = Update()
        self.feedback = ErrorFeedback() if error_feedback else None

    @property
    def state(self) -> UpdateState:
        """State of a decoder after the last bitstream."""
        return self._decoder.state

    def encode(
        self,
        update: Mapping[str, Array],
        *,
        whole: Mapping[str, Array] | None = None,
        performance: Performance | None = None,
        jobs: int = 1,
        executor: Executor | None = None,
    ) -> bytes:
        """Encode an update; all-zero tensors are omitted.

        Parameters
        ----------
        update : mapping of str to ndarray
            Differences: finite floats, or integers within 32 bits.
        whole : mapping of str to ndarray, optional
            Tensors of any type that replace tensors of the base.
        performance : Performance, optional
            Performance metrics of the updated model (6.4.4.3).
        jobs, executor
            As for :func:`nnr_codec.encode`.

        Returns
        -------
        bytes
            The bitstream of the update.

        Raises
        ------
        EncodeError
            A tensor cannot be coded with these options; the encoder is unchanged.
        """
        whole = dict(whole or {})
        if both := update.keys() & whole.keys():
            raise EncodeError(f"tensor {min(both)!r} is given both as a difference and whole", tensor=min(both))
        given = {name: _codable(name, array) for name, array in update.items()}
        wanted = total = self.feedback.add(given) if self.feedback else given
        if self._sparsity is not None:
            wanted = sparsify(wanted, self._sparsity)
        if self._structured_sparsity is not None:
            wanted = sparsify(wanted, self._structured_sparsity, structured=True)
        ids, following = dict(self._ids), count(max(self._ids.values(), default=-1) + 1)
        for name in (*wanted, *whole):
            if name not in ids:
                ids[name] = next(following)
        tensors = {name: array for name, array in wanted.items() if array.any()}
        settings = replace(self._config, performance=performance) if performance else self._config
        settings = asked = _of_changes(settings, ids, {*tensors, *whole})
        found = self._quantized(tensors)
        others = {name: array for name, array in tensors.items() if name not in found}
        settings = _steps(Model({**others, **whole}), whole, settings, lossless=False)

        def coded(tensors: Mapping[str, Array], settings: EncoderConfig, residuals: Mapping[str, Array]) -> bytes:
            model = Model({**tensors, **residuals, **whole})
            links = Links(
                {
                    name: self._link(name, array, ids[name], name in whole, name in residuals)
                    for name, array in model.tensors.items()
                },
                str(self._lineage()),
                int(bool(residuals)),
                tuple(ids),
            )
            prepared = Prepared(model, model, links=links)
            requested = None if residuals or self.feedback else asked  # feedback compensates for losses
            return b"".join(encode_units(prepared, settings, jobs=jobs, executor=executor, asked=requested))

        arrays, steps = stepped(found, settings, {}) if found else (found, settings)
        data = coded({**tensors, **arrays}, steps, {})
        if before := self._before(tensors, ids):
            steps = _uniform(settings, tensors)
            if found:
                arrays, steps = stepped(found, steps, before)
            if residuals := self._residuals({**tensors, **arrays}, before):
                try:
                    other = coded({**tensors, **arrays}, steps, residuals)
                except EncodeError:  # no step size fits the residuals
                    other = data
                if settings.nnr_pre or len(other) < len(data):
                    data = other
        self.decoded = self._decoder.decode(data, jobs=jobs, executor=executor)
        if self.feedback:
            self.feedback.keep(total, self.decoded)
        self._ids, self._anew = ids, False
        for parameter_id in ids.values():
            if node := self.state.node((self._device_id, parameter_id)):
                self._depths[parameter_id] = max(self._depths.get(parameter_id, 0), node.put_node_depth)
        return data

    def adopt(self, data: Bitstream) -> Update:
        """Decode the bitstream of a base model, as its receivers do, so that the next update can name its payloads by
        hash.

        Raises the errors of :meth:`UpdateDecoder.decode`.
        """
        return self._decoder.decode(data)

    def reset(self) -> None:
        """Make the next bitstream independent of earlier bitstreams, as required after a loss."""
        state = self.state.fork()
        state.renew(self._device_id, keep_base=False)  # the lost bitstream may contain base tensors
        self._decoder.state = state
        self._anew = True

    # ------------------------------------------------------------------------------------------ update tree
    def _lineage(self) -> Lineage:
        """Return the position of the next bitstream."""
        last = self.state.lineages.get(self._device_id)
        token = last.token if last and not self._anew and self._parent != "external" else ""
        return Lineage(self._base_model_id, self._device_id, last.number + 1 if last else 1, token)

    def _link(self, name: str, array: Array, parameter_id: int, is_whole: bool, is_residual: bool) -> Link:
        """Return the position of a tensor in its update tree."""
        ids = {"node_id_present_flag": 1, "device_id": self._device_id, "parameter_id": parameter_id}
        if is_whole:
            return Link({**ids, "put_node_depth": 0} if self._parent != "external" else {})
        update = {"parent_node_id_present_flag": 1, "parent_node_id_type": PARENTS[self._parent]}
        if self._parent == "external":
            return Link(update, is_optional=True)
        last = self.state.node((self._device_id, parameter_id))
        depth = last.put_node_depth if last else self._depths.get(parameter_id, 0)
        before = last if last and _continues(last, array) else None
        ids["put_node_depth"] = depth + 1
        named = before or (None if depth else self.state.node((None, name)))  # node of a base model
        if self._parent == "node" and (before or not depth):
            update["parent_device_id"] = self._device_id
        elif named:
            digest = getattr(named.digests[0], self._parent)
            update[f"parent_node_payload_{self._parent}"] = int.from_bytes(digest, "big")
        else:
            update["parent_node_id_type"] = ICNN_NDU_EXT
        config = self._config
        return Link({**ids, **update}, before, config.temporal_context_modeling, config.hist_dep_sig_prob, is_residual)

    def _quantized(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Return the matrices after binary-ternary quantization; empty if it is not used."""
        if not self._quantization:
            return {}
        place = self._base_model_id, self._device_id, self._lineage().number
        return self._quantization.quantized(tensors.items(), self._config, *place)

    def _before(self, tensors: Mapping[str, Array], ids: Mapping[str, int]) -> dict[str, Array]:
        """Return the previous updates of these tensors, if coding residuals is possible (9.2.4).

        nnr_pre_flag applies to all tensors, so each of them needs a previous update (6.4.4.3).
        """
        config = self._config
        if config.nnr_pre is False or config.target_size is not None or config.target_ratio is not None:
            return {}
        if self._parent == "external" or (config.dependent_quantization and not config.nnr_pre):
            return {}
        found: dict[str, Array] = {}
        for name, array in tensors.items():
            cache = _cached(self.state.node((self._device_id, ids[name])), array)
            if cache is None:
                return {}
            found[name] = cache
        return found

    def _residuals(self, tensors: Mapping[str, Array], before: Mapping[str, Array]) -> dict[str, Array]:
        """Return the differences of tensors from their previous updates (9.2.4); empty if this hardly saves bits."""
        residuals, energies = {}, [0.0, 0.0]
        for name, cache in before.items():
            array = tensors[name]
            residual = _minus(array, cache)
            if residual is None:
                return {}
            residuals[name] = residual
            if array.dtype.kind == "f":
                energies = [energies[0] + _power(residual), energies[1] + _power(array)]
        return residuals if self._config.nnr_pre or energies[0] < PROMISE * energies[1] else {}


def update_settings(
    function: Callable[..., Any], config: EncoderConfig | None, options: EncoderOptions
) -> EncoderConfig:
    """Return the options for updates. Raise EncodeError for options that do not apply to updates."""
    settings = configured(function, config, options, "update")
    if settings.profile == 0:
        raise EncodeError(Option("profile"), " 0 does not support updates (6.3.3.7); use ", Option("profile"), " 1")
    if settings.block or settings.local_scaling:
        name = "block" if settings.block else "local_scaling"
        raise EncodeError(Option(name), " applies to whole models only, not to differences")
    for name in ("reduce", "fixed_point", "join", "parts", "layer_parameter_sets"):
        if getattr(settings, name):
            raise EncodeError(Option(name), " applies to whole models only, not to differences")
    if settings.nnr_pre and settings.dependent_quantization:
        raise EncodeError(
            Option("nnr_pre"),
            " requires uniform quantization (6.4.4.3); use ",
            Option("dependent_quantization", False),
        )
    return settings


def _of_changes(config: EncoderConfig, names: Container[str], changing: Container[str]) -> EncoderConfig:
    """Return options without sensitivities and Hessians of unchanged tensors."""

    def kept(known: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return known and {name: value for name, value in known.items() if name in changing or name not in names}

    return replace(config, sensitivity=kept(config.sensitivity), hessians=kept(config.hessians))


def _codable(name: str, array: Array) -> Array:
    """Return a difference in a supported type, with at least one dimension."""
    array = np.asarray(array)
    stored = stored_type(array.dtype)
    array = array.reshape(array.shape or 1)
    if stored is None or (stored.kind != "f" and stored.kind not in "iu"):
        raise EncodeError(
            f"tensor {name!r} has type {array.dtype}, which does not support differences; "
            "pass it in the argument 'whole'",
            tensor=name,
        )
    if stored.kind == "f":
        array = native(array if stored.name in ("float32", "float64") else array.astype(np.float32))
        if not np.isfinite(array).all():
            raise EncodeError(
                f"the update of tensor {name!r} contains NaN or infinity; pass it in the argument 'whole'", tensor=name
            )
        return array
    if not _in_int32(array):
        raise EncodeError(
            f"the update of tensor {name!r} exceeds 32 bits; pass it in the argument 'whole'", tensor=name
        )
    return array.astype(np.int32)


def _continues(node: UpdateNode, array: Array) -> bool:
    """Return whether a node belongs to one tensor of this shape and kind, as its contexts and cache require."""
    kept: tuple[tuple[Array, ...], ...] = (node.levels, node.any_sig, node.updates)
    alike = all(len(arrays) <= 1 and all(one.shape == array.shape for one in arrays) for arrays in kept)
    return alike and all(update.dtype.kind == array.dtype.kind for update in node.updates)


def _cached(node: UpdateNode | None, array: Array) -> Array | None:
    """Return WeightUpdateCache of a tensor, if there is one of this shape and kind."""
    return node.updates[0] if node and node.put_node_depth and node.updates and _continues(node, array) else None


def _power(array: Array) -> float:
    floats: npt.NDArray[np.floating[Any]] = np.asarray(array, array.dtype)
    return power(floats)


def _minus(array: Array, cache: Array) -> Array | None:
    """Return array minus cache; None if it exceeds the type."""
    if array.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            found = np.subtract(array, cache, dtype=array.dtype)
        return found if np.isfinite(found).all() else None
    wide = np.subtract(array, cache, dtype=np.int64)
    return wide.astype(np.int32) if _in_int32(wide) else None


def _in_int32(array: Array) -> bool:
    return not array.size or (int(array.min()) >= -(1 << 31) and int(array.max()) < 1 << 31)


def _steps(model: Model, whole: Iterable[str], config: EncoderConfig, lossless: bool) -> EncoderConfig:
    """Return options with step sizes instead of goals for differences; whole tensors get the defaults of models."""
    usual: dict[str, Any] = {"exact": True} if lossless else {"qp": None}
    config = config.overridden({name: usual for name in whole if not config.for_tensor(name).exact})
    with Pool() as pool:
        return resolve_goals(model, config, TensorReader(model), pool, apart=True)


def _uniform(config: EncoderConfig, names: Iterable[str]) -> EncoderConfig:
    """Return options for uniform quantization with about the same error (6.4.4.3)."""
    changed: dict[str, dict[str, Any]] = {}
    for name in names:
        options = config.for_tensor(name)
        changed[name] = {"dependent_quantization": False}
        if options.qp is not None and options.dependent_quantization is not False:
            changed[name]["qp"] = options.qp + int(UNIFORM * (1 << config.qp_density))
    return config.overridden(changed)
