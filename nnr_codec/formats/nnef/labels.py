"""The one rule by which labels of NNEF variables become paths, for reading and for writing.

The *plain* path of a label is the label with one leading ``/`` removed and ``.dat`` appended (NNEF 1.0, 5.1). Not every
system can hold it: Windows keeps names such as ``aux`` and ``con.x`` for devices, drops a dot at the end of a folder's
name, and takes ``\\`` for a separator. The *portable* path has such characters as ``%`` and two hexadecimal digits, as
URIs do: ``%61ux/w.dat``, ``a%2E/w.dat``, ``a%5Cw.dat``. Since ``%`` is legal in no label, every path tells its label,
but for that leading ``/``.

Both are read, the plain one where both are there, because that is the file which every other reader takes. Written are
plain paths, which tract, Khronos' tools and 5.1 ask for, in archives everywhere, since there they are names in a list
and nothing is unpacked here, and in folders but on Windows. Labels such as ``aux/filter`` are real, and a model that
another reader cannot find its tensors in would be no model.

Refused are labels

* with other characters than NNEF permits, ``[A-Za-z0-9_-./\\]`` (NNEF 1.0, 4.1.3), which leaves no control character,
  colon, blank or non-ASCII letter;
* with a component that is empty or all dots, where ``\\`` separates components as ``/`` does, or one that is longer
  than 255 bytes in the portable path;
* whose path meets that of another label, of ``graph.nnef`` or of ``graph.quant`` on some system, as a file or as a
  folder of the other, unless the labels are equal but for case and so share their data (4.1.3).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import pairwise

from ...errors import FormatError

#: The names of the two texts in a container (NNEF 1.0, 5.1).
GRAPH, QUANT = "graph.nnef", "graph.quant"

_SUFFIX = ".dat"
_LEGAL = re.compile(r"[A-Za-z0-9_\-./\\]+")
# The first character of a device's name, the last dot of a component, and what may be taken for a separator.
_UNPORTABLE = re.compile(
    r"(?<![^/])(?=(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?![^./]))[a-z] | \.(?![^/]) | \\", re.IGNORECASE | re.VERBOSE
)
_NAMELESS = re.compile(r"(?<![^/\\])(\.*)(?![^/\\])")
_LAST_DOTS = re.compile(r"\.+(?=/)")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")
_LONGEST = 255


def is_hidden(path: str) -> bool:
    """Whether a file, or a folder that it is in, has a name that begins with a dot: no part of a model but by label."""
    return path.startswith(".") or "/." in path


def is_legal(label: str) -> bool:
    """Whether a label is not empty and has only the characters of NNEF 1.0, 4.1.3."""
    return _LEGAL.fullmatch(label) is not None


def label_path(label: str) -> str:
    """The plain path of a label's tensor file, relative to the model, with ``/`` between folders.

    Raises
    ------
    FormatError
        The label is not legal or not safe as a path; see the rule above.
    """
    if not is_legal(label):
        raise FormatError(f"label {label[:80]!r} is empty or has characters that NNEF does not permit (4.1.3)")
    path = label.removeprefix("/") + _SUFFIX
    if nameless := _NAMELESS.search(label.removeprefix("/")):
        raise FormatError(f"label {label[:80]!r} has a component {nameless[1][:80]!r} and cannot be the name of a file")
    # Characters become three at most.
    if 3 * len(path) > _LONGEST and any(len(component) > _LONGEST for component in _portable(path).split("/")):
        raise FormatError(f"label {label[:80]!r}… has a component that is too long for the name of a file")
    return path


def portable_path(label: str) -> str:
    """The path that every system can hold; raises as :func:`label_path`."""
    return _portable(label_path(label))


def _portable(path: str) -> str:
    return _UNPORTABLE.sub(lambda found: f"%{ord(found[0]):02X}", path)


def path_label(path: str) -> str:
    """The label of a tensor file by its plain or portable path; FormatError where it is that of none."""
    label = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), path.removesuffix(_SUFFIX))
    if path not in (label_path(label), portable_path(label)):
        raise FormatError(f"{path!a} is not the path of a tensor file")
    return label


def label_paths(labels: Iterable[str], *, portable: bool = False) -> dict[str, str]:
    """The path of every label, plain or portable; FormatError also when two of them meet (see the rule above)."""
    plain = {label: label_path(label) for label in labels}
    owners = {GRAPH: GRAPH, QUANT: QUANT}
    for label, path in plain.items():
        other = owners.setdefault(_fold(path), label)
        if other.casefold() != label.casefold():
            raise FormatError(f"label {label!r} and {other!r} have the same file")
    # With the separator below all other characters, what is below a file comes right after it.
    for file, path in pairwise(sorted(owners, key=lambda path: path.replace("/", "\0"))):
        if path.startswith(f"{file}/"):
            raise FormatError(f"label {owners[path]!r} needs a folder where {owners[file]!r} has its file")
    return {label: _portable(path) for label, path in plain.items()} if portable else plain


def present_paths(labels: Iterable[str], files: Collection[str]) -> dict[str, str]:
    """The path of every label among files: the plain one, or the portable one where only that is there."""
    return {label: present_path(path, files) for label, path in label_paths(labels).items()}


def present_path(plain: str, files: Collection[str]) -> str:
    """A plain path, or the portable one where only that is among files."""
    if plain in files:
        return plain
    portable = _portable(plain)
    return portable if portable in files else plain


def _fold(path: str) -> str:
    """What a path is on systems that ignore case, separate by a backslash and drop the last dots of a folder."""
    return _LAST_DOTS.sub("", path.replace("\\", "/").casefold())
