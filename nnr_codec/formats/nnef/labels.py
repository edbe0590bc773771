"""The one rule by which labels of NNEF variables become paths, for reading and for writing.

The path of a label is the label with one leading ``/`` removed and ``.dat`` appended. Refused are labels

* with other characters than NNEF permits, ``[A-Za-z0-9_-./\\]`` (NNEF 1.0, 4.1.3), which leaves no control character,
  colon, blank or non-ASCII letter;
* with a component that is empty, ``.`` or ``..``, ends in a dot, is the name of a Windows device (``con``,
  ``nul.x``) or is longer than 255 bytes with its ``.dat``. For this ``\\`` separates components as ``/`` does, since it
  does so on some systems; in the path it stays as it is;
* whose path meets that of another label, of ``graph.nnef`` or of ``graph.quant`` on a file system that ignores case,
  as a file or as a folder of the other, unless the labels are equal but for case and so share their data (4.1.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...errors import FormatError

#: The names of the two texts in a container (NNEF 1.0, 5.1).
GRAPH, QUANT = "graph.nnef", "graph.quant"

_LEGAL = re.compile(r"[A-Za-z0-9_\-./\\]+")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)
_LONGEST = 255


def is_legal(label: str) -> bool:
    """Whether a label is not empty and has only the characters of NNEF 1.0, 4.1.3."""
    return _LEGAL.fullmatch(label) is not None


def label_path(label: str) -> str:
    """The path of a label's tensor file, relative to the model, with ``/`` between folders.

    Raises
    ------
    FormatError
        The label is not legal or not safe as a path; see the rule above.
    """
    if not is_legal(label):
        raise FormatError(f"label {label[:80]!r} is empty or has characters that NNEF does not permit (4.1.3)")
    path = label.removeprefix("/") + ".dat"
    for component in re.split(r"[/\\]", label.removeprefix("/")):
        if component in ("", ".", ".."):
            raise FormatError(f"label {label[:80]!r} has a component {component!r} and cannot be the name of a file")
        if component.endswith(".") or _DEVICE.fullmatch(component):
            raise FormatError(f"label {label[:80]!r}: {component!r} cannot be the name of a file on every system")
    if any(len(component) > _LONGEST for component in path.split("/")):
        raise FormatError(f"label {label[:80]!r}… has a component that is too long for the name of a file")
    return path


def label_paths(labels: Iterable[str]) -> dict[str, str]:
    """The path of every label; FormatError also when two of them meet (see the rule above)."""
    paths = {label: label_path(label) for label in labels}
    owners = {GRAPH: GRAPH, QUANT: QUANT}
    for label, path in paths.items():
        other = owners.setdefault(_fold(path), label)
        if other.casefold() != label.casefold():
            raise FormatError(f"label {label!r} and {other!r} have the same file")
    for label, path in paths.items():
        folder = _fold(path)
        while "/" in folder:
            folder = folder.rpartition("/")[0]
            if folder in owners:
                raise FormatError(f"label {label!r} needs a folder where {owners[folder]!r} has its file")
    return paths


def _fold(path: str) -> str:
    return path.replace("\\", "/").casefold()
