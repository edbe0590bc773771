"""Trial of one input: the way of reading, the outcome, and the cost."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import nnr_codec as nnr
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.constants import NNR_CPT_DC, NNR_NDU, NNR_PT_BLOCK
from nnr_codec.decoder import bins, unit
from nnr_codec.decoder.pruning import PruningWarning
from nnr_codec.decoder.task import data_format
from nnr_codec.errors import LimitError, NnrError
from nnr_codec.syntax import Session
from nnr_codec.tensor.quant import DTYPES

from ..lanes import all_in_lanes, no_lanes
from .agreement import agree
from .mutate import Mutant
from .seeds import STRICT, Seed

#: Processor time limit of an input in seconds.
SECONDS = 1.0

#: Memory limit of an input: this, plus a multiple of the declared or permitted size.
BASE, TIMES = 64 << 20, 2.2

#: Additional address space for the stacks of two threads.
STACKS = 32 << 20

#: Parts of messages about lack of memory.
NO_MEMORY = "not enough memory"

M_MMAP_THRESHOLD, MMAP_THRESHOLD = -3, 1 << 18
M_ARENA_MAX = -8


# ------------------------------------------------------------------------------------------------ the ways
class States:
    """States before seeds, each decoded once; ``payloads`` is the number of payloads of a seed."""

    def __init__(self) -> None:
        self._states: dict[str, nnr.UpdateState] = {}
        self.payloads: dict[str, int] = {}

    def prepare(self, seed: Seed, kernel: Kernel) -> None:
        """Decode the bitstreams before a seed."""
        if seed.name not in self._states:
            count = kernel.payloads
            decoder = nnr.UpdateDecoder(**seed.options)
            for data in seed.before:
                with contextlib.suppress(NnrError):
                    decoder.decode(data)
            self._states[seed.name] = decoder.state
            self.payloads[seed.name] = kernel.payloads - count

    def before(self, seed: Seed) -> nnr.UpdateState:
        """Return the state in which a seed is decoded."""
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


def _decode_in_lanes(data: bytes, seed: Seed, rnd: random.Random) -> object:
    """Decode in lanes, with the same tensors or error as scalar code."""
    results: list[dict[str, Any] | NnrError] = []
    for lanes in (no_lanes(), all_in_lanes()):
        try:
            with lanes:
                results.append(nnr.decode(data, **seed.options).tensors)
        except NnrError as error:
            results.append(error)
    scalar, vector = results
    if isinstance(scalar, NnrError):
        assert (type(scalar), str(scalar)) == (type(vector), str(vector))
        raise scalar
    assert isinstance(vector, dict)
    assert list(scalar) == list(vector)
    for name, array in scalar.items():
        assert array.tobytes() == vector[name].tobytes(), name
    return None


def _open(data: bytes, seed: Seed, rnd: random.Random) -> object:
    """Read each tensor, and rows of it; a tensor that cannot be decoded does not affect the others."""
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
    """Decode in chunks, sometimes after the bitstreams before."""
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
    report = nnr.verify(data, **seed.options, inputs=seed.before if rnd.random() < 0.5 else ())
    for violation in report.violations + report.warnings:
        if NO_MEMORY in violation.message:
            raise LimitError(violation.message)
    return report


#: The ways of reading with their shares of inputs; ways without a share have separate campaigns.
WAYS: dict[str, tuple[Way, int]] = {
    "decode": (_decode, 30),
    "decode in lanes": (_decode_in_lanes, 6),
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
    "agreement": (agree, 0),
}


# ------------------------------------------------------------------------------------------------ the trial
@dataclass(slots=True)
class Result:
    """Result of an input.

    Parameters
    ----------
    outcome : str
        ``valid``, or the name of the NnrError.
    in_kernel : bool
        Whether the kernel's decoder has begun a payload of the input.
    seconds : float
        Processor time.
    peak : int
        Growth of the process in bytes; 0 if it is not measured.
    problem : str
        The reason why it is a finding; empty for nearly all.
    """

    way: str
    outcome: str
    in_kernel: bool
    seconds: float
    peak: int = 0
    problem: str = ""


class Kernel:
    """Context that counts the payloads that decoders begin."""

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


#: Exceptions raised where they cannot be caught, as in a destructor.
UNRAISABLE: list[str] = []


@contextlib.contextmanager
def strictly() -> Iterator[None]:
    """Turn warnings into errors, except the one for masks that are not applied; `UNRAISABLE` is filled."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda found: UNRAISABLE.append(f"{found.exc_value!r} in {found.object!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", PruningWarning)
            yield
    finally:
        sys.unraisablehook = hook


def attempt(
    mutant: Mutant,
    rnd: random.Random,
    kernel: Kernel,
    limit: float = SECONDS,
    memory: Memory | None = None,
    way: str = "",
) -> Result:
    """Read a mutant in one of the ways, within ``limit`` seconds of processor time and a bound on memory."""
    if not way:
        (way,) = rnd.choices(list(WAYS), [share for _, share in WAYS.values()])
    choices, seed = rnd.getrandbits(32), mutant.seed
    STATES.prepare(seed, kernel)
    others = STATES.payloads[seed.name] if way in ("StreamDecoder", "verify") else 0
    before, room = kernel.payloads, BASE
    for _ in range(3):  # temporary load can slow down one attempt; slow code is slow in each attempt
        outcome, problem, seconds = _once(WAYS[way][0], mutant, choices, memory.bounded(room) if memory else None)
        if problem and memory and room == BASE:
            room = BASE + int(TIMES * declared(mutant, way))
            gc.collect()  # otherwise the errors of the first attempt would keep memory
            outcome, problem, seconds = _once(WAYS[way][0], mutant, choices, memory.bounded(room))
        in_kernel, before = kernel.payloads > before + others, kernel.payloads
        if seconds < limit:
            break
    else:
        problem = problem or f"{seconds:.2f} s of processor time"
    peak = memory.peak() if memory else 0
    if peak > BASE and peak > BASE + TIMES * declared(mutant, way):
        problem = problem or f"{peak:,} bytes at the peak"
    return Result(way, outcome, in_kernel, seconds, peak, problem and f"{way}: {problem}")


def _once(
    call: Way, mutant: Mutant, choices: int, bounded: contextlib.AbstractContextManager[None] | None
) -> tuple[str, str, float]:
    """Return the outcome, the problem, and the processor time."""
    outcome, problem, started = "valid", "", time.process_time()
    try:
        with bounded or contextlib.nullcontext():
            call(mutant.data, mutant.seed, random.Random(choices))
    except NnrError as error:
        outcome = type(error).__name__
        if type(error) is LimitError and NO_MEMORY in str(error):
            problem = str(error)
        elif not str(error).isprintable():
            problem = f"a message that no terminal should see: {str(error)!a}"
    except Exception:
        outcome, problem = "another exception", traceback.format_exc()
    seconds = time.process_time() - started
    if UNRAISABLE:
        problem = problem or f"nobody could catch {UNRAISABLE[0]}"
        UNRAISABLE.clear()
    return outcome, problem, seconds


# ------------------------------------------------------------------------------------------------ memory
def declared(mutant: Mutant, way: str) -> int:
    """Return the bytes of the tensors that readable headers declare; at most the limits.

    G, H and their products are counted. If some headers are unreadable, `verify` continues after them, and may decode
    as much as the limits permit.
    """
    total = 0
    session = Session(mutant.seed.dimensions)
    reader = UnitReader(mutant.data, STRICT, session)
    try:
        for each in reader:
            if each.header.nnr_unit_type == NNR_NDU and each.header.part < 2:
                header, tensors = each.ndu, session.coded_dimensions(each.ndu)
                is_block = header.nnr_compressed_data_unit_payload_type == NNR_PT_BLOCK
                if header.compressed_parameter_types & NNR_CPT_DC and (is_block or session.g_header):
                    tensors = [*tensors, session.tensor_dimensions(header)]
                size = sum(count for count in map(prod, tensors) if count <= STRICT.max_tensor_elements)
                total += DTYPES[data_format(header, session)].itemsize * size
    except NnrError:
        if way == "verify":
            return STRICT.max_total_bytes
    return min(total, STRICT.max_total_bytes)


class Memory:
    """Memory of the process: a bound on allocations, used or not, and the peak of the used memory."""

    def __init__(self) -> None:
        # Large blocks of memory are returned to the system, so that a peak belongs to one input; threads get no arenas.
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD)
        library.mallopt(M_ARENA_MAX, 1)
        self._base = self._reset()

    @contextlib.contextmanager
    def bounded(self, size: int) -> Iterator[None]:
        """Limit the additional address space of the process to this number of bytes, plus the stacks of threads."""
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm", encoding="ascii") as file:
            has = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + size + STACKS, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))

    def peak(self) -> int:
        """Return the bytes since the last call that returned more than 1 MiB."""
        grown = _high_water() - self._base
        if grown > BASE:
            gc.collect()  # otherwise the next inputs would be charged for it
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
