"""Encoder options shared by several commands: limits on the error, and coding of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import params
from .errors import option_name

if TYPE_CHECKING:
    import nnr_codec as nnr
    from nnr_codec.errors import Option

F = TypeVar("F", bound=Callable[..., None])
LOSSLESS = "lossless"

#: Option names under the headings that several commands share (:class:`.params.GroupedCommand`).
QUANTIZATION = "effort rate dependent_quantization codebook"
SYNTAX = "fast_decode scan_order row_skipping max_unit_size side_info index indexed_references"

#: Click options by parameter name.
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "qp_density": click.option(
        "--qp-density",
        type=click.IntRange(0, 7),
        help="Base-2 logarithm of the number of qp steps that double the step size (default 2; 7 with any goal but"
        " --qp).",
    ),
    "snr": click.option("--snr", type=float, metavar="DB", help="Minimum SNR of each tensor in dB."),
    "max_error": click.option("--max-error", type=float, metavar="E", help="Maximum absolute error of each parameter."),
    "target_size": click.option(
        "--target-size",
        type=params.Size(),
        metavar="SIZE",
        help="Maximum size of the bitstream, such as 2.5MB or 300KiB; lossless if that fits, else within 1 % of it.",
    ),
    "target_ratio": click.option(
        "--target-ratio",
        type=params.Ratio(),
        metavar="R",
        help="Maximum size relative to the tensors as the model stores them, such as 0.1 or 10%.",
    ),
    "lossless": click.option("--lossless", is_flag=True, help="Short for --preset lossless."),
    "fixed_point": click.option(
        "--fixed-point",
        type=click.Choice(["q7.8"]),
        help="Round floats to 16-bit multiples of 1/256 within -128..127.996 (docs/reference/formats.md). "
        "Out-of-range values saturate, with a warning.",
    ),
    "dependent_quantization": click.option(
        "--dependent-quantization/--no-dependent-quantization",
        "--dq/--no-dq",
        default=None,
        help="Use dependent (default) or uniform quantization.",
    ),
    "fast_decode": click.option(
        "--fast-decode",
        is_flag=True,
        default=None,
        help="Write entry points, from which decoders can decode parts of a tensor side by side; up to 1 % more bytes.",
    ),
    "scan_order": click.option(
        "--scan-order",
        type=click.IntRange(0, 4),
        help="0: row by row (default); 1 to 4: blocks of 8, 16, 32, 64 with entry points.",
    ),
    "row_skipping": click.option(
        "--row-skipping/--no-row-skipping", default=None, help="Code each all-zero row as one flag (profile 1)."
    ),
    "max_unit_size": click.option(
        "--max-unit-size",
        type=click.IntRange(min=1),
        metavar="BYTES",
        help="Maximum size of a unit in bytes; larger tensors are split into up to 255 units.",
    ),
    "side_info": click.option(
        "--side-info/--no-side-info",
        default=None,
        help="Store types, shapes and metadata that NNR cannot represent as side information (default), which other "
        "decoders skip. --no-side-info rejects a model that needs it, except for int2 and int4, which decode to int8.",
    ),
    "index": click.option(
        "--index",
        is_flag=True,
        default=None,
        help="Write an index of the tensors, with which remote files are listed and read in few requests. Other "
        "decoders skip it.",
    ),
    "indexed_references": click.option(
        "--indexed-references",
        is_flag=True,
        default=None,
        help="Store the tensor names once, in a list.",
    ),
    "parts": click.option(
        "--parts",
        multiple=True,
        callback=params.parts,
        metavar="GLOB=NAME",
        help="Put the tensors whose names match into the part NAME, an aggregate unit that decodes without the rest; "
        "repeatable. --parts layers makes a part of each layer, --parts size:1MB parts of up to this size. NNCodec "
        "cannot read parts.",
    ),
    "layer_parameter_sets": click.option(
        "--layer-parameter-sets",
        is_flag=True,
        default=None,
        help="Write the quantization parameter of each layer into a layer parameter set, and whether its tensors were "
        "sparsified, pruned or unified. NNCodec cannot read such sets.",
    ),
    "join": click.option(
        "--join",
        multiple=True,
        metavar="NAMES",
        help="Code tensors together in one unit with one step size, such as 'layer.*.{query,key,value}.weight'; "
        "repeatable. NNCodec cannot read such units.",
    ),
    "rules": click.option(
        "--rule",
        "rules",
        multiple=True,
        callback=params.rules,
        metavar="GLOB:KEY=VALUE,...",
        help="Options for the tensors whose names match; repeatable.",
    ),
    "effort": click.option(
        "--effort",
        type=click.IntRange(1, 9),
        help="Effort from 1 (fastest) to 9 (usually smallest), default 5; see docs/explanation/effort.md.",
    ),
    "rate": click.option(
        "--rate",
        type=click.FloatRange(0, 16),
        help="Cost of a bit in squared step sizes during quantization; 0 for the least error. Default: by --effort.",
    ),
    "codebook": click.option(
        "--codebook",
        type=click.IntRange(0, 65_536),
        metavar="SIZE",
        help="Maximum number of codebook entries of a tensor; 0: no codebooks.",
    ),
    "jobs": click.option(
        "-j",
        "--jobs",
        type=click.IntRange(1),
        default=1,
        help="Number of threads (default 1); the output does not depend on it.",
    ),
}


def options(*names: str) -> Callable[[F], F]:
    """Return a decorator that adds these options, in this order."""

    def add(command: F) -> F:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return add


def encoder_config(
    default: str, preset: str | None, lossless: bool, rules: Sequence[nnr.Rule], given: Mapping[str, Any]
) -> nnr.EncoderConfig:
    """Return the encoder configuration for a preset (None: ``default``), rules and given options (not None).

    Raises UsageError for options that cannot be combined.
    """
    import nnr_codec as nnr

    if lossless and preset not in (None, LOSSLESS):
        raise click.UsageError(f"--lossless and --preset {preset} cannot be combined; choose one")
    options: Any = {name: value for name, value in given.items() if value is not None}
    is_default = default == LOSSLESS and not lossless and preset is None
    with usage_errors("the default without --quality or another goal" if is_default else ""):
        return nnr.EncoderConfig.preset(LOSSLESS if lossless else preset or default, rules=rules, **options)


@contextmanager
def usage_errors(exact: str = "") -> Iterator[None]:
    """Convert an EncodeError to a UsageError with the names that the user typed.

    ``exact``, if not empty, is the text for the option of this name.
    """
    import nnr_codec as nnr

    try:
        yield
    except nnr.EncodeError as error:
        # Keys of a rule have the library's names.
        message = error.named(lambda option: exact if exact and option.name == "exact" else _typed(option))
        raise click.UsageError(f"--{error}" if error.where else message) from None


def _typed(option: Option) -> str:
    """Return the text that the user of the current command typed for an encoder option."""
    if option.name == "exact" and click.get_current_context().params["preset"] == LOSSLESS:
        return f"--preset {LOSSLESS}"
    if option.name in ("sensitivity", "hessians") and click.get_current_context().params.get("data"):
        return "--data"
    return option_name(option)
