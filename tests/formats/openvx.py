"""Clients of the OpenVX format: compiled, run with a test implementation of OpenVX, and their expected results."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nnr_codec as nnr
from nnr_codec.model import Array, Model

#: Declarations of the extension for tests, and an OpenVX that computes it.
DATA = Path(__file__).resolve().parent.parent / "data" / "openvx"
FLAGS = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
COMPILER = os.environ.get("CC", "cc")

Levels = npt.NDArray[np.int64]

_FOLDER = tempfile.TemporaryDirectory(prefix="nnr-openvx-")


def compiled(folder: Path, program: Path) -> Path:
    """Return the program of a folder's client with the test implementation of OpenVX."""
    _compile(f"-I{DATA}", f"-I{folder}", folder / "client.c", _stub(), "-lm", "-o", program)
    return program


def compiles(folder: Path, *more: str) -> None:
    """Check that the client of a folder, complete or not, is C99 without warnings."""
    _compile("-fsyntax-only", *more, f"-I{DATA}", f"-I{folder}", folder / "client.c")


@cache
def _stub() -> Path:
    """Return the compiled test implementation of OpenVX."""
    target = Path(_FOLDER.name) / "stub.o"
    _compile("-O2", f"-I{DATA}", "-c", DATA / "stub.c", "-o", target)
    return target


def _compile(*arguments: object) -> None:
    if not shutil.which(COMPILER):
        pytest.skip(f"the C compiler {COMPILER} is not installed")
    done = subprocess.run([COMPILER, *FLAGS, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(program: Path, folder: Path, inputs: Sequence[Array]) -> tuple[Levels, str]:
    """Return the outputs of a client for inputs of floats, as arrays of levels, and the calls of OpenVX."""
    source, target, log = (program.with_suffix(suffix) for suffix in (".in", ".out", ".log"))
    log.unlink(missing_ok=True)
    source.write_bytes(b"".join(levels(each).astype("<i2").tobytes() for each in inputs))
    done = subprocess.run(
        [str(program), str(folder), str(source), str(target)],
        env=os.environ | {"VX_LOG": str(log)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    calls = log.read_text() if log.exists() else ""
    found = np.frombuffer(target.read_bytes(), "<i2").astype(np.int64)
    return found.reshape(len(inputs), found.size // max(len(inputs), 1)), calls


def written(model: Model | Mapping[str, Array], folder: Path, **options: Any) -> Path:
    """Return the folder decoded from a bitstream of Q7.8 numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnr.SaturationWarning)
        data = nnr.encode(model, fixed_point="q7.8", **options)
    nnr.decode_file(data, folder, format="openvx")
    return folder


# ------------------------------------------------------------------------------------------------ arithmetic of Q7.8
def levels(values: Array) -> Levels:
    """Return the nearest numbers of Q7.8."""
    return np.rint(np.asarray(values, "f8") * 256).clip(-32768, 32767).astype(np.int64)


def saturated(values: npt.NDArray[Any]) -> Levels:
    """Return the nearest levels."""
    return np.rint(values).clip(-32768, 32767).astype(np.int64)


def rounded(sums: npt.NDArray[Any]) -> Levels:
    """Return sums of products, rounded and saturated."""
    return saturated(sums / 256)


def padded(x: Levels, pads: Sequence[tuple[int, int]]) -> Levels:
    """Return an array with zeros before and after height and width."""
    return np.pad(x, [(0, 0), (0, 0), *pads])


def windows(x: Levels, size: tuple[int, int], stride: Sequence[int], dilation: Sequence[int] = (1, 1)) -> Levels:
    """Return windows of shape (batch, channels, height, width, *size)."""
    reach = [(extent - 1) * step + 1 for extent, step in zip(size, dilation, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(x, reach, axis=(2, 3))
    return found[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def convolution(
    x: Levels,
    w: Levels,
    b: Levels | None = None,
    *,
    pads: Sequence[tuple[int, int]] = ((0, 0), (0, 0)),
    stride: Sequence[int] = (1, 1),
    dilation: Sequence[int] = (1, 1),
) -> Levels:
    """Compute a convolution as NNEF defines it."""
    height, width = w.shape[2:]
    found = windows(padded(x, pads), (height, width), stride, dilation).astype("f8")  # which holds the sums exactly
    sums = np.moveaxis(np.tensordot(found, w.astype("f8"), ([1, 4, 5], [1, 2, 3])), 3, 1)
    return rounded(sums + (0 if b is None else 256 * b.reshape(1, -1, 1, 1)))


def deconvolution(x: Levels, w: Levels, b: Levels, *, pads: Sequence[tuple[int, int]], stride: Sequence[int]) -> Levels:
    """Compute a deconvolution as NNEF defines it: each input spreads the filter, and the border is removed."""
    batch, _, height, width = x.shape
    _, channels, down, right = w.shape
    sums = np.zeros((batch, channels, (height - 1) * stride[0] + down, (width - 1) * stride[1] + right), np.int64)
    for i in range(height):
        for j in range(width):
            part = np.einsum("nc,coij->noij", x[:, :, i, j], w)
            sums[:, :, i * stride[0] : i * stride[0] + down, j * stride[1] : j * stride[1] + right] += part
    (top, bottom), (left, after) = pads
    cut = sums[:, :, top : sums.shape[2] - bottom, left : sums.shape[3] - after]
    return rounded(cut + 256 * b.reshape(1, -1, 1, 1))


def normalization(
    x: Levels, mean: Array, variance: Array, offset: Array, scale: Array, *, epsilon: float = 0.001
) -> Levels:
    """Compute a batch normalization as a product, whose factors have the largest possible power of two, and a sum."""
    shape = (1, -1, *(1,) * (x.ndim - 2))
    mean, variance, offset, scale = (levels(each) / 256 for each in (mean, variance, offset, scale))
    alpha = scale / np.sqrt(variance + epsilon)
    power = max(k for k in range(16) if np.abs(alpha).max() * 2**k <= 32767 / 256)
    product = rounded(x * levels(alpha * 2**power).reshape(shape) / 2**power)
    return saturated(product + levels(offset - mean * alpha).reshape(shape))


def linear(x: Levels, w: Levels, b: Levels) -> Levels:
    """Compute a linear layer as NNEF defines it."""
    return rounded(x.reshape(len(x), -1) @ w.T + 256 * b.reshape(1, -1))


def max_pool(x: Levels, size: int, stride: int) -> Levels:
    """Compute a maximum over windows without padding."""
    found: Levels = windows(x, (size, size), (stride, stride)).max(axis=(4, 5))
    return found
