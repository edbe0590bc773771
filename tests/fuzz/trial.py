"""One input: which way it is read, what comes of it, and what that costs."""

from __future__ import annotations

import contextlib
import ctypes
import random
import resource
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.constants import NNR_NDU
from nnr_codec.decoder import bins, unit
from nnr_codec.decoder.pruning import PruningWarning
from nnr_codec.errors import LimitError, NnrError
from nnr_codec.syntax import Session

from .mutate import Mutant
from .seeds import STRICT, Seed

#: Processor time that an input may take, seconds.
SECONDS = 1.0

#: Memory that an input may take: this, and so many times what it declares or what the limits permit.
BASE, TIMES = 64 << 20, 2.2

M_MMAP_THRESHOLD, MMAP_THRESHOLD = -3, 1 << 18


# ------------------------------------------------------------------------------------------------ the ways
class States:
    """What is decoded before a seed, once for each."""

    def __init__(self) -> None:
        self._states: dict[str, nnr.UpdateState] = {}

    def before(self, seed: Seed) -> nnr.UpdateState:
        """The state in which a seed is decoded."""
        if seed.name not in self._states:
            decoder = nnr.UpdateDecoder(**seed.options)
            for data in seed.before:
                with contextlib.suppress(NnrError):
                    decoder.decode(data)
            self._states[seed.name] = decoder.state
        return self._states[seed.name].fork()


STATES = States()

Way = Callable[[bytes, Seed, random.Random], object]


def _decode(data: bytes, seed: Seed, rnd: random.Random) -> object:
    return nnr.open(data, **seed.options).decode(state=STATES.before(seed), allow_missing=rnd.random() < 0.5)


def _decode_options(data: bytes, seed: Seed, rnd: random.Random) -> object:
    options = rnd.choice(({"raw": True}, {"dtype": "float32"}, {"dtype": "float16"}, {"allow_missing": True}))
    return nnr.decode(data, **seed.options, **options)


def _decode_in_threads(data: bytes, seed: Seed, rnd: random.Random) -> object:
    return nnr.decode(data, **seed.options, jobs=2)


def _open(data: bytes, seed: Seed, rnd: random.Random) -> object:
    """Each tensor, and rows of it; what cannot be decoded does not matter to the others."""
    error: NnrError | None = None
    with nnr.open(data, **seed.options) as file:
        for name, info in file.info.items():
            try:
                if rnd.random() < 0.3 and info.shape and info.parameters:
                    file.rows(name, 0, 1)
                else:
                    assert file[name].shape == info.shape
            except NnrError as refused:
                error = refused
    if error:
        raise error
    return None


def _stream(data: bytes, seed: Seed, rnd: random.Random) -> object:
    """In chunks, at times behind what comes before."""
    if rnd.random() < 0.3:
        data = b"".join((*seed.before, data))
    decoder = nnr.StreamDecoder(**seed.options, allow_missing=rnd.random() < 0.5)
    size = rnd.choice((1 + len(data) // 64, 61, 509, len(data)))
    for start in range(0, len(data), max(size, 1)):
        decoder.feed(data[start : start + size])
    return decoder.finish()


def _update(data: bytes, seed: Seed, rnd: random.Random) -> object:
    return nnr.UpdateDecoder(**seed.options, state=STATES.before(seed)).decode(data, raw=rnd.random() < 0.1)


def _inspect(data: bytes, seed: Seed, rnd: random.Random) -> object:
    return nnr.inspect(data, **seed.options)


def _units(data: bytes, seed: Seed, rnd: random.Random) -> object:
    return nnr.write_units(nnr.units(data, **seed.options), topology_dimensions=seed.dimensions, topology=seed.topology)


def _tree(data: bytes, seed: Seed, rnd: random.Random) -> object:
    return nnr.tree(data, **seed.options, inferred=rnd.random() < 0.5, payloads=True)


def _requirements(data: bytes, seed: Seed, rnd: random.Random) -> object:
    return nnr.requirements(data, **seed.options)


def _verify(data: bytes, seed: Seed, rnd: random.Random) -> object:
    return nnr.verify(data, **seed.options, inputs=seed.before if rnd.random() < 0.5 else ())


#: The ways of reading, and the share of inputs that each has.
WAYS: dict[str, tuple[Way, int]] = {
    "decode": (_decode, 36),
    "decode with options": (_decode_options, 5),
    "decode in threads": (_decode_in_threads, 1),
    "open": (_open, 10),
    "StreamDecoder": (_stream, 14),
    "UpdateDecoder": (_update, 16),
    "inspect": (_inspect, 4),
    "units": (_units, 4),
    "tree": (_tree, 3),
    "requirements": (_requirements, 2),
    "verify": (_verify, 5),
}


# ------------------------------------------------------------------------------------------------ the trial
@dataclass(slots=True)
class Result:
    """What came of an input.

    Parameters
    ----------
    outcome : str
        ``valid``, or the name of the NnrError.
    in_kernel : bool
        Whether the kernel's decoder has begun with a payload.
    seconds : float
        Processor time.
    problem : str
        Why it is a finding; empty for nearly all.
    """

    way: str
    outcome: str
    in_kernel: bool
    seconds: float
    problem: str = ""


class Kernel:
    """Counts the payloads that decoders begin with; a context in which it does."""

    def __init__(self) -> None:
        self.payloads = 0

    def __enter__(self) -> Kernel:
        self._decoder = decoder = unit.PayloadDecoder

        def counted(*args: Any, **options: Any) -> Any:
            self.payloads += 1
            return decoder(*args, **options)

        unit.PayloadDecoder = bins.PayloadDecoder = counted  # type: ignore[assignment,misc]
        return self

    def __exit__(self, *_: object) -> None:
        unit.PayloadDecoder = bins.PayloadDecoder = self._decoder  # type: ignore[misc]


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """Warnings are errors, but for the one that tells of masks that are not applied."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PruningWarning)
        yield


def attempt(mutant: Mutant, rnd: random.Random, kernel: Kernel, limit: float = SECONDS) -> Result:
    """Read a mutant in one of the ways, which may take ``limit`` seconds of processor time."""
    (way,) = rnd.choices(list(WAYS), [share for _, share in WAYS.values()])
    call, choices = WAYS[way][0], rnd.getrandbits(32)
    before, problem, seconds = kernel.payloads, "", 0.0
    for _ in range(3):  # a machine may stumble; what is slow by itself is slow each time
        rnd = random.Random(choices)
        started = time.process_time()
        try:
            call(mutant.data, mutant.seed, rnd)
            outcome = "valid"
        except NnrError as error:
            outcome = type(error).__name__
            if type(error) is LimitError and "not enough memory" in str(error):
                problem = f"{way}: {error}"
        except Exception:
            outcome, problem = "another exception", f"{way}: {traceback.format_exc()}"
        seconds = time.process_time() - started
        if seconds < limit:
            break
    else:
        problem = problem or f"{way}: {seconds:.2f} s of processor time"
    return Result(way, outcome, kernel.payloads > before, seconds, problem)


# ------------------------------------------------------------------------------------------------ memory
def declared(mutant: Mutant) -> int:
    """Bytes of the tensors that the headers declare, as far as they can be read; at most what the limits permit.

    G and H count, and what is made of them; each number with 8 bytes.
    """
    total = 0
    session = Session(mutant.seed.dimensions)
    reader = UnitReader(mutant.data, STRICT, session)
    with contextlib.suppress(NnrError):
        for each in reader:
            if each.header.nnr_unit_type == NNR_NDU:
                dims = [session.tensor_dimensions(each.ndu), *session.coded_dimensions(each.ndu)]
                total += 8 * sum(size for size in map(prod, dims) if size <= STRICT.max_tensor_elements)
    return min(total, STRICT.max_total_bytes)


class Memory:
    """The peak of the process above what it had when this was made."""

    def __init__(self) -> None:
        # Large pieces of memory go back to the system, so that a peak is that of one input.
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        self._base = self._reset()

    def peak(self) -> int:
        """Bytes since the last call that returned more than 1 MiB."""
        grown = _high_water() - self._base
        if grown > 1 << 20:
            self._reset()
        return grown

    @staticmethod
    def _reset() -> int:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
        return _high_water()


def _high_water() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
