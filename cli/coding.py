"""Options of the encoder that several commands have: what the error may be, and how tensors are coded."""

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

#: Names of options under headings that several commands have (:class:`.params.GroupedCommand`).
QUANTIZATION = "effort rate dependent_quantization codebook"
SYNTAX = "scan_order row_skipping max_unit_size side_info indexed_references"

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
        help="Round floats to 16-bit multiples of 1/256 within -128..127.996 (docs/formats.md). Out-of-range values "
        "saturate, with a warning.",
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
        help="From fastest (1) to smallest (9), default 5; see docs/effort.md.",
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


def encoder_config(
    default: str, preset: str | None, lossless: bool, rules: Sequence[nnr.Rule], given: Mapping[str, Any]
) -> nnr.EncoderConfig:
    """Return the options of the encoder: a preset (``default`` without one), rules, and options given (not None).

    UsageError for options that cannot be combined.
    """
    import nnr_codec as nnr

    if lossless and preset not in (None, LOSSLESS):
        raise click.UsageError(f"--lossless is --preset {LOSSLESS}, not {preset}")
    options: Any = {name: value for name, value in given.items() if value is not None}
    with usage_errors():
        return nnr.EncoderConfig.preset(LOSSLESS if lossless else preset or default, rules=rules, **options)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise UsageError, with the names that the user typed, for an EncodeError."""
    import nnr_codec as nnr

    try:
        yield
    except nnr.EncodeError as error:
        # Keys of a rule have the library's names.
        raise click.UsageError(f"--{error}" if error.where else error.named(_typed)) from None


def _typed(option: Option) -> str:
    """Return what the user of the current command typed for an option of the encoder."""
    if option.name == "exact" and click.get_current_context().params["preset"] == LOSSLESS:
        return f"--preset {LOSSLESS}"
    return option_name(option)
