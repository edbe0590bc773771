"""Vector folders with a manifest, and the conformance claim that results support."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import FormatError, LimitError
from .digest import model_digest
from .vectors import Case, Outcome, Result

MANIFEST = "manifest.json"

_MAX_MANIFEST = 16 << 20


@dataclass(frozen=True)
class Suite:
    """Folder of vectors with a manifest.

    Parameters
    ----------
    root : Path
    name : str
    revision : int
        Revision of the suite.
    sha256 : str
        Digest of the ``sha256sum`` lines of all files except the manifest, sorted by path.
    """

    root: Path
    name: str
    revision: int
    sha256: str

    @classmethod
    def read(cls, root: Path) -> Suite | None:
        """Read the suite in a folder; return None without a manifest.

        Raises
        ------
        FormatError
            The manifest is malformed.
        OSError
            It cannot be read.
        """
        path = root / MANIFEST
        if not path.is_file():
            return None
        with path.open("rb") as file:
            text = file.read(_MAX_MANIFEST + 1)
        try:
            if len(text) > _MAX_MANIFEST:
                raise ValueError("it is too large")
            facts = json.loads(text)
            found = facts["suite"], facts["revision"], facts["sha256"]
            if tuple(map(type, found)) != (str, int, str):
                raise TypeError("suite, revision or sha256 has the wrong type")
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise FormatError(f"{path} is not a manifest of vectors: {type(error).__name__}: {error}") from None
        return cls(root, *found)

    def is_intact(self) -> bool:
        """Return whether the files match the manifest exactly."""
        paths = [path for path in self.root.rglob("*") if path.is_file() and path != self.root / MANIFEST]
        names = sorted((path.relative_to(self.root).as_posix(), path) for path in paths)
        lines = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n" for name, path in names)
        return hashlib.sha256(lines.encode()).hexdigest() == self.sha256


def claim(results: Sequence[Result], suite: Suite | None, cases: int, decoder: str) -> str:
    """Return the claim about a decoder that results support; "no claim: ..." with a reason if there is none.

    Parameters
    ----------
    results : sequence of Result
    suite : Suite or None
        Suite of the cases.
    cases : int
        Number of cases in the suite.
    decoder : str
        Name of the decoder.
    """
    wrong = [result.case.id for result in results if not result.is_fine]
    skipped = sum(result.outcome == Outcome.SKIP for result in results)
    if wrong:
        return f"no claim: {len(wrong)} of {len(results)} cases are not as expected, the first is {wrong[0]}"
    if skipped:
        return f"no claim: {skipped} of {len(results)} cases skipped"
    if len(results) < cases:
        return f"no claim: {len(results)} of {cases} cases were run"
    if suite is None:
        return f"no claim: the folder of the vectors has no {MANIFEST}"
    if not suite.is_intact():
        return f"no claim: the files do not match {MANIFEST}"
    return (
        f"{decoder} decodes all {_count(results, 'valid', 'interop')} valid vectors of {suite.name}, revision "
        f"{suite.revision}, as expected, rejects all {_count(results, 'invalid')} invalid ones, and decodes as given "
        f"or rejects the {_count(results, 'acceptable')} acceptable ones (sha256 {suite.sha256}). "
        "They are not the bitstreams of ISO/IEC 15938-18, and this is not a claim of conformance to it."
    )


def _count(results: Sequence[Result], *kinds: str) -> int:
    return sum(result.case.kind in kinds for result in results)


def fluster(cases: Sequence[Case]) -> dict[str, object]:
    """Convert cases to a test suite of fluster, for JSON: cases with one bitstream and no other input.

    ``result`` is the digest of the decoded model (:func:`nnr_codec.conformance.digest.model_digest`), or empty for
    bitstreams that must be rejected.
    """
    vectors = []
    for case in cases:
        beside = case.topology_file or case.topology_dimensions or case.extension or len(case.streams) > 1
        if beside or (case.error and case.error[0] is LimitError) or case.result == "acceptable":
            continue
        (stream,) = case.streams
        vectors.append(
            {
                "name": case.id,
                "source": stream.path.resolve().as_uri(),
                "source_checksum": hashlib.md5(stream.path.read_bytes(), usedforsecurity=False).hexdigest(),
                "input_file": stream.path.name,
                "result": model_digest(stream.tensors or ()) if case.result == "valid" else "",
            }
        )
    return {
        "name": "NNR-VECTORS",
        "codec": "NNR",
        "description": "Vectors of nnr_codec for ISO/IEC 15938-17:2024",
        "test_vectors": vectors,
    }
