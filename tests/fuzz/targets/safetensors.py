"""Target: safetensors, as one file, or as an index and a shard."""

from __future__ import annotations

from collections.abc import Iterable

from .support import folder, joined, parted, read, tensors, written

INDEX = b'{"metadata": {"total_size": 68}, "weight_map": {%s}}'


def target(data: bytes) -> None:
    """Read a file, or the shards that an index names."""
    index, *shards = parted(data, 3)
    if shards[0]:
        files = {"m.safetensors.index.json": index, "1.safetensors": shards[0], "2.safetensors": shards[1]}
        with folder(files) as path:
            read(path / "m.safetensors.index.json", "safetensors")
    else:
        read(index, "safetensors")


def seeds() -> Iterable[bytes]:
    """Return files, and shards of them."""
    whole = tensors()
    yield written(whole, "safetensors")
    yield written({}, "safetensors")
    names = ", ".join(f'"{name}": "{1 + (name == "n")}.safetensors"' for name in whole).encode()
    second = {"n": whole.pop("n")}
    yield joined(INDEX % names, written(whole, "safetensors"), written(second, "safetensors"))
    header = b'{"__metadata__":{"a":"b"},"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
    yield len(header).to_bytes(8, "little") + header + bytes(4)
