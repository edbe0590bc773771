"""Warnings about a finished encoding: large errors, and more bytes than a lossless one takes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from ..compare import Loss
from ..config import EncoderConfig
from ..errors import EncodeWarning, LossWarning, Option
from .fixed import LISTED, LONGEST
from .prepare import Prepared

#: SNR in dB below which a warning names a matrix; the difference in dB to its quality that a matrix may have.
LEAST_SNR, SPREAD = 20.0, 10.0


def warn_of_loss(losses: Mapping[str, Loss], asked: EncoderConfig, prepared: Prepared) -> None:
    """Issue one LossWarning for all matrices with an SNR below 20 dB, unless less was asked for.

    A matrix without information left, at 0 dB or less, is named whatever was asked for.
    """
    factors, found = prepared.factors, dict[str, float]()
    for name, one in losses.items():
        weight = factors.get(name, name)
        options, least = asked.for_tensor(weight), LEAST_SNR
        if options.max_error is not None:
            least = 0.0
        elif options.snr is not None:
            least = min(least, options.snr)
        elif options.quality is not None:
            least = min(least, options.quality - SPREAD)
        if one.is_matrix and one.noise and (one.snr < least or one.snr <= 0):
            found[weight] = min(found.get(weight, one.snr), one.snr)
    if not found:
        return
    found = dict(sorted(found.items(), key=lambda item: item[1]))
    many, update = len(found) > 1, " of the update" if prepared.links else ""
    what = f"{len(found):,} {'matrices' if many else 'matrix'}{update} {'are' if many else 'is'}"
    named = ", ".join(f"{name[:LONGEST]!a} ({snr:.1f} dB)" for name, snr in [*found.items()][:LISTED])
    more = f" and {len(found) - LISTED:,} more" if len(found) > LISTED else ""
    if asked.fixed_point:
        advice: tuple[str, ...] = (
            "the steps of ",
            Option("fixed_point"),
            f" {asked.fixed_point!r} are too large for them",
        )
    elif asked.target_size is not None or asked.target_ratio is not None:
        advice = ("use a larger target, or a rule with snr= or exact=true",)
    elif asked.codebook:
        advice = "use a larger ", Option("codebook"), ", or a rule with exact=true"
    else:
        advice = "use a smaller ", Option("qp"), ", ", Option("quality"), ", or a rule with exact=true"
    warning = LossWarning(f"{what} coded below {LEAST_SNR:.0f} dB: {named}{more}; ", *advice)
    warning.tensors = found
    warnings.warn(warning, stacklevel=4)


def warn_if_larger(taken: int, exact: int, config: EncoderConfig) -> None:
    """Warn of an encoding that takes more bytes than a lossless one."""
    if taken > exact:
        option = Option("target_size", exact) if config.steps else Option("exact", True)
        message = f"the encoding takes {taken:,} bytes, more than the {exact:,} bytes of a lossless encoding"
        warnings.warn(EncodeWarning(f"{message}; use ", option), stacklevel=4)
