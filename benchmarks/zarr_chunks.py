"""Size and speed of chunks in zarr, with NNR, zstd and blosc: ``python -m benchmarks.zarr_chunks MODEL.safetensors``.

Prints the rows of docs/guides/zarr.md: for the matrices of a model and for a smooth field of floats, with chunks of
64 KB, 1 MB and 16 MB. Speeds refer to CPU time, with one worker and a store in memory; decoding is the faster of two.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec
from zarr.codecs.numcodecs import FixedScaleOffset
from zarr.storage import MemoryStore

import nnr_codec as nnr

Floats = npt.NDArray[np.float32]

#: Rows and columns of a chunk.
CHUNKS = {"64 KB": (128, 128), "1 MB": (512, 512), "16 MB": (2048, 2048)}
#: Values of max_error, by data.
ERRORS = {"weights": 1e-3, "field": 0.05}


def weights(path: str) -> Floats:
    """Return 2048 rows and columns of the matrices of a model, except embeddings."""
    model = nnr.load(path)
    parts = [np.ravel(model[name]) for name in model if model[name].ndim == 2 and "embeddings" not in name]
    return np.concatenate(parts)[: 1 << 22].astype(np.float32).reshape(2048, 2048)


def field() -> Floats:
    """Return temperatures in kelvin with a mean of 280, a deviation of 15 and mostly low spatial frequencies."""
    rng = np.random.default_rng(0)
    squares = np.fft.rfftfreq(2048)[None, :] ** 2 + np.fft.fftfreq(2048)[:, None] ** 2
    squares[0, 0] = np.inf
    spectrum = (rng.standard_normal(squares.shape) + 1j * rng.standard_normal(squares.shape)) * squares**-1.5
    waves = np.fft.irfft2(spectrum, (2048, 2048))
    return (280 + 15 * waves / waves.std()).astype(np.float32)


def main() -> None:
    zarr.config.set({"threading.max_workers": 1})
    for kind, data in (("weights", weights(sys.argv[1])), ("field", field())):
        nnr_options = {"nnr": {}, "nnr, quality 40": {"quality": 40}, "nnr, max_error": {"max_error": ERRORS[kind]}}
        blosc = BloscCodec(cname="zstd", clevel=5, shuffle="shuffle")
        rounded = FixedScaleOffset(offset=float(data.mean()), scale=0.5 / ERRORS[kind], dtype="<f4", astype="<i2")
        codecs: dict[str, dict[str, Any]] = {
            "zstd (default of zarr)": {},
            "blosc, shuffle, zstd": {"compressors": blosc},
            "FixedScaleOffset, blosc": {"filters": [rounded], "compressors": blosc},
        }
        for name, options in nnr_options.items():
            codecs[name] = {"serializer": {"name": "nnr", "configuration": options}, "compressors": None}
        for size, shape in CHUNKS.items():
            for name, codec in codecs.items():
                store = MemoryStore()
                array = zarr.create_array(store, shape=data.shape, chunks=shape, dtype="f4", **codec)
                encoded, (decoded, again) = seconds(array, data), [seconds(array) for _ in range(2)]
                stored = sum(len(value) for key, value in store._store_dict.items() if key.startswith("c/"))
                speeds = (data.nbytes / 1e6 / each for each in (encoded, min(decoded, again)))
                error = np.abs(array[...] - data).max()
                cells = [kind, size, name, f"{100 * stored / data.nbytes:.1f} %", *(f"{each:.0f}" for each in speeds)]
                print(f"| {' | '.join(cells)} | {error:.2g} |", flush=True)


def seconds(array: Any, data: Floats | None = None) -> float:
    """Return the CPU time to write data, or to read all."""
    start = time.process_time()
    if data is None:
        array[...]
    else:
        array[...] = data
    return time.process_time() - start


if __name__ == "__main__":
    main()
