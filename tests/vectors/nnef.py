"""NNR-NEF: topology and quantization information of NNEF, Annex A."""

from __future__ import annotations

import zlib

from nnr_codec.constants import NNR_DFL

from ..builder import ndu
from .arithmetic import assemble, chosen, floats
from .bits import MPS_HEAD, ONE, STR1, TWO, f4, raw
from .bits import ndu as ndu_bits
from .case import Content, valid
from .stream import Stream

GRAPH = b"""version 1.0;

graph net(input) -> (output)
{
    input = external(shape = [1, 3]);
    weight = variable(shape = [4, 3], label = 'fc/weight');
    bias = variable(shape = [1, 4], label = 'fc/bias');
    output = linear(input, weight, bias);
}
"""
QUANT = b'"output": linear_quantize(min = 0.0, max = 1.0, bits = 8);\n'

#: zlib.compress(GRAPH + b"\\0", 9) and others, as literals because implementations of deflate may differ.
GRAPH_DEFLATED = bytes.fromhex(
    "78da6d8fcb0ac23010455de72b66d714e2a3d85da93f222e26323681909624ad82f8efe65111c459cde3dc993b0b39af470b"
    "cdeed03136389c14580a5cdb690e356c4fc0c739a49c3d19c4c803e8811e819c45c3bdc28962e3dc08385eea2e5377d2834a"
    "d8824ea334f4c5da84093028c9c4baba5df785ae56add4e8ff2ae381f64799d88faef88c03a32da12b2f88d58ac86b23f962"
    "9b377a98499a"
)
QUANT_DEFLATED = bytes.fromhex(
    "78da53ca2f2d29282d51b252c8c9cc4b4d2c8a2f2c4dcc2bc9ac4ad5c8cdcc53b05530d033d051c84dac00320d41cca4cc92"
    "6220db42d39a8b010065aa11d1"
)
assert zlib.decompress(GRAPH_DEFLATED) == GRAPH + b"\0"
assert zlib.decompress(QUANT_DEFLATED) == QUANT + b"\0"


def with_tensors(s: Stream, **texts: bytes) -> Content:
    """Return the bitstream with the tensors of the graph."""
    weight, bias = chosen([4, 3], 9), chosen([1, 4], 5)
    s.ndu(ndu("fc/weight", [4, 3]), weight, qp=-9).ndu(ndu("fc/bias", [1, 4]), bias, qp=-2)
    return s.gives({"fc/weight": floats(weight, -9), "fc/bias": floats(bias, -2)}, **texts)


@valid("NNR-NEF-001", "uncompressed topology", "6.4.3.5 A.2 A.4", "NNR_TPL_NNEF NNR_PT_RAW topology_carriage_flag")
def plain() -> Content:
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1).topology(GRAPH + b"\0")
    return with_tensors(s, topology=GRAPH)


@valid(
    "NNR-NEF-002",
    "uncompressed topology and quantization data",
    "6.4.3.6 A.2 A.4",
    "NNR_TPL_NNEF NNR_QNT_NNEF NNR_PT_RAW",
)
def plain_quantization() -> Content:
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1).topology(GRAPH + b"\0").quantization(QUANT + b"\0")
    return with_tensors(s, topology=GRAPH, quantization=QUANT)


@valid(
    "NNR-NEF-003",
    "deflated topology and quantization data, quantization data first",
    "6.4.3.5 6.4.3.6 A.4",
    "NNR_TPL_NNEF NNR_QNT_NNEF NNR_DFL",
)
def deflated() -> Content:
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1).quantization(QUANT_DEFLATED, compression=NNR_DFL)
    s.topology(GRAPH_DEFLATED, compression=NNR_DFL)
    return with_tensors(s, topology=GRAPH, quantization=QUANT)


@valid(
    "NNR-NEF-004",
    "topology, and a reference list of its labels",
    "6.4.3.7 A.4",
    "NNR_TPL_NNEF NNR_TPL_REFLIST topology_elem_id_index",
)
def indexed() -> Content:
    weight, bias = chosen([4, 3], 9), chosen([1, 4], 5)
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1, mps_topology_indexed_reference_flag=1).topology(GRAPH + b"\0")
    s.reference_list("fc/bias", "fc/weight")
    s.ndu(ndu(1, [4, 3]), weight).ndu(ndu(0, [1, 4]), bias)
    return s.gives({"fc/weight": floats(weight), "fc/bias": floats(bias)}, topology=GRAPH)


@valid("NNR-NEF-005", "a topology with multibyte UTF-8 characters", "A.4", "NNR_TPL_NNEF UTF-8")
def utf8() -> Content:
    text = "# größe 重み 🧠\n".encode() + GRAPH
    s = Stream()
    s.str_()
    s.parameters(topology_carriage_flag=1).topology(text + b"\0")
    return with_tensors(s, topology=text)


#: A graph of one variable and a zero stored without compression: zlib header, one stored block, Adler-32.
SMALL = b'version 1.0;graph g(x)->(y){x=external(shape=[2]);w=variable(shape=[2],label="w");y=mul(x,w);}'
SMALL_LENGTH = len(SMALL) + 1
STORED = (
    "0x7801 zlib header, deflate, 32 KiB",
    "00000001 final block, stored",
    f"0x{SMALL_LENGTH.to_bytes(2, 'little').hex()} LEN {SMALL_LENGTH}",
    f"0x{(SMALL_LENGTH ^ 0xFFFF).to_bytes(2, 'little').hex()} NLEN",
    f"0x{SMALL.hex()}00 {SMALL.decode()}, 0",
    f"0x{zlib.adler32(SMALL + bytes(1)):08x} Adler-32",
)
BITS = (
    *STR1,
    "0x0006 nnr_unit_size 6",
    *MPS_HEAD,
    "1 topology_carriage_flag",
    "0000000 flags, all 0",
    "0x00 flags, all 0",
    "0x80 byte_alignment()",
    f"0x{SMALL_LENGTH + 16:04x} nnr_unit_size {SMALL_LENGTH + 16}",
    "000011 nnr_unit_type NNR_TPL",
    "10 complete",
    "0x01 topology_storage_format NNR_TPL_NNEF",
    "0x01 topology_compression_format NNR_DFL",
    *STORED,
    *ndu_bits(17, 2, "0x7700 topology_elem_id 'w'", *raw(2)),
    ONE,
    TWO,
)


@valid(
    "NNR-NEF-006", "deflated topology in one stored block", "6.4.3.5 A.4", "hand NNR_TPL_NNEF NNR_DFL", bits=BITS, rev=2
)
def stored() -> Content:
    return Content(assemble(*BITS), {"w": f4(1, 2)}, topology=SMALL)
