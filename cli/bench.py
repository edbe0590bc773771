"""``nnr bench``: sizes, errors and speed for a model, compared with other codecs."""

from __future__ import annotations

import json
import math
import warnings
from typing import TYPE_CHECKING, Any

import click

from . import output, params
from .errors import one_line

if TYPE_CHECKING:
    import nnr_codec as nnr

    from .contenders import Measured

QPS = (-20, -26, -32, -38)


@click.command(
    short_help="Measure sizes and speeds on a model, compared with other codecs.",
    epilog="""\b
Examples:
  nnr bench model.safetensors
  nnr bench model.nnef other.npz --qp -32 --qp -38 --json
  nnr bench model.nnef --peer ../peer/bin/python
""",
)
@click.argument("models", nargs=-1, required=True, type=params.FileName(), metavar="MODEL...")
@click.option(
    "--qp",
    "qps",
    type=click.IntRange(-128, 127),
    multiple=True,
    default=QPS,
    help=f"Quantization parameter (default {', '.join(map(str, QPS))}); repeatable.",
)
@click.option(
    "--effort",
    "efforts",
    type=click.IntRange(1, 9),
    multiple=True,
    default=(5,),
    help="Effort from 1 (fastest) to 9 (usually smallest), default 5; see docs/explanation/effort.md; repeatable.",
)
@click.option(
    "--peer",
    "python",
    envvar="NNR_PEER",
    metavar="PYTHON",
    help="Python interpreter with NNCodec, to include it (default: environment variable NNR_PEER).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@params.model_format("detected from its content")
@params.limits
@click.option("-q", "--quiet", is_flag=True, help="Do not print progress.")
def bench(
    models: tuple[str, ...],
    qps: tuple[int, ...],
    efforts: tuple[int, ...],
    python: str | None,
    as_json: bool,
    model_format: str | None,
    limits: nnr.Limits,
    quiet: bool,
) -> None:
    """Encode and decode each MODEL with several quantization parameters and efforts, and print the results.

    For comparison, the table has float16, int8 with one scale per matrix (vectors unchanged), both types
    and byte planes compressed with zstd (zlib if zstandard is not installed), and NNCodec with its defaults. Sizes of
    NNR are for complete bitstreams; sizes of other methods are for the parameter values only. Speeds are millions of
    parameters per second of CPU time in one thread, the fastest of several runs. Every result is decoded and compared
    with the model.
    """
    import nnr_codec as nnr

    from . import contenders

    warnings.simplefilter("ignore", nnr.LossWarning)  # the table shows the errors
    printer, found = output.Printer(quiet), []
    with contenders.peer(python) as other:
        for name in models:
            stored = output.stored_size(name)
            race = contenders.Race(output.model(name, format=model_format, limits=limits, or_bitstream=True))
            runs = [*contenders.ours(race, qps, efforts), *contenders.general(race)]
            if other:
                runs += contenders.theirs(race, other, qps)
            with printer.progress(name, len(runs)) as advance:
                rows = []
                for k, run in enumerate(runs, 1):
                    try:
                        rows.append(run())
                    except contenders.PeerError as error:
                        printer.warning(str(error))
                    advance(name, k, len(runs))
            if as_json:
                found += [{"model": name, "file_bytes": stored, **_numbers(row)} for row in rows]
            else:
                _print(name, len(race), rows, stored)
    if as_json:
        click.echo(json.dumps(found, indent=1))


def _numbers(row: Measured) -> dict[str, Any]:
    """Return a row for JSON."""
    each = 8 * row.nbytes / row.parameters if row.parameters else None
    return {
        "codec": row.codec,
        "setting": row.setting,
        "bytes": row.nbytes,
        "source_bytes": row.source_bytes,
        "parameters": row.parameters,
        "bits_per_parameter": each,
        "exact": row.snr == math.inf,
        "snr_db": row.snr if math.isfinite(row.snr) else None,
        "matrices_snr_db": row.matrices if math.isfinite(row.matrices) else None,
        "encode_cpu_seconds": row.encode,
        "decode_cpu_seconds": row.decode,
    }


def _print(name: str, tensors: int, rows: list[Measured], stored: int | None) -> None:
    """Print the table of one model, with percentages of its file if that is smaller than its values."""
    source_bytes = rows[0].source_bytes
    packed = output.packed_size(source_bytes, stored)
    whole = packed or source_bytes
    sizes = f"{packed:,} bytes, {source_bytes:,} as arrays" if packed else f"{source_bytes:,} bytes"
    click.echo(f"{one_line(name)}: {output.tensors(tensors)}, {rows[0].parameters:,} parameters, {sizes}")
    output.table(
        ("codec", "setting", "bytes", "%", "bits/par", "SNR dB", "matrices dB", "encode M/s", "decode M/s"),
        (
            (
                row.codec,
                row.setting,
                f"{row.nbytes:,}",
                f"{100 * row.nbytes / whole:.2f}" if whole else "-",
                f"{8 * row.nbytes / row.parameters:.3f}" if row.parameters else "-",
                *("exact" if snr == math.inf else f"{snr:.2f}" for snr in (row.snr, row.matrices)),
                _speed(row.parameters, row.encode),
                _speed(row.parameters, row.decode),
            )
            for row in rows
        ),
        right=("bytes", "%", "bits/par", "SNR dB", "matrices dB", "encode M/s", "decode M/s"),
        fold=("codec", "setting"),
    )


def _speed(parameters: int, seconds: float) -> str:
    return f"{parameters / seconds / 1e6:.1f}" if seconds > 0 and parameters else "-"
