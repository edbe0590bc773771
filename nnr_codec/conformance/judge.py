"""Evaluation of one case with one decoder: this library, or a command that writes tensors to files."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import numpy as np

from .. import formats
from ..compare import compare_tensors
from ..decoder.index import NnrFile
from ..decoder.state import UpdateState
from ..dtypes import STORED_TYPES
from ..errors import LimitError, MissingDependencyError, NnrError, UnitLabel
from ..model import Array, Topology
from .cases import Case, LevelDigest, Stream, typed
from .digest import TensorDigest, differences
from .levels import first_difference, levels

_OUT_OF_MEMORY = re.compile(r"MemoryError|bad_alloc|[Oo]ut of memory|Cannot allocate memory")
_TAIL = 2000  # bytes kept of the standard error output
_SIGNALLED = 128  # shells add this to a signal number


Levels = tuple[LevelDigest, ...]


class Outcome(StrEnum):
    """Outcome of a case."""

    PASS = "PASS"
    #: Decoded to another result, or rejected with another error.
    FAIL = "FAIL"
    #: A valid bitstream is rejected, or the decoder raised an unexpected exception.
    ERROR = "ERROR"
    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    OOM = "OOM"
    #: Invalid, but decoded.
    XPASS = "XPASS"
    #: The command lacks a placeholder, or a package is missing.
    SKIP = "SKIP"


class Verdict(NamedTuple):
    """Outcome of a case, with an explanation in one line."""

    outcome: Outcome
    detail: str = ""


class RefusedError(Exception):
    """Rejection of a bitstream by a command, shown by its exit code."""


class EndedError(Exception):
    """End of a case whose verdict is known before any comparison."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.verdict = Verdict(outcome, detail)


class Decoded(NamedTuple):
    """Result of decoding one bitstream; None for items that the decoder cannot output.

    ``texts`` is the SHA-256 of ``topology`` and ``quantization``, if present; ``levels`` is QuantParam.
    """

    stream: Stream
    tensors: Mapping[str, Array]
    raw: Mapping[str, Array] | None = None
    texts: Mapping[str, str] | None = None
    levels: Levels | None = None


Decoder = Callable[[Case], Iterator[Decoded]]


def judge(case: Case, decoder: Decoder, *, lenient: bool = False) -> Verdict:
    """Decode a case and compare the result with the expected one; exceptions of the decoder are caught.

    With ``lenient``, an invalid bitstream may be rejected with any error.
    """
    for stream in case.streams:
        if not stream.is_intact():
            return Verdict(Outcome.ERROR, f"the SHA-256 of {stream.path.name} differs from its case file")
    before = len(case.streams) - 1
    try:
        for decoded in decoder(case):
            if wrong := _wrong(decoded):
                return Verdict(Outcome.FAIL, f"{decoded.stream.path.name}: {wrong}")
            before -= 1
    except EndedError as ended:
        return ended.verdict
    except MemoryError:
        return Verdict(Outcome.OOM)
    except OSError as error:
        return Verdict(Outcome.OOM if error.errno == errno.ENOMEM else Outcome.ERROR, _text(error))
    except MissingDependencyError as error:
        return Verdict(Outcome.SKIP, str(error))
    except (NnrError, RefusedError) as error:
        if isinstance(error.__context__, MemoryError):  # the decoder reports it as an exceeded limit
            return Verdict(Outcome.OOM, str(error))
        if before and isinstance(error, NnrError):
            return Verdict(Outcome.ERROR, f"before the last bitstream: {_text(error)}")
        return _refused(case, error, lenient)
    except Exception as error:  # the test must detect any exception of the decoder
        return Verdict(Outcome.ERROR, _text(error))
    if case.result == "invalid":
        return Verdict(Outcome.XPASS, f"decoded, but it is invalid{_broken(case)}")
    return Verdict(Outcome.PASS)


def _broken(case: Case) -> str:
    return f" ({', '.join(case.requirements)})" if case.requirements else ""


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, RefusedError) else f"{type(error).__name__}: {error}"


def _refused(case: Case, error: NnrError | RefusedError, lenient: bool) -> Verdict:
    if case.error is None:
        return Verdict(Outcome.ERROR if case.result == "valid" else Outcome.PASS, f"rejected: {_text(error)}")
    cls, unit = case.error
    if isinstance(error, NnrError) and not lenient:
        if not isinstance(error, cls):
            return Verdict(Outcome.FAIL, f"rejected with {_text(error)}; {cls.__name__} is expected{_broken(case)}")
        if (error.unit.number if isinstance(error.unit, UnitLabel) else None) != unit:
            place = "the bitstream as a whole" if unit is None else f"unit {unit}"
            return Verdict(Outcome.FAIL, f"rejected, but not for {place}{_broken(case)}: {_text(error)}")
    return Verdict(Outcome.PASS, f"rejected: {_text(error)}")


def _wrong(decoded: Decoded) -> str:
    """Return the first deviation from the expected result; empty if there is none."""
    stream, beginning = decoded.stream, ""
    if stream.levels is not None and decoded.levels is not None:
        difference = first_difference(stream.levels, decoded.levels)
        beginning = f"; {difference}: entropy decoding (10.2)" if difference else "; each QuantParam is right"
    for what, expected, tensors in (("", stream.tensors, decoded.tensors), ("Rec ", stream.raw, decoded.raw)):
        if expected is None or tensors is None:
            continue
        for name, wrong in differences(expected, tensors).items():
            return f"{what}tensor {name!a} {wrong}{_where(stream, expected, name, tensors)}{beginning}"
    if beginning and difference:
        return difference
    if decoded.texts is not None and decoded.texts != stream.texts:
        return f"texts are {dict(decoded.texts)}, not {dict(stream.texts)}"
    return ""


def _where(stream: Stream, expected: tuple[TensorDigest, ...], name: str, tensors: Mapping[str, Array]) -> str:
    """Describe the first differing values of a tensor, if the expected values are available."""
    entry = next((entry for entry in expected if entry.name == name), None)
    if entry is None or name not in tensors or tensors[name].shape != entry.shape:
        return ""
    try:
        values = stream.values(entry)
    except Exception as error:  # a fault of the case; the digest is decisive
        return f"; the expected values cannot be read: {_text(error)}"
    found = None if values is None else compare_tensors(values, tensors[name])
    if found is None:
        return ""
    if found.first is None:
        return ", and all values are equal"
    return f": {found.count} of {tensors[name].size}, the first is {found.got} for {found.expected} at {found.first}"


# ------------------------------------------------------------------------------------------------ decoders
def by_library(case: Case) -> Iterator[Decoded]:
    """Decode with this library."""
    state, before = UpdateState(keep_digests=True), None
    for stream in case.streams:
        with NnrFile(
            stream.path,
            case.limits,
            case.topology_dimensions,
            topology=case.topology,
            before=before,
        ) as file:
            found = _levels(case, stream, state, file, before)
            raw = None if stream.raw is None else file.decode(raw=True, state=state.fork()).tensors
            model, before = file.decode(state=state), file.context
        yield Decoded(stream, model.tensors, raw, _texts(model.topology), found)


def _levels(case: Case, stream: Stream, state: UpdateState, file: NnrFile, before: Topology | None) -> Levels | None:
    if stream.levels is None:
        return None
    state = state.fork()
    if file.lineage:
        state.expect(file.lineage)
    return tuple(levels(case, stream, state, before))


def _texts(topology: Topology | None) -> dict[str, str]:
    texts = {"topology": topology.data, "quantization": topology.quantization} if topology else {}
    return {key: hashlib.sha256(text).hexdigest() for key, text in texts.items() if text is not None}


class Command:
    """Decoder that runs a command line with ``{input}`` (and ``{inputs}``: the preceding bitstreams) and ``{outdir}``.

    A word with ``{topology}`` stands for the separate NNEF graph; it is omitted if there is none.

    The command either exits with 0 after writing one .npy file per tensor, named by its percent-encoded name, or one
    .npz file with all tensors; or it rejects the bitstream with another exit code. Tensors of types that numpy lacks
    are bit patterns. The Rec* variables of 7.3 are accepted in place of the final tensors.

    Parameters
    ----------
    command : str
    scratch : Path
        Folder for the output of the command.

    Attributes
    ----------
    peak : int or None
        Peak memory of the last run in bytes; None if unknown.
    """

    def __init__(self, command: str, scratch: Path) -> None:
        self._words, self._scratch = shlex.split(command), scratch
        self.peak: int | None = None

    def __call__(self, case: Case) -> Iterator[Decoded]:
        """Decode the last bitstream of a case. Raise EndedError if the command cannot decode it."""
        *before, last = case.streams
        self.peak = None
        if before and "{inputs}" not in self._words:
            raise EndedError(Outcome.SKIP, "the command has no {inputs} for earlier bitstreams")
        if case.topology_file and not any("{topology}" in word for word in self._words):
            raise EndedError(Outcome.SKIP, "the command has no {topology} for an external topology")
        if case.topology_dimensions:
            raise EndedError(Outcome.SKIP, "dimensions cannot be passed to a command")
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            code, tail = self._run([part for word in self._words for part in _filled(word, case, folder)])
            if code:
                raise _failure(code, tail)
            try:
                tensors = _outputs(Path(folder))
            except NnrError as error:  # the exit code claims success
                raise EndedError(Outcome.ERROR, f"unreadable output: {_text(error)}") from None
        if case.error and case.error[0] is LimitError:
            raise EndedError(Outcome.PASS, "decoded; a decoder may have other limits")
        types = {tensor.name: STORED_TYPES[tensor.dtype] for tensor in (*(last.raw or ()), *(last.tensors or ()))}
        tensors = {name: typed(array, types[name]) if name in types else array for name, array in tensors.items()}
        if not case.extension and _is_raw(last, tensors):
            last = last.without_extension()
        yield Decoded(last, tensors)

    def _run(self, arguments: list[str]) -> tuple[int, str]:
        """Return the exit code and the last part of the standard error output."""
        with tempfile.TemporaryFile(dir=self._scratch) as said:
            with subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
            ) as process:
                if sys.platform == "linux":  # other systems use other units, or do not report it
                    _, status, usage = os.wait4(process.pid, 0)
                    process.returncode, self.peak = os.waitstatus_to_exitcode(status), usage.ru_maxrss << 10
            said.seek(max(said.seek(0, os.SEEK_END) - _TAIL, 0))
            return process.returncode, said.read().decode(errors="replace").strip()


def _is_raw(stream: Stream, tensors: Mapping[str, Array]) -> bool:
    """Return whether these tensors are the Rec* variables instead of the final tensors."""
    if stream.raw is None or stream.tensors is None or not differences(stream.tensors, tensors):
        return False
    raw, made = ({entry.name for entry in entries} for entries in (stream.raw, stream.tensors))
    return raw == tensors.keys() != made or not differences(stream.raw, tensors)


def _filled(word: str, case: Case, folder: str) -> list[str]:
    *before, last = (str(stream.path) for stream in case.streams)
    if word == "{inputs}":
        return before
    if "{topology}" in word:
        return [word.replace("{topology}", str(case.topology_file))] if case.topology_file else []
    return [word.replace("{input}", last).replace("{outdir}", folder)]


def _failure(code: int, tail: str) -> Exception:
    if _OUT_OF_MEMORY.search(tail):
        return EndedError(Outcome.OOM, tail.splitlines()[-1])
    if code < 0 or code > _SIGNALLED:
        return EndedError(Outcome.CRASH, f"signal {-code if code < 0 else code - _SIGNALLED}")
    return RefusedError(f"exit code {code}{': ' if tail else ''}{(tail.splitlines() or [''])[-1]}")


def _outputs(folder: Path) -> dict[str, Array]:
    archives, arrays = sorted(folder.glob("*.npz")), sorted(folder.glob("*.npy"))
    if len(archives) == 1 and not arrays:
        return dict(formats.load(archives[0], format="npz").tensors)
    return {
        unquote(path.name.removesuffix(".npy"), errors="strict"): np.load(path, allow_pickle=False) for path in arrays
    }
