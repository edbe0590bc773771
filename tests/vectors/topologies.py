"""NNR-SYN-046 on: topology and quantization data of other formats than NNEF (6.4.3.5, 6.4.3.6)."""

from __future__ import annotations

import zlib

from nnr_codec.constants import NNR_DFL, NNR_PT_RAW_FLOAT, TopologyStorageFormat

from ..builder import ndu
from .bits import f4
from .case import Content, valid
from .stream import Stream

#: Data of each storage format: opaque bytes that may include zeros (errata N9).
FORMATS = {
    TopologyStorageFormat.NNR_TPL_UNREC: ("", b"any bytes \xff\0 at all"),
    TopologyStorageFormat.NNR_TPL_ONNX: ("onnx", b"\x08\x08:\0\n\x03net"),
    TopologyStorageFormat.NNR_TPL_PYT: ("pytorch", b"net(\n  (fc): Linear(3, 4)\n)\0"),
    TopologyStorageFormat.NNR_TPL_TEF: ("tensorflow", b"\n\x04node\0\xfe"),
}
QUANTIZATION = b"bits=8\0\xfd"


def stored(data: bytes) -> bytes:
    """Return a zlib stream of one stored block, which does not depend on the implementation of deflate."""
    length = len(data)
    block = b"\x01" + length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little") + data
    return b"\x78\x01" + block + zlib.adler32(data).to_bytes(4, "big")


def carried(storage: int, compression: int, quantization: int | None) -> Content:
    """Return topology data, quantization data of the format ``quantization`` if any, and a tensor."""
    name, data = FORMATS[TopologyStorageFormat(storage)]
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1)
    deflate = stored if compression == NNR_DFL else bytes
    s.topology(deflate(data), storage=storage, compression=compression)
    if quantization is not None:
        s.quantization(deflate(QUANTIZATION), storage=quantization, compression=compression)
    s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [1, 2])
    kept = QUANTIZATION if quantization == storage else None
    return s.gives({"w": f4(1, 2)}, topology=data, quantization=kept, topology_format=name)


for number, (storage, compression) in enumerate(((s, c) for s in FORMATS for c in (0, NNR_DFL)), 46):
    suffix = storage.name.removeprefix("NNR_TPL_")

    @valid(
        f"NNR-SYN-{number:03}",
        f"topology and quantization data of format {suffix}, {'deflated' if compression else 'uncompressed'}",
        "6.4.3.5 6.4.3.6 6.4.4.5 6.4.4.6",
        f"{storage.name} NNR_QNT_{suffix} {'NNR_DFL' if compression else 'NNR_PT_RAW'}",
    )
    def both(storage: int = storage, compression: int = compression) -> Content:
        return carried(storage, compression, storage)


@valid(
    "NNR-SYN-054",
    "quantization data with a different format than the topology",
    "6.4.3.5 6.4.3.6",
    "NNR_TPL_ONNX NNR_QNT_TEF",
)
def another_format() -> Content:
    return carried(TopologyStorageFormat.NNR_TPL_ONNX, 0, 4)
