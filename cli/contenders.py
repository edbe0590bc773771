"""Contenders of ``nnr bench``: this codec, common methods of compressing tensors, and NNCodec if available."""

from __future__ import annotations

import json
import math
import subprocess
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

import nnr_codec as nnr
from nnr_codec.dtypes import stored_type
from nnr_codec.model import Array, Model, source_size

from .nncodec_worker import timed

Tensors = dict[str, Array]
Encode = Callable[[], bytes]
Decode = Callable[[bytes], Tensors]


@dataclass(frozen=True)
class Measured:
    """Result of one method for a model.

    Parameters
    ----------
    codec, setting : str
    nbytes : int
    source_bytes, parameters : int
        Size in bytes and number of parameters of the model.
    snr, matrices : float
        Signal-to-noise ratio in dB of all tensors, and of the matrices (:class:`nnr_codec.LossSummary`); infinite if
        they are equal.
    encode, decode : float
        CPU seconds; the fastest of up to five runs, or fewer if together they take half a second.
    """

    codec: str
    setting: str
    nbytes: int
    source_bytes: int
    parameters: int
    snr: float
    matrices: float
    encode: float
    decode: float


class Race:
    """Measurement of methods on one model.

    Parameters
    ----------
    model : Model
        The model, whose tensors are read once.
    """

    def __init__(self, model: Model) -> None:
        self.tensors: Tensors = {name: np.asarray(model[name]) for name in model}
        self.model = replace(model, tensors=self.tensors)
        self.source_bytes, self.parameters = source_size(self.model)

    def run(self, codec: str, setting: str, encode: Encode, decode: Decode, *, exact: bool = False) -> Measured:
        """Encode and decode, and compare the result with the model, bit for bit if ``exact``.

        Raises FormatError if they differ.
        """
        data, encoding = timed(encode)
        decoded, decoding = timed(lambda: decode(data))
        return self.row(codec, setting, len(data), decoded, encoding, decoding, exact=exact)

    def row(
        self,
        codec: str,
        setting: str,
        nbytes: int,
        decoded: Tensors,
        encoding: float,
        decoding: float,
        *,
        exact: bool = False,
    ) -> Measured:
        """Return the measured row after checking the decoded tensors."""
        found = nnr.compare_models(self.tensors, decoded)
        if found.missing or found.extra or found.shapes or (exact and not found.same()):
            raise nnr.FormatError(f"{codec} {setting} does not restore the model")
        matrices = math.inf if found.loss.matrices is None else found.loss.matrices
        return Measured(
            codec, setting, nbytes, self.source_bytes, self.parameters, found.snr, matrices, encoding, decoding
        )

    def __len__(self) -> int:
        return len(self.tensors)


def ours(race: Race, qps: Sequence[int], efforts: Sequence[int]) -> Iterator[Callable[[], Measured]]:
    """Yield measurements of this codec with several quantization parameters, and lossless, at several efforts."""
    for effort in efforts:
        suffix = f", effort {effort}" if len(efforts) > 1 else ""
        for config, setting in (
            *((nnr.EncoderConfig(qp=qp, effort=effort), f"qp {qp}") for qp in qps),
            (nnr.EncoderConfig.preset("lossless", effort=effort), "lossless"),
        ):
            encode = partial(_encoded, race.model, config)
            yield partial(race.run, "nnr", f"{setting}{suffix}", encode, _decoded, exact=bool(config.exact))


def _encoded(model: Model, config: nnr.EncoderConfig) -> bytes:
    """Return the bitstream without warnings: the table shows sizes and errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nnr.EncodeWarning)
        return nnr.encode(model, config)


def _decoded(data: bytes) -> Tensors:
    return dict(nnr.decode(data, limits=nnr.Limits.unlimited()).tensors)


# ------------------------------------------------------------------------------------------------ common methods
@dataclass(frozen=True)
class Packer:
    """Compressor of bytes."""

    name: str
    pack: Callable[[bytes], bytes]
    unpack: Callable[[bytes], bytes]


def packer() -> Packer:
    """Return zstd if it is installed, else zlib."""
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]  # an extra
    except ImportError:
        return Packer("zlib -9", lambda data: zlib.compress(data, 9), zlib.decompress)
    return Packer(
        "zstd -19",
        lambda data: zstandard.compress(data, 19),
        lambda data: zstandard.ZstdDecompressor().decompress(data),
    )


@dataclass(frozen=True)
class Cast:
    """Conversion of tensors to other arrays, which are stored in memory layout, one after another."""

    name: str
    there: Callable[[Array], list[Array]]
    back: Callable[[list[Array], Array], Array]


def _is_float(array: Array) -> bool:
    stored = stored_type(array.dtype)
    return stored is not None and stored.kind == "f"


def _to_half(array: Array) -> list[Array]:
    with np.errstate(over="ignore"):
        return [array.astype(np.float16)] if _is_float(array) else [array]


def _to_int8(array: Array) -> list[Array]:
    """Return finite matrices as levels with one scale each; other arrays unchanged."""
    if not _is_float(array) or sum(extent > 1 for extent in array.shape) < 2:
        return [array]
    with np.errstate(over="ignore", invalid="ignore"):
        values = array.astype(np.float32)
    if not np.isfinite(values).all():
        return [array]
    scale = np.float32(np.abs(values).max() / 127) or np.float32(1)
    return [np.rint(values / scale).astype(np.int8), np.array([scale])]


def _from_int8(parts: list[Array], like: Array) -> Array:
    if len(parts) == 1:
        return parts[0]
    levels, scale = parts
    product: npt.NDArray[np.float32] = levels.astype(np.float32) * scale.astype(np.float32)
    return product.astype(like.dtype)


def _planes(array: Array) -> list[Array]:
    """Return the first bytes of all items, then the second bytes, and so on."""
    items = np.ascontiguousarray(array).reshape(-1).view(np.uint8).reshape(-1, array.itemsize)
    return [np.ascontiguousarray(items.T)]


def _from_planes(parts: list[Array], like: Array) -> Array:
    return np.ascontiguousarray(parts[0].T).reshape(-1).view(like.dtype).reshape(like.shape)


HALF = Cast("float16", _to_half, lambda parts, like: parts[0].astype(like.dtype))
INT8 = Cast("int8", _to_int8, _from_int8)
PLANES = Cast("byte planes", _planes, _from_planes)


def general(race: Race) -> Iterator[Callable[[], Measured]]:
    """Yield measurements of float16 and int8 with and without a byte compressor, and of compressed byte planes."""
    by = packer()
    plain = Packer("", bytes, bytes)
    for cast, how, exact in (
        (HALF, plain, False),
        (HALF, by, False),
        (INT8, plain, False),
        (INT8, by, False),
        (PLANES, by, True),
    ):
        yield partial(_stored, race, cast, how, exact)


def _stored(race: Race, cast: Cast, how: Packer, exact: bool) -> Measured:
    layout = {name: [(part.dtype, part.shape) for part in cast.there(array)] for name, array in race.tensors.items()}

    def encode() -> bytes:
        return how.pack(b"".join(part.tobytes() for array in race.tensors.values() for part in cast.there(array)))

    def decode(data: bytes) -> Tensors:
        content, at, out = how.unpack(data), 0, {}
        for name, array in race.tensors.items():
            parts: list[Array] = []
            for dtype, shape in layout[name]:
                size = int(np.prod(shape, dtype=np.int64))
                parts.append(np.frombuffer(content, dtype, size, at).reshape(shape))
                at += parts[-1].nbytes
            out[name] = cast.back(parts, array)
        return out

    return race.run(cast.name, how.name, encode, decode, exact=exact)


# ------------------------------------------------------------------------------------------------ NNCodec
class PeerError(Exception):
    """Failure of NNCodec to code a model."""


class Peer:
    """NNCodec in its own process, created by :func:`peer`.

    Its methods raise MissingDependencyError if the process ended.
    """

    def __init__(self, process: subprocess.Popen[str], log: BinaryIO, folder: Path) -> None:
        self._process, self._log = process, log
        self._arrays, self._data = folder / "arrays.npz", folder / "data.nnr"
        self.name = f"NNCodec {self._answer()['version']}"

    def encode(self, tensors: Tensors, options: Mapping[str, Any], *, timed: bool = False) -> tuple[bytes, Any]:
        """Return the bitstream, and the CPU seconds if timed. Raise PeerError for a model that NNCodec cannot code."""
        np.savez(self._arrays, *tensors.values())  # numbered, because archive members cannot have arbitrary names
        where = {"from": str(self._arrays), "names": list(tensors), "to": str(self._data)}
        answer = self.ask("encode", options=options, timed=timed, **where)
        return self._data.read_bytes(), answer["seconds"]

    def decode(self, data: bytes, *, timed: bool = False) -> tuple[Tensors, Any]:
        """Return the tensors, and the CPU seconds if timed.

        Raises PeerError for a bitstream that NNCodec cannot decode.
        """
        self._data.write_bytes(data)
        answer = self.ask("decode", timed=timed, **{"from": str(self._data), "to": str(self._arrays)})
        with np.load(self._arrays) as file:
            return {name: file[f"arr_{k}"] for k, name in enumerate(answer["names"])}, answer["seconds"]

    def ask(self, verb: str, **request: Any) -> dict[str, Any]:
        """Return the answer to a request of :mod:`nnr_cli.nncodec_worker`.

        Raises PeerError if NNCodec raised an error.
        """
        request["do"] = verb
        assert self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # the process ended; its answer has the reason
        answer = self._answer()
        if "error" in answer:
            raise PeerError(f"{self.name}: {answer['error']}")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._log.seek(0)
            *_, reason = ["no reason given", *self._log.read().decode(errors="replace").splitlines()]
            raise nnr.MissingDependencyError(f"the NNCodec process ended: {reason}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def peer(python: str | None) -> Iterator[Peer | None]:
    """Yield NNCodec in the given interpreter, or None without one."""
    if not python:
        yield None
        return
    command = [python, "-I", str(Path(__file__).with_name("nncodec_worker.py"))]  # -I: no imports from its folder
    with tempfile.TemporaryFile() as log, tempfile.TemporaryDirectory(prefix="nnr-bench-") as folder:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, encoding="utf-8"
            )
        except OSError as error:
            raise nnr.MissingDependencyError(f"{python} cannot be run: {error.strerror}") from None
        try:
            yield Peer(process, log, Path(folder))
        finally:
            process.kill()
            process.communicate()


def theirs(race: Race, codec: Peer, qps: Sequence[int]) -> Iterator[Callable[[], Measured]]:
    """Yield measurements of NNCodec with its defaults; unsupported tensors count uncompressed."""
    for qp in qps if any(map(_taken, race.tensors.values())) else ():
        yield partial(_by_peer, race, codec, qp)


def _taken(array: Array) -> bool:
    return array.dtype == np.float32 and array.ndim > 0 and array.size > 0


def _by_peer(race: Race, codec: Peer, qp: int) -> Measured:
    taken = {name: array for name, array in race.tensors.items() if _taken(array)}
    rest = {name: array for name, array in race.tensors.items() if name not in taken}
    data, encoding = codec.encode(taken, {"qp": qp}, timed=True)
    decoded, decoding = codec.decode(data, timed=True)
    nbytes = len(data) + sum(array.nbytes for array in rest.values())
    return race.row(codec.name, f"qp {qp}", nbytes, {**decoded, **rest}, encoding, decoding)
