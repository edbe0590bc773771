"""Comparison of our readers of model files with libraries: ``python -m benchmarks.readers [FORMAT ...] > FILE``.

Each measurement runs in its own process. A line has the installed size of the library, time and memory to read a file
of 500 MB and one of 10,000 tensors, and the outcomes of damaged files. ``--table RESULTS.jsonl`` prints the tables of
docs/explanation/decisions.md. Memory includes pages of mapped files. Linux only.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import platform
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr

from .worker import forget_peak, peak

#: The names of the tensors, and a function that reads one of them.
Opened = tuple[list[str], Callable[[str], Any]]
Tensors = dict[str, Any]

#: The library of each format, its distribution, and the suffix of files.
LIBRARIES = {
    "onnx": ("onnx", "onnx", ".onnx"),
    "hdf5": ("h5py", "h5py", ".h5"),
    "openvino": ("openvino", "openvino", ".xml"),
    "tensorflow": ("tensorflow", "tensorflow_cpu", ".index"),
    "gguf": ("gguf", "gguf", ".gguf"),
    "safetensors": ("safetensors", "safetensors", ".safetensors"),
}
#: Damaged files of each format; seconds and bytes of address space for each.
MUTANTS, SECONDS, SPACE = 400, 10, 4 << 30
#: Resident memory beyond which a damaged file of a few kB counts as "memory".
MUCH = 256 << 20


# ------------------------------------------------------------------------------------------------ readers
def ours(path: Path) -> Opened:
    """Return a reader of this project."""
    model = nnr.load(path)
    return list(model), lambda name: np.asarray(model[name])


def onnx(path: Path) -> Opened:
    """Return a reader of the package onnx."""
    from onnx import load, numpy_helper

    found = {tensor.name: tensor for tensor in load(path).graph.initializer}
    return list(found), lambda name: numpy_helper.to_array(found[name])


def hdf5(path: Path) -> Opened:
    """Return a reader of h5py."""
    import h5py

    file, names = h5py.File(path, "r"), list[str]()
    file.visititems(lambda name, one: names.append(name) if isinstance(one, h5py.Dataset) else None)
    return names, lambda name: file[name][()]


def openvino(path: Path) -> Opened:
    """Return a reader of OpenVINO, without its inference."""
    import openvino as ov

    model = ov.Core().read_model(path)
    found = {op.get_friendly_name(): op for op in model.get_ops() if op.get_type_name() == "Constant"}
    return list(found), lambda name: np.array(found[name].data)


def tensorflow(path: Path) -> Opened:
    """Return a reader of TensorFlow."""
    from tensorflow.train import load_checkpoint

    file = load_checkpoint(str(path.with_suffix("")))
    return list(file.get_variable_to_shape_map()), file.get_tensor


def gguf(path: Path) -> Opened:
    """Return a reader of the package gguf."""
    from gguf import GGUFReader

    found = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    return list(found), lambda name: np.array(found[name].data)


def safetensors(path: Path) -> Opened:
    """Return a reader of the package safetensors."""
    from safetensors import safe_open

    file = safe_open(path, "np")
    return list(file.keys()), file.get_tensor


# ------------------------------------------------------------------------------------------------ files
def write(format: str, tensors: Tensors, path: Path) -> None:
    """Write a file that both readers can read."""
    if format == "onnx":
        import onnx as library
        from onnx import helper, numpy_helper

        data = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
        x = helper.make_tensor_value_info("x", 1, [1])
        y = helper.make_tensor_value_info("y", 1, [1])
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y], data)
        library.save(helper.make_model(graph), path)
    elif format == "openvino":
        import openvino as ov
        from openvino import opset13 as ops

        constants = [ops.constant(array, name=name) for name, array in tensors.items()]
        ov.serialize(ov.Model([ops.result(one) for one in constants], [], "m"), path)
    elif format == "gguf":
        from gguf import GGUFWriter

        writer = GGUFWriter(path, "llama")
        for name, array in tensors.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    elif format == "hdf5":
        import h5py

        with h5py.File(path, "w") as file:
            for name, array in tensors.items():
                file[name.replace(".", "/")] = array
    else:
        nnr.save(nnr.Model(tensors), path)


def promises(format: str, good: bytes, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield files of a few kB that declare large contents or refer to other files."""
    other = folder / "secret.bin"
    other.write_bytes(b"SECRET!!" * 32)
    path = folder / f"promise{LIBRARIES[format][2]}"
    if format == "onnx":
        from onnx import TensorProto, load_from_string

        for what, entries in (("2^40 items", {}), ("external data of 2^40 bytes", {"location": "secret.bin"})):
            model = load_from_string(good)
            tensor = model.graph.initializer[0]
            tensor.dims[:] = [1 << 40]
            if entries:
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                for key, value in {**entries, "length": str(1 << 40)}.items():
                    tensor.external_data.add(key=key, value=value)
            yield what, model.SerializeToString()
    elif format == "hdf5":
        import h5py

        with h5py.File(path, "w") as file:
            file.create_dataset("w", (1 << 28,), "f4", chunks=(1 << 20,))
        yield "1 GiB that is not in the file", path.read_bytes()
        with h5py.File(path, "w") as file:
            file.create_dataset("w", (1 << 40,), "f4", chunks=(1 << 20,))
        yield "4 TiB that are not in the file", path.read_bytes()
        with h5py.File(path, "w") as file:
            file.create_dataset("w", (64,), "f4", external=[(str(other), 0, 256)])
        yield "items in another file", path.read_bytes()
        with h5py.File(path, "w") as file:
            file.create_dataset("w", data=np.zeros(1 << 28, "u1"), chunks=(1 << 28,), compression="gzip")
        yield "256 MiB deflated to 255 KiB", path.read_bytes()
    elif format == "openvino":
        text = good.decode()
        yield "2^40 items", re.sub(r'shape="64"', f'shape="{1 << 40}"', text).encode()
        yield "data beyond the file", re.sub(r'offset="0"', f'offset="{1 << 40}"', text).encode()
        deep = "<a>" * 200_000 + "</a>" * 200_000
        yield "200,000 elements in elements", text.replace("<layers>", f"<layers>{deep}").encode()
    elif format == "gguf":
        yield "2^40 tensors", good[:8] + struct.pack("<Q", 1 << 40) + good[16:]
        yield "2^40 pairs of metadata", good[:16] + struct.pack("<Q", 1 << 40) + good[24:]
        yield "a key of 2^40 bytes", good[:24] + struct.pack("<Q", 1 << 40) + good[32:]
        array = good[:16] + struct.pack("<QQ4sIIQ", 1, 4, b"a.aa", 9, 0, 1 << 24) + bytes(1 << 16)
        yield "an array of 2^24 items in 64 KiB", array
    elif format == "safetensors":
        yield "a header of 2^40 bytes", struct.pack("<Q", 1 << 40) + good[8:]
        yield "2^40 items", good.replace(b"[64]", b"[%d]" % (1 << 40))
        deep = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
        yield "200,000 arrays in arrays", struct.pack("<Q", len(deep)) + deep


def mutants(good: bytes) -> Iterator[bytes]:
    """Yield truncated copies of a file and copies with changed bytes, mostly near the ends, which contain headers."""
    rnd = random.Random(17)
    for k in range(MUTANTS):
        if k % 4 == 0:
            yield good[: rnd.randrange(len(good))]
            continue
        data, near = bytearray(good), min(len(good), 1024)
        for _ in range(rnd.randint(1, 4)):
            at = rnd.choice([rnd.randrange(near), len(good) - 1 - rnd.randrange(near), rnd.randrange(len(good))])
            data[at] = rnd.choice([0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1 << rnd.randrange(8), rnd.randrange(256)])
        yield bytes(data)


# ------------------------------------------------------------------------------------------------ in a process
def cpu(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a call, and its CPU seconds."""
    started = time.process_time()
    result = call()
    return result, round(time.process_time() - started, 4)


def reading(reader: Callable[[Path], Opened], library: str, path: Path) -> dict[str, float]:
    """Return CPU seconds of import, opening, and reading one tensor and all; peaks in MB above memory after import."""
    _, importing = cpu(lambda: (import_module(library), reader is ours and nnr.load and nnr.Limits))
    if reader is ours:
        with suppress(nnr.NnrError):
            nnr.load(path.with_name("small" + path.suffix))  # modules of the format are imported with the first file
    before = forget_peak()
    (names, read), opening = cpu(lambda: reader(path))
    read(names[0])
    first = peak() - before
    _, rest = cpu(lambda: [read(name).nbytes for name in names] and None)
    return {"import": importing, "open": opening, "all": rest, "MB_one": first >> 20, "MB_all": (peak() - before) >> 20}


def attempt(reader: Callable[[Path], Opened], path: Path) -> str:
    """Return the outcome of reading a file in its own process."""
    kept = mmap.mmap(-1, 64)
    child = os.fork()
    if not child:
        before = forget_peak()
        signal.alarm(SECONDS)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (size + SPACE, size + SPACE))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            names, read = reader(path)
            for name in names:
                read(name)
            kept[:8] = b"accepted"
        except BaseException as error:
            said = type(error).__name__.encode()[:40]
            kept[: len(said)] = said
        if peak() - before > MUCH:
            kept[:40] = b"memory".ljust(40, b"\0")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return (
            "hang" if os.WTERMSIG(status) == signal.SIGALRM else f"crash ({signal.Signals(os.WTERMSIG(status)).name})"
        )
    return kept[:40].rstrip(b"\0").decode()


def hostile(reader: Callable[[Path], Opened], library: str, format: str, path: Path) -> dict[str, Any]:
    """Return the outcomes of damaged files."""
    import_module(library)
    with suppress(Exception):
        reader(path)
    good, found = path.read_bytes(), Counter[str]()
    for data in mutants(good):
        path.write_bytes(data)
        found[attempt(reader, path)] += 1
    outcomes = {}
    for what, data in promises(format, good, path.parent):
        path.write_bytes(data)
        outcomes[what] = attempt(reader, path)
    path.write_bytes(good)
    return {"mutants": dict(found.most_common()), "promises": outcomes}


# ------------------------------------------------------------------------------------------------ all of it
def installed(distribution: str, without: Iterable[str] = ("numpy", "bitarray", "click", "rich")) -> dict[str, int]:
    """Return the bytes of a distribution and its dependencies, except dependencies of this project."""
    found: dict[str, int] = {}
    left = [distribution]
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found or name in without:
            continue
        with suppress(metadata.PackageNotFoundError):
            files = metadata.files(name) or []
            found[name] = sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file())
            needed = [one for one in metadata.requires(name) or [] if "extra ==" not in one]
            left += [match[0] for one in needed if (match := re.match(r"[\w.-]+", one))]
    return found


def child(what: str, format: str, who: str, path: str) -> dict[str, Any]:
    """Measure in another process."""
    command = [sys.executable, "-m", "benchmarks.readers", "--child", what, format, who, path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def measured(format: str, folder: Path) -> dict[str, Any]:
    """Return the line of a format."""
    _, distribution, suffix = LIBRARIES[format]
    rng = np.random.default_rng(1)
    files = {
        "small": {f"w{k}.w": rng.normal(0, 1, 64).astype("f4") for k in range(8)},
        "large": {f"w{k}.w": rng.normal(0, 1, 1_250_000).astype("f4") for k in range(100)},
        "many": {f"w{k}.w": rng.normal(0, 1, 16).astype("f4") for k in range(10_000)},
    }
    line: dict[str, Any] = {"format": format, "package": f"{distribution} {metadata.version(distribution)}"}
    line["installed_MB"] = {name: round(size / 1e6, 1) for name, size in installed(distribution).items()}
    for name, tensors in files.items():
        write(format, tensors, folder / f"{name}{suffix}")
    for who in ("ours", "library"):
        line[who] = {name: child("reading", format, who, str(folder / f"{name}{suffix}")) for name in ("large", "many")}
        line[who] |= child("hostile", format, who, str(folder / f"small{suffix}"))
    return line


def tables(lines: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Return the tables of docs/explanation/decisions.md."""
    for line in lines:
        both = line["ours"], line["library"]
        row = "| {} | {} | {} |".format
        yield f"\n| {line['format']} | nnr_codec | {line['package']} |\n|---|---:|---:|"
        others = ", ".join(f"{name} {size}" for name, size in line["installed_MB"].items())
        yield row("installed, MB", 0, f"{sum(line['installed_MB'].values()):.0f} ({others})")
        yield row("import, s", *(one["large"]["import"] for one in both))
        for name, label in (("large", "500 MB"), ("many", "10,000 tensors")):
            yield row(f"{label}: open, s", *(one[name]["open"] for one in both))
            yield row(f"{label}: read all, s", *(one[name]["all"] for one in both))
            yield row(f"{label}: peak for one tensor, MB", *(one[name]["MB_one"] for one in both))
            yield row(f"{label}: peak for all, MB", *(one[name]["MB_all"] for one in both))
        found = [Counter(one["mutants"]) for one in both]
        yield row(f"{MUTANTS} damaged files: read", *(one.pop("accepted", 0) for one in found))
        failed = [{what: count for what, count in one.items() if re.match("crash|hang|memory", what)} for one in found]
        refused = [Counter(one) - Counter(bad) for one, bad in zip(found, failed, strict=True)]
        yield row("rejected by exceptions", *(f"{one.total()} ({', '.join(one)})" for one in refused))
        yield row("crash, hang, memory", *(", ".join(f"{k}: {n}" for k, n in bad.items()) or 0 for bad in failed))
        for what in both[0]["promises"]:
            yield row(what, *(one["promises"][what].replace("accepted", "read") for one in both))


def main() -> None:
    """Print a line for each format."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readers", description=__doc__.partition(":")[0])
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"some of {', '.join(LIBRARIES)}; otherwise all")
    parser.add_argument("--table", metavar="RESULTS.jsonl", type=Path, help="print tables of earlier results")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.table:
        print("\n".join(tables(map(json.loads, arguments.table.read_text("utf-8").splitlines()))))
    elif arguments.child:
        what, format, who, path = arguments.child
        reader = ours if who == "ours" else globals()[format]
        library = "nnr_codec" if who == "ours" else LIBRARIES[format][0]
        if what == "reading":
            print(json.dumps(reading(reader, library, Path(path))))
        else:
            print(json.dumps(hostile(reader, library, format, Path(path))))
    else:
        about = {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
        for format in arguments.formats or LIBRARIES:
            with tempfile.TemporaryDirectory() as folder:
                print(json.dumps(measured(format, Path(folder)) | about), flush=True)


if __name__ == "__main__":
    main()
