"""Options of the encoder that several commands have: what the error may be, and how tensors are coded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from . import params

if TYPE_CHECKING:
    import nnr_codec as nnr

F = TypeVar("F", bound=Callable[..., None])
LOSSLESS = "lossless"

#: The options by the names that commands get them by.
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "qp_density": click.option(
        "--qp-density",
        type=click.IntRange(0, 7),
        help="Steps of qp that double the step size, as a power of 2 (default 2; 7 with any other goal than --qp).",
    ),
    "snr": click.option("--snr", type=float, metavar="DB", help="The least SNR that a tensor may have."),
    "max_error": click.option(
        "--max-error", type=float, metavar="E", help="The largest absolute error that a parameter may have."
    ),
    "target_size": click.option(
        "--target-size",
        type=params.Size(),
        metavar="SIZE",
        help="Largest size of the bitstream, such as 2.5MB or 300KiB; lossless where that fits, else at most 1 % less.",
    ),
    "target_ratio": click.option(
        "--target-ratio",
        type=params.Ratio(),
        metavar="R",
        help="The same, relative to the tensors as the model stores them, such as 0.1 or 10%.",
    ),
    "lossless": click.option("--lossless", is_flag=True, help="Short for --preset lossless."),
    "fixed_point": click.option(
        "--fixed-point",
        type=click.Choice(["q7.8"]),
        help="Round floats to 16-bit multiples of 1/256 within -128..127.996 (docs/reference/formats.md). Out-of-range "
        "values saturate, with a warning.",
    ),
    "dependent_quantization": click.option(
        "--dependent-quantization/--no-dependent-quantization",
        "--dq/--no-dq",
        default=None,
        help="Dependent quantization (default) or uniform.",
    ),
    "scan_order": click.option(
        "--scan-order",
        type=click.IntRange(0, 4),
        help="0: row by row (default); 1 to 4: blocks of 8, 16, 32, 64 with entry points.",
    ),
    "row_skipping": click.option(
        "--row-skipping/--no-row-skipping", default=None, help="Code rows of zeros as one flag each (profile 1)."
    ),
    "max_unit_size": click.option(
        "--max-unit-size",
        type=click.IntRange(min=1),
        metavar="BYTES",
        help="Spread tensors over units of at most so many bytes (up to 255 each).",
    ),
    "side_info": click.option(
        "--side-info/--no-side-info",
        default=None,
        help="Store types, shapes and metadata that NNR cannot represent as side information (default), which other "
        "decoders skip. --no-side-info rejects a model that needs it.",
    ),
    "indexed_references": click.option(
        "--indexed-references",
        is_flag=True,
        default=None,
        help="Name the tensors once, in a list.",
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
        help="From fastest (1) to smallest (9), default 5; see docs/explanation/effort.md.",
    ),
    "rate": click.option(
        "--rate",
        type=click.FloatRange(0, 16),
        help="Squared steps that a bit is worth when tensors are quantized; 0 for the least error. By --effort "
        "otherwise.",
    ),
    "codebook": click.option(
        "--codebook",
        type=click.IntRange(0, 65_536),
        metavar="SIZE",
        help="Quantize to so many values at most, which suit each tensor; 0: never.",
    ),
    "jobs": click.option(
        "-j", "--jobs", type=click.IntRange(1), default=1, help="Threads (default 1); the output is the same."
    ),
}


def options(*names: str) -> Callable[[F], F]:
    """The options of these names, in this order."""

    def add(command: F) -> F:
        for name in reversed(names):
            command = _OPTIONS[name](command)
        return command

    return add


def configured(preset: str, rules: Sequence[nnr.Rule], given: Mapping[str, Any]) -> nnr.EncoderConfig:
    """The options of the encoder that a preset, rules and options given (not None) stand for; UsageError for others."""
    import nnr_codec as nnr

    try:
        return nnr.EncoderConfig.preset(preset, rules=rules, **{name: v for name, v in given.items() if v is not None})
    except nnr.EncodeError as error:
        raise usage_error(error) from None


def usage_error(error: nnr.EncodeError) -> click.UsageError:
    """Return the error for the command line, with its names of the options."""
    if error.where:  # the rule
        return click.UsageError(f"--{error}")
    return click.UsageError(
        error.named(lambda name: "--lossless" if name == "exact" else f"--{name.replace('_', '-')}")
    )
