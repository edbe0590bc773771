"""What a caller may ask of the encoder. All of it is choice: no decoder needs to know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from inspect import Parameter, signature
from math import isfinite
from numbers import Integral, Real
from typing import Any, Protocol, TypedDict, Unpack

from .constants import NNR_CPT_BI, NNR_CPT_BN, NNR_CPT_LS
from .errors import EncodeError, Option
from .reduction_steps import Step, steps_of

#: The step of lossy tensors is 2 to this power unless the caller says otherwise.
DEFAULT_STEP_EXPONENT = -10

#: Options by the names that they go by together.
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

#: Options of which a tensor obeys one: what the error may be; and those of a whole model, of which it has one.
TENSOR_GOALS = ("qp", "quality", "snr", "max_error")
MODEL_GOALS = (*TENSOR_GOALS, "target_size", "target_ratio")

#: Formats of fixed-point numbers, by name: bits of the fraction, and all bits.
FIXED_POINT = {"q7.8": (8, 16)}

#: What a block may have beside its weight: local scaling, batch normalization, bias.
BLOCK_TYPES = NNR_CPT_LS | NNR_CPT_BN | NNR_CPT_BI
#: Options of tensors that are true or false, and never left open.
_FLAGS = ("fine_vectors", "reducible")
#: Where decoders find the topology.
TOPOLOGY = ("carried", "external")


@dataclass(frozen=True)
class TensorOptions:
    """How one tensor is coded; a :class:`Rule` may replace any field.

    Parameters
    ----------
    qp : int or None
        Quantization parameter of lossy tensors. With ``qp_density`` d the step is
        (2**d + qp mod 2**d) * 2**(floor(qp / 2**d) - d): at the default density, lowering qp by 4 halves the step.
        None: a step for each matrix from its own values, with an SNR of at least 35 dB (docs/steering.md).
    quality : float or None
        0..100, about the SNR in dB of all tensors of this quality together. Their common step is the root mean square
        of their values other than 0, times 2**(1 - quality / 6); without dependent quantization that is 5 dB better.
        A matrix that would have less than the lower of 35 dB and quality - 10 dB gets a finer step, except in updates.
    snr : float or None
        The least SNR in dB that a tensor may have; 0 or more.
    max_error : float or None
        The largest absolute error that a parameter may have, above 0.
    fine_vectors : bool
        False: with ``exact`` None, float tensors with fewer than two extents above 1 are quantized as others are.
    dependent_quantization : bool or None
        Dependent scalar quantization by an 8-state trellis (9.2.3); False: uniform. None: by ``effort``.
    exact : bool or None
        True keeps every bit of a tensor in the fewest bytes; False quantizes floats with ``qp``. None: float tensors
        with at least two extents above 1 are quantized with ``qp``. Of the others, single numbers are kept exactly, and
        the rest, such as biases and normalizations, has a step of 2**-9 of the root mean square, or less if there are
        small values and no negative ones. A ``qp`` below -40 makes that step finer, and one above -40 up to 4 times
        coarser. Tensors that take fewer bytes exactly, and values that cannot be quantized, are kept exactly.
    scan_order : int or None
        0: rows, 1..4: blocks of 8, 16, 32, 64 with entry points. None: rows, unless ``effort`` tries others.
    row_skipping : bool or None
        Code rows of zeros as one flag each (profile 1). None: by ``effort``.
    cabac_unary_length_minus1 : int or None
        Length of the unary part of a level, minus 1: 0..255. Exponents of floats kept exactly have another. None: 10,
        unless ``effort`` tries others.
    choose_shift_parameters : bool or None
        Choose the probability estimator of each context by its rate; False: the same for all. None: by ``effort``.
    rate : float or None
        What a bit is worth when tensors are quantized, in squared steps: 0 (least error) to 16. None: by ``effort``.
    codebook : int or None
        Quantize to so many values, 1..65536, that suit the tensor, where ``qp`` gives it more; 0: never, whatever the
        values. None: by ``effort``.
    reducible : bool
        False: steps of ``reduce`` leave the tensor alone. They do so with what ``exact`` keeps, too.
    """

    qp: int | None = None
    quality: float | None = None
    snr: float | None = None
    max_error: float | None = None
    fine_vectors: bool = True
    dependent_quantization: bool | None = None
    exact: bool | None = None
    scan_order: int | None = None
    row_skipping: bool | None = None
    cabac_unary_length_minus1: int | None = None
    choose_shift_parameters: bool | None = None
    rate: float | None = None
    codebook: int | None = None
    reducible: bool = True

    def step_qp(self, qp_density: int) -> int:
        """``qp``, or what stands for the default step at this density."""
        return int(self.qp) if self.qp is not None else DEFAULT_STEP_EXPONENT << qp_density

    def replaced(self, options: Mapping[str, Any]) -> TensorOptions:
        """These options with some replaced; a new goal replaces whichever there was."""
        cleared = dict.fromkeys(TENSOR_GOALS) if any(name in options for name in TENSOR_GOALS) else {}
        return replace(self, **{**cleared, **options})


class RuleOptions(TypedDict, total=False):
    """Keyword options of :class:`Rule`: the fields of :class:`TensorOptions`, as a test checks."""

    qp: int | None
    quality: float | None
    snr: float | None
    max_error: float | None
    fine_vectors: bool
    dependent_quantization: bool | None
    exact: bool | None
    scan_order: int | None
    row_skipping: bool | None
    cabac_unary_length_minus1: int | None
    choose_shift_parameters: bool | None
    rate: float | None
    codebook: int | None
    reducible: bool


@dataclass(frozen=True)
class Rule:
    """Options for the tensors whose names match a glob (``*``, ``?``, ``[seq]``; case counts).

    >>> Rule("*.bias", exact=True).options
    {'exact': True}
    """

    pattern: str
    options: Mapping[str, Any]

    def __init__(self, pattern: str, **options: Unpack[RuleOptions]) -> None:
        if not isinstance(pattern, str):
            raise EncodeError(f"a rule has a glob for names of tensors, not {pattern!r}")
        _check_names(f"rule {pattern!r}", options)
        object.__setattr__(self, "pattern", pattern)
        object.__setattr__(self, "options", options)


class ParameterSetElements(Protocol):
    """What gives syntax elements of the model parameter set."""

    def elements(self) -> dict[str, Any]:
        """The elements by name, flags of their presence among them."""


class ConfigOptions(RuleOptions, total=False):
    """Keyword options of :meth:`EncoderConfig.preset`: the fields of :class:`EncoderConfig`, as a test checks."""

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
    side_info: bool
    performance: ParameterSetElements | None
    temporal_context_modeling: bool | None
    hist_dep_sig_prob: bool | None
    nnr_pre: bool | None


class EncoderOptions(ConfigOptions, total=False):
    """Keyword options of functions that encode: the fields of :class:`EncoderConfig`, and the name of a preset."""

    preset: str


@dataclass(frozen=True)
class EncoderConfig(TensorOptions):
    """Options of the encoder: those of :class:`TensorOptions` for all tensors, and the ones of the bitstream.

    Raises EncodeError for options that no model can obey together. Options without effect on a given model issue an
    :class:`~nnr_codec.EncodeWarning` when it is encoded (docs/steering.md).

    Parameters
    ----------
    effort : int
        1..9, from fastest to smallest (docs/effort.md).
    profile : int
        general_profile_idc: 1 (extended feature set) or 0 (base). Profile 0 has only 32-bit types (7.2), so other
        widths come back as int32 and float32; it has no ``row_skipping``.
    qp_density : int
        QpDensity, 0..7: steps of qp that double the step size, as a power of two. With a goal other than ``qp`` it is
        7, and only the ``qp`` of rules refers to this one.
    rules : sequence of Rule
        In order; where several match, the last one wins for each option. A rule's goal (qp, quality, snr, max_error)
        is in the place of any other.
    overrides : mapping of str to mapping of str to value
        Options of single tensors by their whole names, after all rules.
    target_size : int or None
        Bytes that the bitstream takes at most. Where a lossless encoding takes no more than that, the encoding is
        lossless; otherwise the target is met within 1 %, and the error is spread over all quantized tensors without a
        goal of their own (docs/steering.md). EncodeError where the coarsest steps take more.
    target_ratio : float or None
        The same as a part of the bytes of the tensors, above 0 and up to 1. Tensors count as the source stores them,
        before any step of ``reduce``, and tied tensors once.
    sensitivity : mapping of str to number or array, or None
        What a squared error costs, 0 or more, by the names of tensors: one number, or one for each parameter. Targets
        spread their bytes accordingly; of tensors that are not named, as for the median of those that are.
    hessians : mapping of str to array, or None
        Second moments of a weight's inputs, seen as a matrix of dims[0] rows: shape (columns, columns). Weights make
        up for the errors of those before them in their row, unless ``rate`` is 0 (docs/data-aware.md).
    block : bool or None
        Code the blocks that the topology is known to have, a weight with its bias and batch normalization, by one unit
        each (NNR_PT_BLOCK, 7.3.5), as those that the model names itself always are. Blocks whose weight is exact or has
        a codebook are coded as separate tensors, with an EncodeWarning. EncodeError where no blocks are known; None is
        True where some are.
    fold_batchnorm : bool
        Fold the batch normalizations of these blocks (8.2.1): what two of the four tensors say, and the bias, then
        follows from the others, and is not coded. The outputs of the network are the same up to rounding, the tensors
        are not. Decoders take the rest from the topology. EncodeError where there is none to fold. Implies ``block``.
    local_scaling : bool or None
        Scale the weight of each of these blocks that has a batch normalization, index by index of its output, so that
        errors are less where that amplifies them; what it takes to undo that is coded beside it, or stands in a scale
        of the topology. Not so weights with ``sensitivity`` or ``hessians``; nor, where it takes a new scale, those of
        float16, with ``codebook``, ``snr`` or ``max_error``, those that one unit cannot hold with it, or if names are
        in one list, which has labels of the topology alone (A.4). Implies ``block``. EncodeError where no blocks are
        known; None is True where some are.
    reduce : str or sequence of Step
        Steps of parameter reduction, one after another, before anything is quantized: a text such as
        ``"sparsify(ratio=0.6), fold"``, or :class:`nnr_codec.reduction.Step` objects; docs/reduction.md has all tools.
        What is reduced is in memory as a whole. ``fold_batchnorm`` and ``local_scaling`` are steps that come last.
    fixed_point : str or None
        ``"q7.8"``: each float is the nearest multiple of 2**-8, ties to the even one, of those that 16 bits hold:
        -128..127.99609375, whatever its tensor and its type; floats come back as float32. What lies beyond is that
        limit; a SaturationWarning tells of it. With ``fold_batchnorm`` weights are multiplied by what batch
        normalizations scale by, so that these add an offset and nothing else. EncodeError for values that are not
        finite, and together with anything else that decides on errors: goals, ``exact``, dependent quantization,
        ``rate``, ``codebook`` (but 0), ``sensitivity``, ``hessians`` and ``local_scaling``, in rules and overrides too.
    compressed_parameter_types : int
        What may stand in a block beside its weight: a sum of NNR_CPT_LS (2), NNR_CPT_BN (4) and NNR_CPT_BI (8). Of the
        rest each tensor has a unit of its own; where that means nothing, as of local scaling, EncodeError.
    topology : str
        ``"carried"``: the bitstream has the topology and its quantization text; ``"external"``: it has neither, and
        decoders are given them.
    deflate_topology : bool
        Deflate topology and side information where that makes them smaller, the latter by more than 128 bytes.
    max_unit_size : int or None
        Bytes of a unit at most. A larger compressed data unit is spread over up to 255 units (6.4.3.1); the other
        units cannot be, and a topology that is larger is refused.
    indexed_references : bool
        Name the tensors in one list, to which their units refer by index (NNR_TPL_REFLIST). A model of one tensor has
        no such list.
    side_info : bool
        Whether the bitstream may have a side-information record, which other decoders skip: of types, shapes, ties and
        metadata that NNR itself cannot express. False: what needs one is refused.
    performance : Performance or None
        What the model parameter set tells of the base model, of a validation result and of the effects of parameter
        reduction (6.4.4.3): an :class:`nnr_codec.bitstream.performance.Performance`.
    temporal_context_modeling, hist_dep_sig_prob : bool or None
        Of updates: whether contexts look at the levels of the update before (10.3.4.2.2), and at whether there was one
        other than 0 in any (10.2.1.4). None: where that saves bits. Without an update before they have no effect.
    nnr_pre : bool or None
        Of updates: code residuals of the update before, quantized uniformly (9.2.4), where each tensor has one. None:
        where that takes fewer bytes.
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
    side_info: bool = True
    performance: ParameterSetElements | None = None
    temporal_context_modeling: bool | None = None
    hist_dep_sig_prob: bool | None = None
    nnr_pre: bool | None = None

    @classmethod
    def preset(cls, name: str, **options: Unpack[ConfigOptions]) -> EncoderConfig:
        """The options that go by a name, replaced by those given.

        ``default``; ``small``, ``balanced`` and ``fine`` for a quality of 30, 40 and 60; ``lossless`` for bit for bit;
        ``3gpp-full`` for the tools of a whole model that 3GPP S4-260200 asks clients for. Of updates: ``update``;
        ``fl``, coarser, vectors too, for senders that add what was lost to the next one; ``3gpp-incremental``.
        """
        check_options(cls.preset, options, ConfigOptions.__annotations__)
        if name not in PRESETS:
            raise EncodeError("unknown ", Option("preset"), f" {name!r}; choose from {', '.join(PRESETS)}")
        preset = PRESETS[name]
        if options.get("exact") or any(options.get(goal) is not None for goal in MODEL_GOALS):
            preset = {option: value for option, value in preset.items() if option not in TENSOR_GOALS}
        if options.get("max_error") is not None:
            preset = {option: value for option, value in preset.items() if option not in _OPTIMISED}
        return cls(**{**preset, **options})

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
        for name in ("deflate_topology", "indexed_references", "side_info", "fold_batchnorm"):
            if not isinstance(getattr(self, name), bool):
                raise EncodeError(Option(name), f" is true or false, not {getattr(self, name)!r}")
        for name in ("block", "local_scaling", "temporal_context_modeling", "hist_dep_sig_prob", "nnr_pre"):
            if not isinstance(getattr(self, name), bool | None):
                raise EncodeError(Option(name), f" is true, false or None, not {getattr(self, name)!r}")
        _check_whole("compressed_parameter_types", self.compressed_parameter_types)
        if self.compressed_parameter_types & ~BLOCK_TYPES:
            raise EncodeError(
                Option("compressed_parameter_types"), f" {self.compressed_parameter_types} is not a sum of 2, 4 and 8"
            )
        if self.topology not in TOPOLOGY:
            raise EncodeError(Option("topology"), f" is {' or '.join(TOPOLOGY)}, not {self.topology!r}")
        self._check_folding()
        _check_whole("max_unit_size", self.max_unit_size, optional=True)
        if self.max_unit_size is not None and self.max_unit_size < 1:
            raise EncodeError(Option("max_unit_size"), f" must be at least 1 byte, got {self.max_unit_size}")
        if self.performance is not None and not hasattr(self.performance, "elements"):
            raise EncodeError(Option("performance"), f" is a Performance, not {self.performance!r}")
        _check_whole("target_size", self.target_size, optional=True)
        if self.target_size is not None and self.target_size < 1:
            raise EncodeError(Option("target_size"), f" must be at least 1 byte, got {self.target_size}")
        _check_real("target_ratio", self.target_ratio)
        if self.target_ratio is not None and self.target_ratio <= 0:
            raise EncodeError(Option("target_ratio"), f" {self.target_ratio} is not above 0")
        if self.target_ratio is not None and self.target_ratio > 1:
            ratio = float(self.target_ratio)
            raise EncodeError(Option("target_ratio"), f" {ratio:g} is above 1; use {ratio / 100:g} for {ratio:g} %")
        _check_goals({name: getattr(self, name) for name in MODEL_GOALS}, self.exact)
        for name in ("sensitivity", "hessians"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise EncodeError(Option(name), f" is a mapping of names of tensors, not {getattr(self, name)!r}")
        defaults = TensorOptions(**_tensor_fields(self))
        self._check(defaults)
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise EncodeError(Option("rules"), f" must be a sequence of Rule, got {rule!r}")
            with _within(f"rule {rule.pattern!r}"):
                self._check_replaced(defaults, rule.options)
        if not isinstance(self.overrides, Mapping):
            raise EncodeError(Option("overrides"), f" is a mapping of names of tensors, not {self.overrides!r}")
        for name, options in self.overrides.items():
            if not isinstance(options, Mapping):
                raise EncodeError(Option("overrides"), f" of {name!r} are a mapping of options, not {options!r}")
            _check_names(f"overrides of {name!r}", options)
            with _within(f"overrides of {name!r}", name):
                self._check_replaced(defaults, options)
        self._check_fixed_point()
        self._check_unused()

    def _check_fixed_point(self) -> None:
        """Check that nothing is asked for beside a fixed-point format that would decide on errors."""
        if self.fixed_point is None:
            return
        if not isinstance(self.fixed_point, str) or self.fixed_point not in FIXED_POINT:
            raise EncodeError(Option("fixed_point"), f" is {' or '.join(FIXED_POINT)}, not {self.fixed_point!r}")
        for step in self.steps:
            if step.tool == "scale":
                name = "scale" if step in self.reduction else "local_scaling"
                raise EncodeError(Option("fixed_point"), " decides on all steps, so ", Option(name), " has no effect")
        self._check_permitted((Option("fixed_point"), " decides on all steps"), _DECIDING)

    def _check_permitted(self, what: tuple[str, ...], permitted: Mapping[str, tuple[Any, ...]]) -> None:
        """Raise EncodeError for an option, in rules and overrides too, with another value than those permitted."""
        for where, tensor, options in self._all_options:
            for name, values in permitted.items():
                if options.get(name) not in values:
                    raise EncodeError(*what, ", so ", Option(name), " has no effect", tensor=tensor, where=where)

    def _check_unused(self) -> None:
        """Check that no option is without effect on any model, as others leave it nothing to decide."""
        every = [options for _, _, options in self._all_options]
        rules, goals = every[1:], {name for options in every for name in _goals(options)}
        if self.exact and all(options.get("exact", True) for options in rules):
            self._check_permitted((_EXACT, " keeps every bit"), _LOSSY)
        if self.max_error is not None and goals == {"max_error"}:
            self._check_permitted((Option("max_error"), " quantizes to the nearest multiple"), _OPTIMISED)
        if self.profile == 0 and any(options.get("row_skipping") for options in every):
            raise EncodeError(Option("row_skipping"), " needs ", Option("profile"), " 1; profile 0 has no skipped rows")
        if goals and "qp" not in goals and self.qp_density not in (EncoderConfig.qp_density, 7):
            raise EncodeError(
                Option("qp_density"),
                f" {self.qp_density} has no effect, as ",
                Option(min(goals)),
                " uses 7; leave it out",
            )

    @property
    def _all_options(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """The options for all tensors, and those of each rule and override, with its place and tensor in errors."""
        rules = [(f"rule {rule.pattern!r}", "", rule.options) for rule in self.rules]
        overrides = [(f"overrides of {name!r}", name, options) for name, options in self.overrides.items()]
        return [("", "", vars(self)), *rules, *overrides]

    def _check_folding(self) -> None:
        """Check what changes tensors before they are coded."""
        steps = {step.tool for step in self.reduction}
        if steps and self.exact:
            raise EncodeError(_EXACT, " keeps every bit, so ", Option("reduce"), " has no effect")
        for name, tool, types in (
            ("fold_batchnorm", "fold", NNR_CPT_LS | NNR_CPT_BI),
            ("local_scaling", "scale", NNR_CPT_LS),
        ):
            if getattr(self, name) is False and tool not in steps:
                continue
            if getattr(self, name) is not False and tool in steps:
                raise EncodeError(
                    Option(name), f" and the step {tool} of ", Option("reduce"), " do the same; use one of them"
                )
            if self.exact:
                raise EncodeError(_EXACT, " keeps every bit, so ", Option(name), " has no effect")
            if types & ~self.compressed_parameter_types:
                raise EncodeError(
                    Option(name),
                    f" requires all of {types} in ",
                    Option("compressed_parameter_types"),
                    f", which is {self.compressed_parameter_types}",
                )

    @property
    def reduction(self) -> tuple[Step, ...]:
        """The steps of ``reduce``."""
        return steps_of(self.reduce)

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps of parameter reduction, in order."""
        last = {Step("fold"): self.fold_batchnorm, Step("scale", method="gain"): self.local_scaling}
        return (*self.reduction, *[step for step, wanted in last.items() if wanted is not False])

    @property
    def has_blocks(self) -> bool:
        """Whether the blocks of the topology are coded as such."""
        return self.block is not False or any(step.tool in ("fold", "scale") for step in self.steps)

    def _check_replaced(self, defaults: TensorOptions, options: Mapping[str, Any]) -> None:
        """Check options of a rule or of a tensor."""
        self._check(defaults.replaced(options))
        goals = {name: options[name] for name in TENSOR_GOALS if name in options}
        _check_goals(goals, options.get("exact", self.exact))

    def _check(self, options: TensorOptions) -> None:
        for name in ("qp", "scan_order", "cabac_unary_length_minus1", "codebook"):
            _check_whole(name, getattr(options, name), optional=True)
        for name in ("dependent_quantization", "exact", "row_skipping", "choose_shift_parameters", *_FLAGS):
            value = getattr(options, name)
            if not isinstance(value, bool) and (name in _FLAGS or value is not None):
                raise EncodeError(Option(name), f" is true or false, not {value!r}")
        real = {"quality": (0, 100), "snr": (0, 3000), "max_error": (0, 1e300), "rate": (0, 16)}
        for name, (low, high) in real.items():
            value = getattr(options, name)
            _check_real(name, value)
            if value is not None and not low <= value <= high:
                raise EncodeError(Option(name), f" {value} is outside {low}..{high}")
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
        """The options of the tensor called ``name``."""
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
        """These options with others of single tensors; a goal or ``exact`` replaces whichever goal one had."""
        overrides = dict(self.overrides)
        for name, options in found.items():
            before = overrides.get(name, {})
            if any(option in options for option in (*TENSOR_GOALS, "exact")):
                before = {option: value for option, value in before.items() if option not in TENSOR_GOALS}
            overrides[name] = {**before, **options}
        return replace(self, overrides=overrides)


def configured(
    function: Callable[..., Any], config: EncoderConfig | None, options: EncoderOptions, preset: str = "default"
) -> EncoderConfig:
    """Return the configuration that the arguments of a function stand for.

    Parameters
    ----------
    function : callable
        Named in errors, which suggest its other parameters too.
    config : EncoderConfig or None
    options : EncoderOptions
        Replace fields of ``config``, or of the preset that they name.
    preset : str
        Used where there is neither ``config`` nor a preset among ``options``.

    Raises TypeError for an option that does not exist, and for ``config`` with a preset.
    """
    check_options(function, options, EncoderOptions.__annotations__)
    given: Any = {name: value for name, value in options.items() if name != "preset"}
    if config is None:
        return EncoderConfig.preset(options.get("preset", preset), **given)
    if "preset" in options:
        raise TypeError(f"{function.__qualname__}() got both config and preset; use EncoderConfig.preset()")
    return replace(config, **given)


def check_options(function: Callable[..., Any], options: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for an option that is not known; it suggests a known one or another parameter of the function."""
    if unknown := [name for name in options if name not in known]:
        parameters = signature(function).parameters.values()
        own = [parameter.name for parameter in parameters if parameter.kind is Parameter.KEYWORD_ONLY]
        raise _unexpected(f"{function.__qualname__}()", unknown[0], [*known, *own])


def _check_names(where: str, options: Iterable[str]) -> None:
    """Raise TypeError for a name that is no option of a tensor."""
    for name in options:
        if name not in RuleOptions.__annotations__:
            raise _unexpected(where, name, RuleOptions.__annotations__)


@contextmanager
def _within(where: str, tensor: str = "") -> Iterator[None]:
    """Put a rule, or a tensor with options of its own, before the place of an EncodeError."""
    try:
        yield
    except EncodeError as error:
        error.within(where, tensor)
        raise


def _unexpected(where: str, name: str, known: Iterable[str]) -> TypeError:
    similar = get_close_matches(name, list(known), 1)
    return TypeError(f"{where} got an unexpected option {name!r}{f'; did you mean {similar[0]!r}?' if similar else ''}")


#: Options that decide on errors, and what they may be where a fixed-point format does.
_DECIDING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys((*MODEL_GOALS, "exact", "sensitivity", "hessians"), (None,)),
    "dependent_quantization": (None, False),
    "rate": (None, 0),
    "codebook": (None, 0),
}
#: Options that say how levels are chosen by what they cost, and what they may be where nothing is to choose.
_OPTIMISED: dict[str, tuple[Any, ...]] = {
    "dependent_quantization": (None, False),
    "rate": (None, 0),
    "sensitivity": (None, {}),
    "hessians": (None, {}),
}
#: Options of what is lossy, and what they may be where nothing is.
_LOSSY: dict[str, tuple[Any, ...]] = {**_OPTIMISED, "qp": (None,), "codebook": (None, 0), "block": (None, False)}


_EXACT = Option("exact", True)


def _check_whole(name: str, value: object, optional: bool = False) -> None:
    if type(value) is bool or not (isinstance(value, Integral) or (optional and value is None)):
        raise EncodeError(Option(name), f" is a whole number, not {value!r}")


def _check_real(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not _is_finite(value):
        raise EncodeError(Option(name), f" is a finite number, not {value!r}")


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
    if exact and given not in ([], ["qp"]):  # which is for tensors that a rule does not keep
        raise EncodeError(_EXACT, " keeps every bit, so ", Option(given[0]), " has no effect")


def _goals(options: Mapping[str, Any]) -> list[str]:
    """The goals that options have."""
    return [name for name in MODEL_GOALS if options.get(name) is not None]


def _tensor_fields(config: EncoderConfig) -> dict[str, Any]:
    return {option.name: getattr(config, option.name) for option in fields(TensorOptions)}
