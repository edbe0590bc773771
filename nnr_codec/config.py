"""Options of the encoder. Decoders do not depend on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from inspect import Parameter, signature
from math import isfinite
from numbers import Integral, Real
from typing import Any, Protocol, TypedDict, Unpack

from .constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_LS
from .errors import EncodeError, Option
from .reduction_steps import Step, steps_of

#: Default exponent of the step size of lossy tensors: 2**-10.
DEFAULT_STEP_EXPONENT = -10

#: Options of each preset, by name; rules are options by pattern.
PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "small": {"quality": 30.0},
    "balanced": {"quality": 40.0},
    "fine": {"quality": 60.0},
    "lossless": {"exact": True},
    "3gpp-full": {
        "profile": 1,
        "block": None,
        "local_scaling": None,
        "compressed_parameter_types": NNR_CPT_LS | NNR_CPT_BN,
        "dependent_quantization": True,
        "choose_shift_parameters": True,
        "scan_order": 0,
        "row_skipping": False,
        "codebook": 0,
    },
    "lora": {
        "snr": 48.5,
        "rules": {"*lora_[!m]*": {"fine_vectors": False}, "*lora_magnitude_vector*": {"exact": True}},
    },
    "update": {"quality": 25.0},
    "fl": {"quality": 12.0, "fine_vectors": False},
    "3gpp-incremental": {
        "quality": 25.0,
        "profile": 1,
        "choose_shift_parameters": True,
        "row_skipping": True,
        "scan_order": 4,
        "codebook": 0,
    },
}

#: Mutually exclusive options that limit the error: of a tensor, and of the whole model.
TENSOR_GOALS = ("qp", "quality", "snr", "max_error")
MODEL_GOALS = (*TENSOR_GOALS, "target_size", "target_ratio")

#: Fixed-point formats by name: number of fraction bits and total number of bits.
FIXED_POINT = {"q7.8": (8, 16)}

#: Parameters that a block may contain besides its weight: local scaling, batch normalization, bias.
BLOCK_TYPES = NNR_CPT_LS | NNR_CPT_BN | NNR_CPT_BI
#: Boolean tensor options without a None state.
_FLAGS = ("fine_vectors", "fast_decode", "noise_shaping", "reducible")
#: Values of the option ``topology``: in the bitstream, or supplied to decoders separately.
TOPOLOGY = ("carried", "external")


@dataclass(frozen=True)
class TensorOptions:
    """Coding options of one tensor; a :class:`Rule` may replace any field.

    Parameters
    ----------
    qp : int or None
        Quantization parameter of lossy tensors. With ``qp_density`` d the step size is (2**d + qp mod 2**d) *
        2**(floor(qp / 2**d) - d): at the default density, lowering qp by 4 halves it. None: each matrix gets a step
        size computed from its values, for an SNR of at least 35 dB before noise shaping (docs/guides/steering.md).
    quality : float or None
        0..100, approximately the SNR in dB over all tensors with this quality. Their step sizes are proportional to
        fan-in**0.25; their root mean square is that of the nonzero values times 2**(1 - quality / 6). Without dependent
        quantization the SNR is 5 dB higher. A matrix whose SNR would fall below the lower of 35 dB and quality - 10 dB
        gets a finer step size, except in updates.
    snr : float or None
        Minimum SNR of a tensor in dB, at least 0.
    max_error : float or None
        Maximum absolute error of a parameter, above 0.
    fine_vectors : bool
        False: with ``exact`` None, float tensors with fewer than two extents above 1 are quantized like all others.
    dependent_quantization : bool or None
        Dependent scalar quantization with an 8-state trellis (9.2.3); False: uniform quantization. None: by ``effort``.
    exact : bool or None
        True stores a tensor losslessly in the fewest bytes; False quantizes floats with ``qp``. None: float tensors
        with at least two extents above 1 are quantized with ``qp``. Other tensors: single numbers are stored
        losslessly; the rest, such as biases and normalizations, get a step size of 2**-9 of their root mean square, or
        a smaller one if they have small values and no negative values. A ``qp`` below -40 makes that step size finer, a
        ``qp`` above -40 up to 4 times coarser. Tensors that take fewer bytes losslessly, and values that cannot be
        quantized, are stored losslessly.
    scan_order : int or None
        0: by rows; 1..4: by blocks of 8, 16, 32, 64 with entry points. None: by rows, unless ``effort`` tries others.
    fast_decode : bool
        Code large tensors by blocks with entry points, from which decoders can decode many parts at a time
        (docs/explanation/lanes.md), for about 0.4 to 0.8 % more bytes. Tensors with a ``scan_order`` are not changed.
    row_skipping : bool or None
        Code each all-zero row as one flag (profile 1). None: by ``effort``.
    cabac_unary_length_minus1 : int or None
        Length of the unary part of a level, minus 1: 0..255. Exponents of floats that are stored losslessly have a
        separate length. None: 10, unless ``effort`` tries others.
    choose_shift_parameters : bool or None
        Choose the probability estimator of each context by its rate; False: one estimator for all. None: by ``effort``.
    rate : float or None
        Lagrange multiplier of quantization: cost of a bit in squared step sizes, 0 (least error) to 16. None: by
        ``effort``.
    codebook : int or None
        Maximum number of codebook entries, 1..65536; applies to tensors that have more distinct values with ``qp``. 0:
        never use a codebook. None: by ``effort``.
    noise_shaping : bool
        Choose the errors of convolution weights so that they change the outputs of typical inputs less, although their
        squared error grows by about 1 dB (docs/explanation/encoder.md). False: minimize the squared error. No effect
        with ``snr``, ``max_error``, a ``rate`` of 0, calibration data, or an ``effort`` below 5.
    reducible : bool
        False: steps of ``reduce`` skip the tensor. They also skip tensors with ``exact``.
    """

    qp: int | None = None
    quality: float | None = None
    snr: float | None = None
    max_error: float | None = None
    fine_vectors: bool = True
    dependent_quantization: bool | None = None
    exact: bool | None = None
    scan_order: int | None = None
    fast_decode: bool = False
    row_skipping: bool | None = None
    cabac_unary_length_minus1: int | None = None
    choose_shift_parameters: bool | None = None
    rate: float | None = None
    codebook: int | None = None
    noise_shaping: bool = True
    reducible: bool = True

    def step_qp(self, qp_density: int) -> int:
        """Return ``qp``, or the value for the default step size at this density."""
        return int(self.qp) if self.qp is not None else DEFAULT_STEP_EXPONENT << qp_density

    def replaced(self, options: Mapping[str, Any]) -> TensorOptions:
        """Return these options with some replaced; a new goal replaces any previous goal."""
        cleared = dict.fromkeys(TENSOR_GOALS) if any(name in options for name in TENSOR_GOALS) else {}
        return replace(self, **{**cleared, **options})


class RuleOptions(TypedDict, total=False):
    """Keyword options of :class:`Rule`: the fields of :class:`TensorOptions`; a test compares them."""

    qp: int | None
    quality: float | None
    snr: float | None
    max_error: float | None
    fine_vectors: bool
    dependent_quantization: bool | None
    exact: bool | None
    scan_order: int | None
    fast_decode: bool
    row_skipping: bool | None
    cabac_unary_length_minus1: int | None
    choose_shift_parameters: bool | None
    rate: float | None
    codebook: int | None
    noise_shaping: bool
    reducible: bool


@dataclass(frozen=True)
class Rule:
    """Options for the tensors whose names match a glob (``*``, ``?``, ``[seq]``; case-sensitive).

    >>> Rule("*.bias", exact=True).options
    {'exact': True}
    """

    pattern: str
    options: Mapping[str, Any]

    def __init__(self, pattern: str, **options: Unpack[RuleOptions]) -> None:
        if not isinstance(pattern, str):
            raise EncodeError(f"the pattern of a rule must be a glob for tensor names, got {pattern!r}")
        _check_names(f"rule {pattern!r}", options)
        object.__setattr__(self, "pattern", pattern)
        object.__setattr__(self, "options", options)


class ParameterSetElements(Protocol):
    """Source of syntax elements of the model parameter set."""

    def elements(self) -> dict[str, Any]:
        """Return the elements by name, including their presence flags."""


class ConfigOptions(RuleOptions, total=False):
    """Keyword options of :meth:`EncoderConfig.preset`: the fields of :class:`EncoderConfig`; a test compares them."""

    effort: int
    profile: int
    qp_density: int
    rules: Sequence[Rule]
    overrides: Mapping[str, Mapping[str, Any]]
    target_size: int | None
    target_ratio: float | None
    sensitivity: Mapping[str, Any] | None
    hessians: Mapping[str, Any] | None
    block: bool | None
    fold_batchnorm: bool
    local_scaling: bool | None
    reduce: str | Iterable[Step | str]
    fixed_point: str | None
    compressed_parameter_types: int
    topology: str
    deflate_topology: bool
    max_unit_size: int | None
    indexed_references: bool
    parts: Mapping[str, str] | str | int
    layer_parameter_sets: bool
    join: Sequence[str]
    side_info: bool
    index: bool
    performance: ParameterSetElements | None
    temporal_context_modeling: bool | None
    hist_dep_sig_prob: bool | None
    nnr_pre: bool | None


class EncoderOptions(ConfigOptions, total=False):
    """Keyword options of functions that encode: the fields of :class:`EncoderConfig`, and the name of a preset."""

    preset: str


@dataclass(frozen=True)
class EncoderConfig(TensorOptions):
    """Options of the encoder: :class:`TensorOptions` for all tensors, and options of the bitstream.

    Raises EncodeError for contradictory options. Options without effect on a given model issue an
    :class:`~nnr_codec.EncodeWarning` when it is encoded (docs/guides/steering.md).

    Parameters
    ----------
    effort : int
        1..9, from fastest to smallest (docs/explanation/effort.md).
    profile : int
        general_profile_idc: 1 (extended feature set) or 0 (base). Profile 0 has only 32-bit types (7.2), so other
        widths are decoded as int32 and float32; it has no ``row_skipping``.
    qp_density : int
        QpDensity, 0..7: the number of qp steps that double the step size is 2**qp_density. With a goal other than
        ``qp`` it is 7, and this value applies only to the ``qp`` of rules.
    rules : sequence of Rule
        Applied in order; if several rules match, the last one wins for each option. A goal in a rule (qp, quality, snr,
        max_error) replaces any other goal.
    overrides : mapping of str to mapping of str to value
        Options of single tensors by exact name, applied after all rules.
    target_size : int or None
        Maximum size of the bitstream in bytes. If a lossless encoding fits, the encoding is lossless; otherwise the
        size is within 1 % of the target, and the error is distributed over all quantized tensors without a goal of
        their own (docs/guides/steering.md). Raises EncodeError if the coarsest step sizes need more bytes.
    target_ratio : float or None
        Target size as a fraction of the bytes of the tensors, above 0 and up to 1. Tensors count as the source stores
        them, before any step of ``reduce``; tied tensors count once.
    sensitivity : mapping of str to number or array, or None
        Cost of a squared error, 0 or more, by tensor name: one number, or one for each parameter. Size targets
        distribute bytes accordingly; tensors without an entry get the median of the others.
    hessians : mapping of str to array or pair of arrays, or None
        Second moments of the columns of a weight, viewed as a matrix of dims[0] rows, such as moments of its inputs:
        shape (columns, columns). Or a pair ``(rows, columns)``, where rows has shape (rows, rows), and one of both can
        be None. Later weights of a row, and later rows, compensate for earlier errors, unless ``rate`` is 0
        (docs/guides/data-aware.md).
    block : bool or None
        Code each block of the topology, a weight with its bias and batch normalization, in one unit (NNR_PT_BLOCK,
        7.3.5), as blocks of the model always are. Blocks whose weight is lossless are coded as separate tensors, with
        an EncodeWarning. Raises EncodeError if no blocks are known. None: True if blocks are known.
    fold_batchnorm : bool
        Fold the batch normalizations of these blocks (8.2.1): two of the four tensors and the bias follow from the
        others and are not coded; decoders derive them with the topology. The outputs of the network stay the same up to
        rounding, but its tensors change. Raises EncodeError if no batch normalization can be folded. Implies ``block``.
    local_scaling : bool or None
        Scale the weight of each block with batch normalization, output channel by output channel, so that errors are
        smaller where the normalization amplifies them. The inverse scale is coded with the weight or merged into a
        scale of the topology. Weights with ``sensitivity`` or ``hessians`` are skipped. Where a new scale
        would be needed, these are skipped too: weights in float16 or with ``codebook``, ``snr`` or ``max_error``,
        blocks too large for one unit, and models whose names are in one list, which has only labels of the topology
        (A.4). Implies ``block``. Raises EncodeError if no blocks are known. None: True if blocks are known.
    reduce : str or sequence of Step
        Steps of parameter reduction, applied in order before quantization: a string such as ``"sparsify(ratio=0.6),
        fold"``, or :class:`nnr_codec.Step` objects; docs/guides/reduction.md lists all tools. Reduced tensors
        are held in memory as a whole. ``fold_batchnorm`` and ``local_scaling`` add steps at the end.
    fixed_point : str or None
        ``"q7.8"``: round each float, in tensors of any float type, to the nearest multiple of 2**-8 in the range of 16
        bits, -128..127.99609375, ties to even. Floats are decoded to float32. Out-of-range values saturate, with a
        SaturationWarning. With ``fold_batchnorm``, weights are multiplied by the scale of their batch normalization,
        which then only adds an offset. Raises EncodeError for values that are not finite, and in combination with any
        other option that affects the error: goals, ``exact``, dependent quantization, ``rate``, ``codebook`` (other
        than 0), ``sensitivity``, ``hessians`` and ``local_scaling``, also in rules and overrides.
    compressed_parameter_types : int
        Parameters that a block may contain besides its weight: a sum of NNR_CPT_LS (2), NNR_CPT_BN (4) and NNR_CPT_BI
        (8). Other tensors get their own unit. Raises EncodeError if a tensor, such as a local scaling, cannot be
        separated.
    topology : str
        ``"carried"``: the bitstream contains the topology and its quantization text; ``"external"``: it contains
        neither, and decoders get them separately.
    deflate_topology : bool
        Deflate the topology if that makes it smaller, and side information if that saves more than 128 bytes.
    max_unit_size : int or None
        Maximum size of a unit in bytes. A larger compressed data unit is split into up to 255 units (6.4.3.1). Other
        units cannot be split; a larger topology is rejected.
    indexed_references : bool
        Store the tensor names in one list, to which units refer by index (NNR_TPL_REFLIST). A model with one tensor has
        no list.
    parts : mapping of str to str, str, or int
        Parts of the model that become self-contained aggregate units (NNR_AGG_SLF), which decode without the rest: the
        name of a part by glob for names of tensors; the last match wins, and ``/`` separates the name of a part from
        the names of parts around it. ``"layers"``: one part for each layer, whose tensors have the same name up to the
        first component that is a number, or up to the last separator. A number: parts of at most this size in bytes, or
        of one tensor, in the order of the tensors. Parts are contiguous in the bitstream. Not for updates. NNCodec
        cannot read them.
    layer_parameter_sets : bool
        Write a layer parameter set (NNR_LPS) before the tensors of each layer of ``parts="layers"``, and before each
        tensor without a layer. It has the quantization parameter of the layer, flags for the parameter reduction of its
        tensors, and the maps of ``Performance.layers``. Step sizes of one layer may differ by a factor of up to
        2**64; with one quantization parameter for the model, tensors with other step sizes are lossless. Adds bytes.
        Not for updates and parts. NNCodec cannot read them.
    join : sequence of str
        Tensors that share a unit with one step size: names with globs and one list of alternatives in braces, such
        as ``"layers.*.{query,key,value}.weight"``. For each text that the wildcards match, the tensors of all
        alternatives are concatenated along the dimension in which they differ, or the first one. If they differ in
        several dimensions, their dimensions are stored in an order in which only one differs. Options of the first
        tensor apply. The tensors must have the same type and rank, and must not be coded losslessly with side
        information. Not for updates and blocks.
    side_info : bool
        Allow a side-information record, which other decoders skip, for types, shapes, ties and metadata that NNR cannot
        represent. False: models that need one are rejected, except for the types int2 and int4, which decode to int8.
    index : bool
        Write an index of the units near the start, from which readers of remote files list all tensors and locate each
        of them (docs/guides/remote.md). Other decoders skip it. Adds bytes.
    performance : Performance or None
        Statements in the model parameter set about the base model, a validation result and effects of parameter
        reduction (6.4.4.3): an :class:`nnr_codec.bitstream.performance.Performance`.
    temporal_context_modeling, hist_dep_sig_prob : bool or None
        For updates: contexts depend on the levels of the previous update (10.3.4.2.2), and on whether any earlier level
        was nonzero (10.2.1.4). None: used if that saves bits. Without a previous update they have no effect.
    nnr_pre : bool or None
        For updates: code residuals to the previous update, quantized uniformly (9.2.4), if every tensor has one. None:
        used if that takes fewer bytes.
    """

    effort: int = 5
    profile: int = 1
    qp_density: int = 2
    rules: Sequence[Rule] = ()
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    target_size: int | None = None
    target_ratio: float | None = None
    sensitivity: Mapping[str, Any] | None = field(default=None, hash=False, compare=False, repr=False)
    hessians: Mapping[str, Any] | None = field(default=None, hash=False, compare=False, repr=False)
    block: bool | None = False
    fold_batchnorm: bool = False
    local_scaling: bool | None = False
    reduce: str | Iterable[Step | str] = ()
    fixed_point: str | None = None
    compressed_parameter_types: int = BLOCK_TYPES
    topology: str = TOPOLOGY[0]
    deflate_topology: bool = True
    max_unit_size: int | None = None
    indexed_references: bool = False
    parts: Mapping[str, str] | str | int = field(default_factory=dict, hash=False)
    layer_parameter_sets: bool = False
    join: Sequence[str] = ()
    side_info: bool = True
    index: bool = False
    performance: ParameterSetElements | None = None
    temporal_context_modeling: bool | None = None
    hist_dep_sig_prob: bool | None = None
    nnr_pre: bool | None = None

    @classmethod
    def preset(cls, name: str, **options: Unpack[ConfigOptions]) -> EncoderConfig:
        """Return the options of a preset, with the given options replaced.

        ``default``; ``small``, ``balanced`` and ``fine`` for a quality of 30, 40 and 60; ``lossless``; ``3gpp-full``
        for the tools of a whole model in 3GPP S4-260200; ``lora`` for LoRA adapters (docs/guides/lora.md), whose rules
        come before the given rules. For updates: ``update``; ``fl``, which is coarser, vectors included, for senders
        that add the coding error to the next update; ``3gpp-incremental``.
        """
        check_options(cls.preset, options, ConfigOptions.__annotations__)
        if name not in PRESETS:
            raise EncodeError("unknown ", Option("preset"), f" {name!r}; choose from {', '.join(PRESETS)}")
        preset = PRESETS[name]
        if options.get("exact") or any(options.get(goal) is not None for goal in MODEL_GOALS):
            preset = {option: value for option, value in preset.items() if option not in TENSOR_GOALS}
        if options.get("max_error") is not None:
            preset = {option: value for option, value in preset.items() if option not in _OPTIMISED}
        values = {**preset, **options}
        if "rules" in preset and isinstance(given := options.get("rules", ()), Iterable):
            values["rules"] = (*(Rule(pattern, **each) for pattern, each in preset["rules"].items()), *given)
        return cls(**values)

    def __post_init__(self) -> None:
        if not isinstance(self.rules, Iterable):
            raise EncodeError(Option("rules"), f" must be a sequence of Rule, got {self.rules!r}")
        object.__setattr__(self, "rules", tuple(self.rules))
        object.__setattr__(self, "reduce", steps_of(self.reduce))
        _check_whole("effort", self.effort)
        if not 1 <= self.effort <= 9:
            raise EncodeError(Option("effort"), f" {self.effort} is outside 1..9")
        _check_whole("profile", self.profile)
        _check_whole("qp_density", self.qp_density)
        if self.profile not in (0, 1):
            raise EncodeError(Option("profile"), f" must be 0 or 1, got {self.profile}")
        if not 0 <= self.qp_density <= 7:
            raise EncodeError(Option("qp_density"), f" {self.qp_density} is outside 0..7")
        flags = "deflate_topology", "indexed_references", "layer_parameter_sets", "side_info", "index", "fold_batchnorm"
        for name in flags:
            if not isinstance(getattr(self, name), bool):
                raise EncodeError(Option(name), f" must be true or false, got {getattr(self, name)!r}")
        for name in ("block", "local_scaling", "temporal_context_modeling", "hist_dep_sig_prob", "nnr_pre"):
            if not isinstance(getattr(self, name), bool | None):
                raise EncodeError(Option(name), f" must be true, false or None, got {getattr(self, name)!r}")
        _check_whole("compressed_parameter_types", self.compressed_parameter_types)
        if self.compressed_parameter_types & ~BLOCK_TYPES:
            raise EncodeError(
                Option("compressed_parameter_types"), f" {self.compressed_parameter_types} is not a sum of 2, 4 and 8"
            )
        if self.topology not in TOPOLOGY:
            raise EncodeError(Option("topology"), f" must be {' or '.join(TOPOLOGY)}, got {self.topology!r}")
        self._check_folding()
        _check_whole("max_unit_size", self.max_unit_size, optional=True)
        if self.max_unit_size is not None and self.max_unit_size < 1:
            raise EncodeError(Option("max_unit_size"), f" must be at least 1 byte, got {self.max_unit_size}")
        self._check_parts()
        if isinstance(self.join, str) or not isinstance(self.join, Iterable):
            raise EncodeError(Option("join"), f" must be a sequence of names, got {self.join!r}")
        object.__setattr__(self, "join", tuple(self.join))
        for name in self.join:
            parts_of(name)
        if self.performance is not None and not hasattr(self.performance, "elements"):
            raise EncodeError(Option("performance"), f" must be a Performance, got {self.performance!r}")
        _check_whole("target_size", self.target_size, optional=True)
        if self.target_size is not None and self.target_size < 1:
            raise EncodeError(Option("target_size"), f" must be at least 1 byte, got {self.target_size}")
        _check_real("target_ratio", self.target_ratio)
        if self.target_ratio is not None and self.target_ratio <= 0:
            raise EncodeError(Option("target_ratio"), f" must be above 0, got {self.target_ratio}")
        if self.target_ratio is not None and self.target_ratio > 1:
            ratio = float(self.target_ratio)
            raise EncodeError(Option("target_ratio"), f" {ratio:g} is above 1; {ratio:g} % is {ratio / 100:g}")
        _check_goals({name: getattr(self, name) for name in MODEL_GOALS}, self.exact)
        for name in ("sensitivity", "hessians"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise EncodeError(Option(name), f" must be a mapping from tensor names, got {getattr(self, name)!r}")
        defaults = TensorOptions(**_tensor_fields(self))
        self._check(defaults)
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise EncodeError(Option("rules"), f" must be a sequence of Rule, got {rule!r}")
            with _within(f"rule {rule.pattern!r}"):
                self._check_replaced(defaults, rule.options)
        if not isinstance(self.overrides, Mapping):
            raise EncodeError(Option("overrides"), f" must be a mapping from tensor names, got {self.overrides!r}")
        for name, options in self.overrides.items():
            if not isinstance(options, Mapping):
                raise EncodeError(Option("overrides"), f" of {name!r} must be a mapping of options, got {options!r}")
            _check_names(f"overrides of {name!r}", options)
            with _within(f"overrides of {name!r}", name):
                self._check_replaced(defaults, options)
        self._check_fixed_point()
        self._check_unused()

    def _check_parts(self) -> None:
        """Check the division into parts."""
        parts = self.parts
        is_names = isinstance(parts, Mapping) and all(isinstance(text, str) for one in parts.items() for text in one)
        is_size = isinstance(parts, int) and not isinstance(parts, bool)
        if not (is_names or is_size) and parts != "layers":
            raise EncodeError(
                Option("parts"), f" must map globs to names of parts, or be 'layers' or a size in bytes, got {parts!r}"
            )
        if isinstance(parts, int) and parts < 1:
            raise EncodeError(Option("parts"), f" must be at least 1 byte, got {parts}")
        if isinstance(parts, Mapping):
            for part in parts.values():
                if not all(part.split("/")):
                    raise EncodeError(Option("parts"), f": the name {part!r} has an empty component")
        if not parts:
            return
        if self.layer_parameter_sets:
            raise EncodeError(
                Option("parts"),
                " cannot be combined with ",
                Option("layer_parameter_sets"),
                ", because each part has a layer parameter set",
            )
        if self.max_unit_size is not None:
            raise EncodeError(
                Option("parts"), " cannot be combined with ", Option("max_unit_size"), ", because parts are units"
            )
        if self.indexed_references:
            raise EncodeError(
                Option("parts"),
                " cannot be combined with ",
                Option("indexed_references"),
                ", because the indices of a list in each part would not be unique (6.2.3)",
            )

    def _check_fixed_point(self) -> None:
        """Check that a fixed-point format is not combined with other options that affect the error."""
        if self.fixed_point is None:
            return
        if not isinstance(self.fixed_point, str) or self.fixed_point not in FIXED_POINT:
            raise EncodeError(Option("fixed_point"), f" must be {' or '.join(FIXED_POINT)}, got {self.fixed_point!r}")
        for step in self.steps:
            if step.tool == "scale":
                name = "scale" if step in self.reduction else "local_scaling"
                raise EncodeError(
                    Option("fixed_point"),
                    " determines all step sizes, so ",
                    Option(name),
                    " has no effect; omit it",
                )
        self._check_permitted((Option("fixed_point"), " determines all step sizes"), _DECIDING)

    def _check_permitted(self, what: tuple[str, ...], permitted: Mapping[str, tuple[Any, ...]]) -> None:
        """Raise EncodeError for an option with a value that is not permitted, also in rules and overrides."""
        for where, tensor, options in self._all_options:
            for name, values in permitted.items():
                if options.get(name) not in values:
                    raise EncodeError(
                        *what, ", so ", Option(name), " has no effect; omit it", tensor=tensor, where=where
                    )

    def _check_unused(self) -> None:
        """Reject options that have no effect on any model because of other options."""
        every = [options for _, _, options in self._all_options]
        rules, goals = every[1:], {name for options in every for name in _goals(options)}
        if self.exact and all(options.get("exact", True) for options in rules):
            self._check_permitted((_EXACT, " keeps every bit"), _LOSSY)
        if self.max_error is not None and goals == {"max_error"}:
            self._check_permitted((Option("max_error"), " quantizes to the nearest multiple"), _OPTIMISED)
        if self.profile == 0 and any(options.get("row_skipping") for options in every):
            raise EncodeError(Option("row_skipping"), " requires ", Option("profile"), " 1")
        if goals and "qp" not in goals and self.qp_density not in (EncoderConfig.qp_density, 7):
            raise EncodeError(
                Option("qp_density"),
                f" {self.qp_density} has no effect, because ",
                Option(min(goals)),
                " uses 7; remove it",
            )

    @property
    def _all_options(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """Options for all tensors, of each rule and of each override, with place and tensor for errors."""
        rules = [(f"rule {rule.pattern!r}", "", rule.options) for rule in self.rules]
        overrides = [(f"overrides of {name!r}", name, options) for name, options in self.overrides.items()]
        return [("", "", vars(self)), *rules, *overrides]

    def _check_folding(self) -> None:
        """Check the options that change tensors before coding."""
        steps = {step.tool for step in self.reduction}
        if steps and self.exact:
            raise EncodeError(_EXACT, " keeps every bit, so ", Option("reduce"), " has no effect; omit it")
        for name, tool, types in (
            ("fold_batchnorm", "fold", NNR_CPT_LS | NNR_CPT_BI),
            ("local_scaling", "scale", NNR_CPT_LS),
        ):
            if getattr(self, name) is False and tool not in steps:
                continue
            if getattr(self, name) is not False and tool in steps:
                raise EncodeError(
                    Option(name), f" and the step {tool} of ", Option("reduce"), " do the same; choose one"
                )
            if self.exact:
                raise EncodeError(_EXACT, " keeps every bit, so ", Option(name), " has no effect; omit it")
            if types & ~self.compressed_parameter_types:
                raise EncodeError(
                    Option(name),
                    f" requires {types} in ",
                    Option("compressed_parameter_types"),
                    f", which is {self.compressed_parameter_types}",
                )

    @property
    def reduction(self) -> tuple[Step, ...]:
        """Steps of ``reduce``."""
        return steps_of(self.reduce)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps of parameter reduction, in order."""
        last = {Step("fold"): self.fold_batchnorm, Step("scale", method="gain"): self.local_scaling}
        return (*self.reduction, *[step for step, wanted in last.items() if wanted is not False])

    @property
    def has_blocks(self) -> bool:
        """True if the blocks of the topology are coded as blocks."""
        return self.block is not False or any(step.tool in ("fold", "scale") for step in self.steps)

    def _check_replaced(self, defaults: TensorOptions, options: Mapping[str, Any]) -> None:
        """Check the options of a rule or override."""
        self._check(defaults.replaced(options))
        goals = {name: options[name] for name in TENSOR_GOALS if name in options}
        _check_goals(goals, options.get("exact", self.exact))

    def _check(self, options: TensorOptions) -> None:
        for name in ("qp", "scan_order", "cabac_unary_length_minus1", "codebook"):
            _check_whole(name, getattr(options, name), optional=True)
        for name in ("dependent_quantization", "exact", "row_skipping", "choose_shift_parameters", *_FLAGS):
            value = getattr(options, name)
            if not isinstance(value, bool) and (name in _FLAGS or value is not None):
                raise EncodeError(Option(name), f" must be true or false, got {value!r}")
        real = {"quality": (0, 100), "snr": (0, 3000), "max_error": (0, 1e300), "rate": (0, 16)}
        for name, (low, high) in real.items():
            value = getattr(options, name)
            _check_real(name, value)
            if value is not None and not low <= value <= high:
                raise EncodeError(Option(name), f" {value:g} is outside {low:g}..{high:g}")
        if options.max_error == 0:
            raise EncodeError(
                Option("max_error"), " must be above 0, got 0; use ", Option("exact"), " to keep every bit"
            )
        least, most = -126 << self.qp_density, (128 << self.qp_density) - 1  # normal numbers of float32 (7.3.6)
        if options.qp is not None and not least <= options.qp <= most:
            raise EncodeError(
                Option("qp"),
                f" {options.qp} is outside {least}..{most} of ",
                Option("qp_density"),
                f" {self.qp_density}",
            )
        whole = {"scan_order": (0, 4), "cabac_unary_length_minus1": (0, 255), "codebook": (0, 65536)}
        for name, (least, most) in whole.items():
            value = getattr(options, name)
            if value is not None and not least <= value <= most:
                raise EncodeError(Option(name), f" {value} is outside {least}..{most}")

    @cached_property
    def _for_all(self) -> TensorOptions:
        return TensorOptions(**_tensor_fields(self))

    @cached_property
    def _by_rules(self) -> dict[tuple[int, ...], TensorOptions]:
        """Cached options, by the indices of the rules that match the tensor name."""
        return {}

    def for_tensor(self, name: str) -> TensorOptions:
        """Return the options of the tensor called ``name``."""
        options = self._for_all
        if self.rules:
            matches = tuple([k for k, rule in enumerate(self.rules) if fnmatchcase(name, rule.pattern)])
            if matches not in self._by_rules:
                for k in matches:
                    options = options.replaced(self.rules[k].options)
                self._by_rules[matches] = options
            options = self._by_rules[matches]
        return options.replaced(self.overrides[name]) if name in self.overrides else options

    def overridden(self, found: Mapping[str, Mapping[str, Any]]) -> EncoderConfig:
        """Return these options with overrides added; a goal or ``exact`` replaces any earlier goal of the tensor."""
        overrides = dict(self.overrides)
        for name, options in found.items():
            before = overrides.get(name, {})
            if any(option in options for option in (*TENSOR_GOALS, "exact")):
                before = {option: value for option, value in before.items() if option not in TENSOR_GOALS}
            overrides[name] = {**before, **options}
        return replace(self, overrides=overrides)


def parts_of(template: str) -> tuple[str, list[str], str]:
    """Return the glob before the braces of a template, the alternatives, and the glob after them.

    Raises EncodeError unless there is one pair of braces with at least two different alternatives.
    """
    match = re.fullmatch(r"([^{}]*)\{([^{},]+(?:,[^{},]+)+)\}([^{}]*)", template) if isinstance(template, str) else None
    alternatives = match[2].split(",") if match else []
    if not match or len({*alternatives}) < len(alternatives):
        raise EncodeError(
            Option("join"), f" must have different names in braces, as in '*.{{q,k}}.w', got {template!r}"
        )
    return match[1], alternatives, match[3]


def configured(
    function: Callable[..., Any], config: EncoderConfig | None, options: EncoderOptions, preset: str = "default"
) -> EncoderConfig:
    """Return the configuration that results from the arguments of a function.

    Parameters
    ----------
    function : callable
        Function whose name and parameters appear in errors.
    config : EncoderConfig or None
    options : EncoderOptions
        Fields that replace fields of ``config``, or of the preset that they name.
    preset : str
        Default preset, used without ``config`` and without a preset in ``options``.

    Raises TypeError for an unknown option, and for ``config`` with a preset.
    """
    check_options(function, options, EncoderOptions.__annotations__)
    given: Any = {name: value for name, value in options.items() if name != "preset"}
    if config is None:
        return EncoderConfig.preset(options.get("preset", preset), **given)
    if "preset" in options:
        raise TypeError(f"{function.__qualname__}() got both config and preset; use EncoderConfig.preset()")
    return replace(config, **given)


def lossless_by_default(function: Callable[..., Any], options: EncoderOptions) -> EncoderConfig:
    """Return the configuration of options: lossless without a preset or an option that excludes ``exact``.

    Raises the errors of :func:`configured`.
    """
    if "preset" not in options:
        with suppress(EncodeError):
            return configured(function, None, {"exact": True, **options})
    return configured(function, None, options)


def check_options(function: Callable[..., Any], options: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for an unknown option; it suggests a similar option or parameter of the function."""
    if unknown := [name for name in options if name not in known]:
        parameters = signature(function).parameters.values()
        own = [parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
        raise _unexpected(f"{function.__qualname__}()", unknown[0], [*known, *own])


def _check_names(where: str, options: Iterable[str]) -> None:
    """Raise TypeError for a name that is not a tensor option."""
    for name in options:
        if name not in RuleOptions.__annotations__:
            raise _unexpected(where, name, RuleOptions.__annotations__)


@contextmanager
def _within(where: str, tensor: str = "") -> Iterator[None]:
    """Prepend a rule, or a tensor with its own options, to the place of an EncodeError."""
    try:
        yield
    except EncodeError as error:
        error.within(where, tensor)
        raise


def _unexpected(where: str, name: str, known: Iterable[str]) -> TypeError:
    from difflib import get_close_matches

    similar = ["exact"] if name == "lossless" and "exact" in known else get_close_matches(name, list(known), 1)
    return TypeError(f"{where} got an unexpected option {name!r}{f'; did you mean {similar[0]!r}?' if similar else ''}")


#: Options that affect the error, with the values permitted with a fixed-point format.
_DECIDING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys((*MODEL_GOALS, "exact", "sensitivity", "hessians"), (None,)),
    "dependent_quantization": (None, False),
    "rate": (None, 0),
    "codebook": (None, 0),
}
#: Options of rate-distortion optimization, with the values permitted if levels are fixed.
_OPTIMISED: dict[str, tuple[Any, ...]] = {
    "dependent_quantization": (None, False),
    "rate": (None, 0),
    "sensitivity": (None, {}),
    "hessians": (None, {}),
}
#: Options of lossy coding, with the values permitted with ``exact``.
_LOSSY: dict[str, tuple[Any, ...]] = {**_OPTIMISED, "qp": (None,), "codebook": (None, 0), "block": (None, False)}


_EXACT = Option("exact", True)


def _check_whole(name: str, value: object, optional: bool = False) -> None:
    if type(value) is bool or not (isinstance(value, Integral) or (optional and value is None)):
        raise EncodeError(Option(name), f" must be an integer, got {value!r}")


def _check_real(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not _is_finite(value):
        raise EncodeError(Option(name), f" must be a finite number, got {value!r}")


def _is_finite(value: Real) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an integer that is larger than any float
        return False


def _check_goals(goals: Mapping[str, Any], exact: bool | None) -> None:
    """Raise EncodeError for goals that cannot be combined with each other or with exact."""
    given = _goals(goals)
    if len(given) > 1:
        raise EncodeError(Option(given[0]), " and ", Option(given[1]), " cannot be combined; choose one")
    if exact and given not in ([], ["qp"]):  # qp then applies to tensors that a rule excludes from exact
        raise EncodeError(_EXACT, " keeps every bit, so ", Option(given[0]), " has no effect; omit it")


def _goals(options: Mapping[str, Any]) -> list[str]:
    """Return the goals that are set in options."""
    return [name for name in MODEL_GOALS if options.get(name) is not None]


def _tensor_fields(config: EncoderConfig) -> dict[str, Any]:
    return {option.name: getattr(config, option.name) for option in fields(TensorOptions)}
