"""Output files that appear complete or not at all: written under a temporary name, then renamed.

A killed process leaves only files and folders whose names end in :data:`PARTIAL_SUFFIX`. The next output in the same
folder deletes unfinished outputs of the same user whose names identify a process that has ended (:func:`remove_stale`).
Others may be deleted by hand if the target exists: a replaced output is kept under such a name until the new one is in
place, and an interrupted output of several files may have replaced only some of them. A symbolic link at the target is
replaced, never followed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from .errors import FormatError

#: File name suffix of unfinished outputs.
PARTIAL_SUFFIX = ".nnr-partial"

#: Maximum size of a path in bytes of UTF-8. It bounds the work for nested folders.
MAX_ATTACHMENT_NAME = 255

#: Names that identify the writing process: system, process number and start time (:func:`own_suffix`).
_OWNED = re.compile(rf".*\.([0-9a-f]{{16}})-([1-9][0-9]{{0,9}})-([0-9]{{1,20}}){re.escape(PARTIAL_SUFFIX)}", re.DOTALL)
#: Constants of renameat2 in Linux's uapi headers.
_AT_FDCWD, _NOREPLACE, _EXCHANGE = -100, 1, 2
#: Characters and names that some system does not allow in file names.
_FORBIDDEN = re.compile(r'[\\:*?"<>|]')
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin[$]|conout[$]|com[0-9¹²³]|lpt[0-9¹²³]) *(?:[.].*)?", re.IGNORECASE)
_MAX_BYTES = 255


class FileNames:
    """Relative paths in one folder that are valid, unambiguous and distinct on every system; slashes separate parts."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._folders: set[str] = set()

    def add(self, name: str) -> None:
        """Add a path. Raise FormatError if it is invalid, or collides with an earlier path."""
        for part in name.split("/"):
            if part in ("", ".", "..") or part[-1] in ". " or not part.isprintable() or _FORBIDDEN.search(part):
                raise FormatError(f"{name[:80]!a} is not a valid name of a model file")
            if len(part.encode()) > _MAX_BYTES or unicodedata.normalize("NFD", part) != part:
                raise FormatError(f"{name[:80]!a} is too long, or changes with Unicode normalization")
            if is_device(part):
                raise FormatError(f"{name[:80]!a} is reserved for a device on Windows")
        key = name.casefold()
        if key in self._names:
            other = self._names[key]
            raise FormatError(f"file names {other[:80]!a} and {name[:80]!a} are equal, or differ only in case")
        parts = key.split("/")
        folders = {"/".join(parts[:count]) for count in range(1, len(parts))}
        if key in self._folders or not folders.isdisjoint(self._names):
            both = name if key in self._folders else self._names[min(folders & self._names.keys())]
            raise FormatError(f"{both[:80]!a} is both a file and a folder")
        self._names[key] = name
        self._folders |= folders


class AttachmentNames(FileNames):
    """Names of attachments: not hidden, and of at most :data:`MAX_ATTACHMENT_NAME` bytes."""

    def add(self, name: str) -> None:
        """See FileNames."""
        if len(name.encode("utf-8", "replace")) > MAX_ATTACHMENT_NAME:
            raise FormatError(f"{name[:80]!a} has more than {MAX_ATTACHMENT_NAME} bytes")
        super().add(name)
        if any(part.startswith(".") for part in name.split("/")):
            raise FormatError(f"{name[:80]!a} is the name of a hidden file")


def is_device(part: str) -> bool:
    """Return whether some system reserves this file name for a device."""
    return _DEVICE.fullmatch(part) is not None


@contextlib.contextmanager
def output_file(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[BinaryIO]:
    """Yield a binary file whose content becomes ``path`` when the block ends without an exception.

    Parameters
    ----------
    path : path
        The target. Its folder must exist.
    overwrite : bool
        Whether an existing file may be replaced; the new one gets its permissions.

    Raises
    ------
    FileExistsError
        The target exists and ``overwrite`` is false (raised before any work, or at the end if another process created
        it meanwhile), or it is neither a file nor a symbolic link.
    IsADirectoryError
        The target is a directory.
    OSError
        A system call fails; the target is unchanged.
    """
    target = _locate(path)
    mode = _replaceable_file(target, overwrite)
    remove_stale(target.parent)
    partial = _partial(target)
    with _created(partial, mode, path) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
        file.close()
        if overwrite:
            _replaceable_file(target, overwrite)
            os.replace(partial, target)
        else:
            _rename_new(partial, target)
        _sync_folder(target.parent)


@contextlib.contextmanager
def output_files(path: str | os.PathLike[str], *, overwrite: bool = False) -> Iterator[Callable[[str], BinaryIO]]:
    """Yield a function that creates files in the folder of ``path``; all appear if the block ends without exception.

    Parameters
    ----------
    path : path
        The target. Its folder must exist. The yielded function takes the plain name of the target or of another
        file in its folder. It returns a binary file, which may be closed before the end of the block.
    overwrite : bool
        Whether existing files may be replaced; each new file keeps the permissions of the old one.

    Files appear in the order of their creation, the target last. If one of them fails, all others are restored.

    Raises the errors of :func:`output_file`, and FormatError for an invalid or repeated name.
    """
    target = _locate(path)
    _replaceable_file(target, overwrite)
    remove_stale(target.parent)
    created: dict[Path, tuple[Path, BinaryIO]] = {}
    with contextlib.ExitStack() as stack:

        def create(name: str) -> BinaryIO:
            if name in ("", "..") or Path(name).name != name or "\0" in name:
                raise FormatError(f"{name!r} is not a valid name of a file beside {target.name!r}")
            final = target.with_name(name)
            if name.casefold() in (other.name.casefold() for other in created):
                raise FormatError(f"{name!r} would be written twice on systems that ignore case")
            partial = _partial(final)
            file = stack.enter_context(_created(partial, _replaceable_file(final, overwrite), final))
            created[final] = partial, file
            return file

        yield create
        for partial, file in created.values():
            if not file.closed:
                file.flush()
                os.fsync(file.fileno())
                file.close()
            else:
                _sync_file(os.fspath(partial))
        _place({final: partial for final, (partial, _) in created.items()}, target, overwrite)
        _sync_folder(target.parent)


@contextlib.contextmanager
def output_directory(
    path: str | os.PathLike[str], *, overwrite: bool = False, marker: str = "graph.nnef"
) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes ``path`` when the block ends without an exception.

    An existing folder is replaced as a whole: none of its files survive.

    Parameters
    ----------
    path : path
        The target. Its parent folder must exist.
    overwrite : bool
        Whether an existing file, symbolic link or folder may be replaced; a folder only if it is empty or contains the
        file ``marker``, so that a wrong argument cannot delete a home directory.
    marker : str
        Name of a file that every model of this format contains.

    Raises
    ------
    FileExistsError
        The target exists and ``overwrite`` is false, or it is a special file, a folder that does not look like a model,
        the current directory or one of its parents.
    FormatError
        The path does not end in a name.
    OSError
        A system call fails; the target is unchanged.
    """
    target = _locate(path)
    mode = _replaceable_directory(target, overwrite, marker)
    remove_stale(target.parent)
    partial = _partial(target)
    try:
        os.mkdir(partial)
        if mode is not None:
            os.chmod(partial, mode | stat.S_IRWXU)
        yield partial
        for folder, _, names in os.walk(partial):
            for name in names:
                _sync_file(os.path.join(folder, name))
            _sync_folder(Path(folder))
        if overwrite and os.path.lexists(target):
            _replaceable_directory(target, overwrite, marker)
            _swap(partial, target)
        else:
            _rename_new_directory(partial, target)
        _sync_folder(target.parent)
    finally:
        _remove(partial)


def _locate(path: str | os.PathLike[str]) -> Path:
    """Return the target with the real path of its folder; its last component is not resolved."""
    given = Path(path)
    if given.name in ("", ".."):
        raise FormatError(f"{os.fspath(path)!r} does not end in a file name")
    return Path(os.path.realpath(given.parent, strict=True)) / given.name


def _partial(target: Path, suffix: str | None = None) -> Path:
    # Forty characters keep the name below 255 bytes in any encoding.
    return target.with_name(f"{target.name[:40]}.{secrets.token_hex(8)}{own_suffix() if suffix is None else suffix}")


def _aside(target: Path) -> Path:
    """Return a name for a replaced output. It identifies no process, so that :func:`remove_stale` keeps the file, which
    may be the only copy."""
    return _partial(target, PARTIAL_SUFFIX)


# --------------------------------------------------------------------------------------- outputs of killed processes
def own_suffix() -> str:
    """Return the suffix of unfinished outputs of this process; it identifies the process if the system supports
    that."""
    system, began = _system(), _began(os.getpid())
    return f".{system}-{os.getpid()}-{began}{PARTIAL_SUFFIX}" if system and began else PARTIAL_SUFFIX


def remove_stale(folder: Path) -> None:
    """Delete the unfinished outputs of ended processes of this user from a folder.

    Names without a process, or from another system, an earlier boot or another container are kept, because the state of
    their process is unknown.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _OWNED.fullmatch(entry.name)
            if not found or found[1] != _system() or not _is_gone(int(found[2]), found[3]):
                continue
            with contextlib.suppress(OSError):  # one entry must not stop the others
                if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                    _remove(Path(entry.path))


def _system() -> str:
    """Return the scope of process numbers: boot and container; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read(100)
        return hashlib.sha256(boot + os.readlink("/proc/self/ns/pid").encode()).hexdigest()[:16]
    except OSError:
        return ""


def _began(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot; empty if unknown."""
    with contextlib.suppress(OSError):
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""  # /proc belongs to another container
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()  # the process name may contain anything
        if len(fields) > 19 and fields[19].isdigit():
            return fields[19].decode()
    return ""


def _is_gone(pid: int, began: str) -> bool:
    """Return whether a process with this start time has ended; False if unknown."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return _began(pid) not in ("", began)  # the number was reused by another process


@contextlib.contextmanager
def _created(partial: Path, mode: int | None, path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a new file of this name, deleted at the end if it still exists; errors name ``path``."""
    try:
        try:
            file = cast(BinaryIO, open(partial, "x+b", opener=_opener))  # noqa: SIM115  # closed below
        except OSError as error:
            error.filename = os.fspath(path)  # the temporary name would mean nothing to the user
            raise
        with file:
            if mode is not None:
                os.chmod(partial, mode)
            yield file
    finally:
        partial.unlink(missing_ok=True)


def _opener(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _existing(target: Path, overwrite: bool) -> os.stat_result | None:
    """Return the status of an existing target that may be replaced."""
    try:
        found = target.lstat()
    except FileNotFoundError:
        return None
    if not overwrite:
        raise FileExistsError(f"{target} exists; pass overwrite=True to replace it")
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise FileExistsError(f"{target} is neither a file nor a directory")
    return found


def _replaceable_file(target: Path, overwrite: bool) -> int | None:
    """Return the permissions of the file to replace; None if there is none."""
    found = _existing(target, overwrite)
    if found is None or stat.S_ISLNK(found.st_mode):
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{target} is a directory")
    return stat.S_IMODE(found.st_mode) & 0o777


def _replaceable_directory(target: Path, overwrite: bool, marker: str) -> int | None:
    """Return the permissions of the folder to replace; None if there is none."""
    found = _existing(target, overwrite)
    if found is None or not stat.S_ISDIR(found.st_mode):
        return None
    here = Path.cwd()
    if target == here or target in here.parents:
        raise FileExistsError(f"{target} is the current directory or one of its parents, and is not replaced")
    names = os.listdir(target)
    if names and marker not in names:
        raise FileExistsError(f"{target} is a directory without {marker}, and is not replaced")
    return stat.S_IMODE(found.st_mode) & 0o777


def _place(files: dict[Path, Path], target: Path, overwrite: bool) -> None:
    """Rename files to their final names, the target last; restore all if one fails."""
    asides: list[Path] = []
    with contextlib.ExitStack() as undo:  # continues if one of its callbacks fails
        for final in sorted(files, key=lambda final: final == target):
            if overwrite and _existing(final, overwrite):
                _replaceable_file(final, overwrite)
                asides.append(_aside(final))
                undo.callback(_put_back, asides[-1], final)
                _set_aside(final, asides[-1])
                os.replace(files[final], final)
            else:
                undo.callback(_take_away, files[final], final)
                _rename_new(files[final], final)
        undo.pop_all()
    for aside in asides:
        aside.unlink()


def _set_aside(final: Path, aside: Path) -> None:
    """Give a file or symbolic link a second name; rename it if the file system has no hard links."""
    try:
        os.link(final, aside, follow_symlinks=False)
    except (OSError, NotImplementedError):
        os.rename(final, aside)


def _put_back(aside: Path, final: Path) -> None:
    """Restore a file if it was set aside."""
    with contextlib.suppress(FileNotFoundError):
        os.replace(aside, final)
    aside.unlink(missing_ok=True)  # os.replace does nothing if both names refer to one file


def _take_away(partial: Path, final: Path) -> None:
    """Delete a renamed file, but keep a file of another process that made the rename fail."""
    with contextlib.suppress(FileNotFoundError):
        if not partial.exists() or os.path.samestat(partial.lstat(), final.lstat()):
            final.unlink()


def _rename_new(partial: Path, target: Path) -> None:
    """Rename a file to a name that must not exist."""
    try:
        # Unlike a rename, a hard link never replaces a file that another process created meanwhile.
        os.link(partial, target)
    except FileExistsError:
        raise
    except OSError:
        if _renamed(partial, target, _NOREPLACE):  # a file system without hard links
            return
        # Claim the name, then replace our own empty file.
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        try:
            os.replace(partial, target)
        except BaseException:
            target.unlink()
            raise


def _rename_new_directory(partial: Path, target: Path) -> None:
    """Rename a folder to a name that must not exist."""
    if _renamed(partial, target, _NOREPLACE):
        return
    if os.name != "posix":
        os.rename(partial, target)
        return
    # mkdir claims the name; rename then replaces that folder only while it is empty.
    os.mkdir(target)
    try:
        os.rename(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.rmdir(target)
        raise


def _swap(partial: Path, target: Path) -> None:
    """Replace an existing folder; restore it on failure, otherwise delete it."""
    if _renamed(partial, target, _EXCHANGE):
        aside = partial  # the exchange is atomic: the target existed at every moment
    else:
        aside = _aside(target)
        try:
            os.rename(target, aside)
            os.rename(partial, target)
        except BaseException:
            if os.path.lexists(aside):
                if not partial.exists():
                    os.rename(target, partial)
                os.rename(aside, target)
            raise
    _remove(aside)


def _remove(path: Path) -> None:
    """Delete a file, symbolic link or folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _renamed(one: Path, other: Path, flag: int) -> bool:
    """Rename to a new name, or exchange two names, atomically; return False if the system does not support that.

    Raises FileExistsError if the new name exists.
    """
    if sys.platform != "linux":
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(flag)) == 0:
        return True
    if ctypes.get_errno() == errno.EEXIST:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(other))
    return False


def _sync_file(name: str) -> None:
    with open(name, "r+b") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename durable if the system supports that; ignore errors, because the rename is done."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
