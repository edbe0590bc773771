"""What a caller may ask of the encoder. All of it is choice: no decoder needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from numbers import Integral
from typing import Any, Protocol

from .errors import EncodeError

#: The step of lossy tensors is 2 to this power unless the caller says otherwise.
DEFAULT_STEP_EXPONENT = -10

#: Options by the names that they go by together.
PRESETS: dict[str, dict[str, Any]] = {"default": {}, "lossless": {"exact": True}}


@dataclass(frozen=True)
class TensorOptions:
    """How one tensor is coded; a :class:`Rule` may replace any field.

    Parameters
    ----------
    qp : int or None
        Quantization parameter of lossy tensors. With ``qp_density`` d the step is
        (2**d + qp mod 2**d) * 2**(floor(qp / 2**d) - d): at the default density each 4 steps of qp double the step.
        None is a step of 2**-10 at any density: -40 at the default one.
    dependent_quantization : bool
        Dependent scalar quantization by an 8-state trellis (9.2.3); False: uniform.
    exact : bool or None
        True keeps a tensor bit for bit, in whichever way takes the fewest bytes; False quantizes floats with ``qp``.
        None: float tensors with at least two extents above 1 are quantized with ``qp``; all others, such as biases and
        normalizations, finely, with a step of at most 2**-19 and at most 2**-16 of their largest value. Those that
        fewer bytes hold exactly, and values that cannot be quantized, are kept bit for bit.
    scan_order : int
        0: rows, 1..4: blocks of 8, 16, 32, 64 with entry points.
    row_skipping : bool
        Code rows of zeros as one flag each (profile 1).
    cabac_unary_length_minus1 : int
        Length of the unary part of a level, minus 1: 0..255. Exponents of floats kept exactly have another.
    choose_shift_parameters : bool
        Choose the probability estimator of each context by its rate; False: the same for all.
    """

    qp: int | None = None
    dependent_quantization: bool = True
    exact: bool | None = None
    scan_order: int = 0
    row_skipping: bool = False
    cabac_unary_length_minus1: int = 10
    choose_shift_parameters: bool = True

    def step_qp(self, qp_density: int) -> int:
        """``qp``, or what stands for the default step at this density."""
        return int(self.qp) if self.qp is not None else DEFAULT_STEP_EXPONENT << qp_density


@dataclass(frozen=True)
class Rule:
    """Options for the tensors whose names match a glob (``*``, ``?``, ``[seq]``; case counts).

    >>> Rule("*.bias", exact=True).options
    {'exact': True}
    """

    pattern: str
    options: Mapping[str, Any]

    def __init__(self, pattern: str, **options: Any) -> None:
        known = {option.name for option in fields(TensorOptions)}
        for name in options:
            if name not in known:
                raise EncodeError(f"rule {pattern!r}: {name!r} is not an option; there are {', '.join(sorted(known))}")
        object.__setattr__(self, "pattern", pattern)
        object.__setattr__(self, "options", options)


class ParameterSetElements(Protocol):
    """What gives syntax elements of the model parameter set."""

    def elements(self) -> dict[str, Any]:
        """The elements by name, flags of their presence among them."""


@dataclass(frozen=True)
class EncoderConfig(TensorOptions):
    """Options of the encoder: those of :class:`TensorOptions` for all tensors, and the ones of the bitstream.

    Parameters
    ----------
    profile : int
        general_profile_idc: 1 (extended feature set) or 0 (base). Profile 0 has only 32-bit types (7.2), so other
        widths come back as int32 and float32.
    qp_density : int
        QpDensity, 0..7: steps of qp that double the step size, as a power of two.
    rules : tuple of Rule
        In order; where several match, the last one wins for each option.
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
    """

    profile: int = 1
    qp_density: int = 2
    rules: tuple[Rule, ...] = field(default=())
    deflate_topology: bool = True
    max_unit_size: int | None = None
    indexed_references: bool = False
    side_info: bool = True
    performance: ParameterSetElements | None = None

    @classmethod
    def preset(cls, name: str, **options: Any) -> EncoderConfig:
        """The options that go by a name, replaced by those given: ``default``, or ``lossless`` for bit for bit."""
        if name not in PRESETS:
            raise EncodeError(f"preset {name!r}: there are {', '.join(PRESETS)}")
        return cls(**{**PRESETS[name], **options})

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        _check_whole("profile", self.profile)
        _check_whole("qp_density", self.qp_density)
        if self.profile not in (0, 1):
            raise EncodeError(f"profile {self.profile}: there are 0 and 1")
        if not 0 <= self.qp_density <= 7:
            raise EncodeError(f"qp_density {self.qp_density} is outside 0..7")
        if not isinstance(self.side_info, bool):
            raise EncodeError(f"side_info is true or false, not {self.side_info!r}")
        _check_whole("max_unit_size", self.max_unit_size, optional=True)
        if self.max_unit_size is not None and self.max_unit_size < 1:
            raise EncodeError(f"max_unit_size {self.max_unit_size} is no number of bytes")
        if self.performance is not None and not hasattr(self.performance, "elements"):
            raise EncodeError(f"performance is a Performance, not {self.performance!r}")
        defaults = TensorOptions(**_tensor_fields(self))
        self._check(defaults)
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise EncodeError(f"rules are Rule objects, not {rule!r}")
            self._check(replace(defaults, **rule.options))

    def _check(self, options: TensorOptions) -> None:
        for name in ("qp", "scan_order", "cabac_unary_length_minus1"):
            _check_whole(name, getattr(options, name), optional=name == "qp")
        for name in ("dependent_quantization", "exact", "row_skipping", "choose_shift_parameters"):
            value = getattr(options, name)
            if not isinstance(value, bool) and (name, value) != ("exact", None):
                raise EncodeError(f"{name} is true or false, not {value!r}")
        bound = 1 << (5 + self.qp_density)
        if options.qp is not None and not -bound <= options.qp < bound:
            raise EncodeError(f"qp {options.qp} is outside {-bound}..{bound - 1} of qp_density {self.qp_density}")
        if not 0 <= options.scan_order <= 4:
            raise EncodeError(f"scan_order {options.scan_order} is outside 0..4")
        if not 0 <= options.cabac_unary_length_minus1 <= 255:
            raise EncodeError(f"cabac_unary_length_minus1 {options.cabac_unary_length_minus1} is outside 0..255")

    def for_tensor(self, name: str) -> TensorOptions:
        """The options of the tensor called ``name``."""
        options = TensorOptions(**_tensor_fields(self))
        for rule in self.rules:
            if fnmatchcase(name, rule.pattern):
                options = replace(options, **rule.options)
        return options


def _check_whole(name: str, value: object, optional: bool = False) -> None:
    if type(value) is bool or not (isinstance(value, Integral) or (optional and value is None)):
        raise EncodeError(f"{name} is a whole number, not {value!r}")


def _tensor_fields(config: EncoderConfig) -> dict[str, Any]:
    return {option.name: getattr(config, option.name) for option in fields(TensorOptions)}
