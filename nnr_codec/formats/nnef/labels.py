"""Mapping of labels of NNEF variables to paths, for reading and writing.

The *plain* path of a label is the label with one leading ``/`` removed and ``.dat`` appended (NNEF 1.0, 5.1). Some
systems cannot represent it: Windows reserves names such as ``aux`` and ``con.x`` for devices, drops a dot at the end of
a folder name, and treats ``\\`` as a separator. The *portable* path has such characters as ``%`` and two hexadecimal
digits, as in URIs: ``%61ux/w.dat``, ``a%2E/w.dat``, ``a%5Cw.dat``. Since no label contains ``%``, every path determines
its label, except for the leading ``/``.

Both are read; the plain one takes precedence, because other readers use it. Plain paths are written to archives, where
nothing is unpacked, and to folders except on Windows: tract, the tools of Khronos and 5.1 require them. Labels such as
``aux/filter`` exist in practice, and other readers could not find the tensors under portable paths.

The following labels are rejected:

* labels with characters that NNEF does not permit; permitted are ``[A-Za-z0-9_-./\\]`` (NNEF 1.0, 4.1.3);
* labels with a component that is empty or consists of dots, where ``\\`` separates components like ``/``, or with a
  component longer than 255 bytes in the portable path;
* labels whose path collides on some system with the path of another label, with ``graph.nnef`` or ``graph.quant``, as
  a file or a folder, unless the labels differ only in case and so share their data (4.1.3).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from itertools import pairwise

from ...errors import FormatError

#: Names of the two texts in a container (NNEF 1.0, 5.1).
GRAPH, QUANT = "graph.nnef", "graph.quant"

_SUFFIX = ".dat"
_LEGAL = re.compile(r"[A-Za-z0-9_\-./\\]+")
# The first character of a device name, the last dot of a component, and a possible separator.
_UNPORTABLE = re.compile(
    r"(?<![^/])(?=(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?![^./]))[a-z] | \.(?![^/]) | \\", re.IGNORECASE | re.VERBOSE
)
_NAMELESS = re.compile(r"(?<![^/\\])(\.*)(?![^/\\])")
_LAST_DOTS = re.compile(r"\.+(?=/)")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")
_LONGEST = 255


def is_hidden(path: str) -> bool:
    """Return whether a file or one of its folders has a name that starts with a dot."""
    return path.startswith(".") or "/." in path


def is_legal(label: str) -> bool:
    """Return whether a label is not empty and has only the characters of NNEF 1.0, 4.1.3."""
    return _LEGAL.fullmatch(label) is not None


def label_path(label: str) -> str:
    """Return the plain path of a label's tensor file, relative to the model, with ``/`` as separator.

    Raises
    ------
    FormatError
        The label is not legal or not safe as a path; see the module docstring.
    """
    if not is_legal(label):
        raise FormatError(f"label {label[:80]!r} is empty or has characters that NNEF does not permit (4.1.3)")
    path = label.removeprefix("/") + _SUFFIX
    if nameless := _NAMELESS.search(label.removeprefix("/")):
        raise FormatError(f"label {label[:80]!r} has a component {nameless[1][:80]!r} and cannot be a file name")
    # A character becomes at most three.
    if 3 * len(path) > _LONGEST and any(len(component) > _LONGEST for component in _portable(path).split("/")):
        raise FormatError(f"label {label[:80]!r}… has a component that is too long for a file name")
    return path


def portable_path(label: str) -> str:
    """Return the path that is valid on every system; raises the errors of :func:`label_path`."""
    return _portable(label_path(label))


def _portable(path: str) -> str:
    return _UNPORTABLE.sub(lambda found: f"%{ord(found[0]):02X}", path)


def path_label(path: str) -> str:
    """Return the label of a tensor file from its plain or portable path. Raise FormatError if there is none."""
    label = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), path.removesuffix(_SUFFIX))
    if path not in (label_path(label), portable_path(label)):
        raise FormatError(f"{path!a} is not a valid path of a tensor file")
    return label


def label_paths(labels: Iterable[str], *, portable: bool = False) -> dict[str, str]:
    """Return the path of every label, plain or portable.

    Raises FormatError if two of them collide (see the module docstring).
    """
    plain = {label: label_path(label) for label in labels}
    owners = {GRAPH: GRAPH, QUANT: QUANT}
    for label, path in plain.items():
        other = owners.setdefault(_fold(path), label)
        if other.casefold() != label.casefold():
            raise FormatError(f"labels {label!r} and {other!r} have the same file")
    # With the separator before all other characters, paths below a file sort directly after it.
    for file, path in pairwise(sorted(owners, key=lambda path: path.replace("/", "\0"))):
        if path.startswith(f"{file}/"):
            raise FormatError(f"label {owners[path]!r} requires a folder where {owners[file]!r} has its file")
    return {label: _portable(path) for label, path in plain.items()} if portable else plain


def present_paths(labels: Iterable[str], files: Collection[str]) -> dict[str, str]:
    """Return the path of every label among files: the plain one, or the portable one if only that exists."""
    return {label: present_path(path, files) for label, path in label_paths(labels).items()}


def present_path(plain: str, files: Collection[str]) -> str:
    """Return a plain path, or the portable one if only that is among files."""
    if plain in files:
        return plain
    portable = _portable(plain)
    return portable if portable in files else plain


def _fold(path: str) -> str:
    """Return the path as seen by systems that ignore case, treat a backslash as separator and drop trailing dots."""
    return _LAST_DOTS.sub("", path.replace("\\", "/").casefold())
