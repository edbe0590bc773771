"""For each requirement a bitstream that breaks only this requirement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bitarray import bitarray

from nnr_codec import Limits
from nnr_codec.conformance.cases import read_case
from nnr_codec.constants import (
    ICNN_NDU_EXT,
    NNR_AGG_SLF,
    NNR_MPS,
    NNR_NDU,
    NNR_PT_INT,
    NNR_PT_RAW_FLOAT,
    NNR_QCB,
    NNR_QSU,
    NNR_TPL,
    NNR_TPL_DICT,
    NNR_TPL_PRUN,
)
from nnr_codec.model import Topology
from nnr_codec.syntax.structures import (
    BitMask,
    NnrModelParameterSetUnitHeader,
    NnrModelParameterSetUnitPayload,
    NnrPruningTopologyContainer,
    NnrTopologyUnitHeader,
    NnrTopologyUnitPayload,
    NnrUnitHeader,
    SparsificationPerformanceMap,
)

from ..builder import Bitstream, aggregate, ndu, update_ndu

VECTORS = Path(__file__).resolve().parents[2] / "bitstream_vectors"
GRAPH = (
    b'version 1.0; graph g(x) -> (y) { x = external(shape = [1]); w = variable(shape = [1], label = "w"); '
    b"y = mul(x, w); }\0"
)
QUANT = b'"w": linear_quantize(min = 0.0, max = 1.0, bits = 8);\n\0'


@dataclass(frozen=True)
class Broken:
    """Bitstream with its predecessors and supplied information.

    Parameters
    ----------
    data : bytes
    unit : int or None
        The number of the unit that breaks the rule.
    topology : Topology or None
        Topology that is stored separately.
    """

    data: bytes
    unit: int | None
    inputs: Sequence[bytes] = ()
    limits: Limits = field(default_factory=Limits)
    topology_dimensions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    topology: Topology | None = None


CASES: dict[str, Callable[[], Broken]] = {}


def breaks(requirement: str) -> Callable[[Callable[[], Broken]], Callable[[], Broken]]:
    """Register the bitstream for a requirement."""

    def register(make: Callable[[], Broken]) -> Callable[[], Broken]:
        assert requirement not in CASES
        CASES[requirement] = make
        return make

    return register


def vector(requirement: str, name: str) -> None:
    """Use one of the published vectors, which were built bit by bit from the standard's text."""

    def make() -> Broken:
        group = {"NEG": "negative", "ACC": "acceptable", "SID": "sideinfo"}[name.split("-")[1]]
        case = read_case(VECTORS / group / name / "case.json", VECTORS)
        *before, data = [stream.path.read_bytes() for stream in case.streams]
        unit = case.error[1] if case.error else 2
        return Broken(data, unit, before, case.limits, case.topology_dimensions)

    breaks(requirement)(make)


def mps(s: Bitstream, **elements: object) -> Bitstream:
    """Return an NNR_MPS with these elements."""
    payload = NnrModelParameterSetUnitPayload(**elements)
    return s.unit(NnrUnitHeader(nnr_unit_type=NNR_MPS, detail=NnrModelParameterSetUnitHeader()), payload)


def start(**elements: object) -> Bitstream:
    """Return NNR_STR and NNR_MPS."""
    return mps(Bitstream().str_(), **elements)


def raw(s: Bitstream, name: str, dims: Sequence[int] = (1,), **elements: object) -> Bitstream:
    """Return a tensor of zeros."""
    size = 1
    for extent in dims:
        size *= extent
    return s.raw(ndu(name, dims, kind=NNR_PT_RAW_FLOAT, **elements), [0.0] * size)


def pruned(s: Bitstream, **elements: object) -> Bitstream:
    """Return an NNR_TPL of format NNR_TPL_PRUN."""
    container = NnrPruningTopologyContainer(**{"nnr_rep_type": 0, **elements})
    header = NnrUnitHeader(nnr_unit_type=NNR_TPL, detail=NnrTopologyUnitHeader(topology_storage_format=NNR_TPL_PRUN))
    return s.unit(header, NnrTopologyUnitPayload(pruning=container))


# ------------------------------------------------------------------------------------------------ units
@breaks("string")
def string() -> Broken:
    return Broken(raw(start(), "w").data.replace(b"w\0", b"\xff\0"), 2)


@breaks("reserved-zero")
def reserved_zero() -> Broken:
    return Broken(start(nnr_reserved_zero_2bits=1).data, 1)


@breaks("byte-alignment")
def byte_alignment() -> Broken:
    data = start().lps().data
    return Broken(data[:-1] + bytes([data[-1] ^ 1]), 2)


@breaks("unit-size")
def unit_size() -> Broken:
    return Broken(raw(start(), "w").data[:-1], 2)


@breaks("start-unit")
def start_unit() -> Broken:
    return Broken(b"".join(raw(start(), "w").units[1:]), 0)


@breaks("one-bitstream")
def one_bitstream() -> Broken:
    return Broken(2 * raw(start(), "w").data, 3)


@breaks("parameter-types")
def parameter_types() -> Broken:
    return Broken(raw(start(), "w", compressed_parameter_types=2).data, 2)


@breaks("single-mps")
def single_mps() -> Broken:
    return Broken(raw(mps(start()), "w").data, 2)


@breaks("mps-first")
def mps_first() -> Broken:
    return Broken(mps(raw(Bitstream().str_(), "w")).data, 1)


@breaks("unique-ids")
def unique_ids() -> Broken:
    return Broken(raw(raw(start(), "w"), "w").data, 3)


@breaks("topology-first")
def topology_first() -> Broken:
    return Broken(raw(start(topology_carriage_flag=1), "a").topology(b"a", storage=0).data, 3)


@breaks("quantization-first")
def quantization_first() -> Broken:
    return Broken(raw(start(), "a").quantization(b"\0", storage=2).data, 3)


@breaks("unit-type")
def unit_type() -> Broken:
    return Broken(start().add(b"\x00\x03\x1e").data, 2)


@breaks("partial-flags")
def partial_flags() -> Broken:
    header = NnrUnitHeader(
        nnr_unit_type=NNR_NDU, independently_decodable_flag=0, detail=ndu("w", [1], kind=NNR_PT_RAW_FLOAT)
    )
    return Broken(start().unit(header, bytes(4)).data, 2)


@breaks("partial-flag-equal")
def partial_flag_equal() -> Broken:
    pair = {"compressed_parameter_types": 1, "decomposition_rank": 1, "g_number_of_rows": 2}
    s = Bitstream().str_().mps().ndu(ndu("w", [2, 2], **pair), [[1], [2]], pieces=2)
    return Broken(s.ndu(ndu("w", [2, 2], **pair), [[1, 2]]).data, 4)


@breaks("partial-sequence")
def partial_sequence() -> Broken:
    detail = ndu("w", [1], kind=NNR_PT_RAW_FLOAT)
    return Broken(start().part(detail, 3, bytes(2)).part(detail, 1, bytes(2)).data, 3)


@breaks("lps-self-contained")
def lps_self_contained() -> Broken:
    dimensions = {"w": [1]}
    s = mps(Bitstream(dimensions).str_()).lps(alone=1)
    return Broken(s.raw(ndu("w", None, kind=NNR_PT_RAW_FLOAT), [0.0]).data, 2, topology_dimensions=dimensions)


# ------------------------------------------------------------------------------------------------ aggregates
def two(**options: object) -> bytes:
    """Return NNR_STR, NNR_MPS and an aggregate of two tensors."""
    return raw(raw(start(), "a"), "b").aggregate(2, **options).data


@breaks("aggregate-type")
def aggregate_type() -> Broken:
    return Broken(two(kind=2), 2)


@breaks("aggregate-self-contained")
def aggregate_self_contained() -> Broken:
    s = start(mps_topology_indexed_reference_flag=1).reference_list("a", "b")
    for k in range(2):
        s.raw(ndu(k, [1], kind=NNR_PT_RAW_FLOAT), [0.0])
    return Broken(s.aggregate(3, kind=NNR_AGG_SLF).data, 3)


@breaks("aggregate-count")
def aggregate_count() -> Broken:
    return Broken(two(count=3), 2)


#: Offset of the list in an aggregate; each entry has 5 bytes: 6 bits of type and 34 of entry point.
LIST = 7


def listed(byte: int, change: int) -> Broken:
    """Return an aggregate with a changed byte in its list."""
    s = raw(raw(start(), "a"), "b")
    unit = bytearray(aggregate(s.units[2:], entry_points=True))
    unit[LIST + byte] ^= change
    return Broken(b"".join(s.units[:2]) + unit, 2)


@breaks("aggregate-unit-type")
def aggregate_unit_type() -> Broken:
    return listed(0, 0x80)


@breaks("aggregate-entry-point")
def aggregate_entry_point() -> Broken:
    return listed(9, 1)


@breaks("quant-bitdepth")
def quant_bitdepth() -> Broken:
    s = start().ndu(ndu("a", [1], kind=NNR_PT_INT), [100]).ndu(ndu("b", [1], kind=NNR_PT_INT), [-128])
    return Broken(s.aggregate(2, quant_bitdepth=[7, 8]).data, 2)


# ------------------------------------------------------------------------------------------------ parameter sets
@breaks("topology-format")
def topology_format() -> Broken:
    return Broken(start(topology_carriage_flag=1).topology(b"x\0", storage=7).data, 2)


@breaks("compression-format")
def compression_format() -> Broken:
    return Broken(start(topology_carriage_flag=1).topology(b"x\0", storage=0, compression=2).data, 2)


@breaks("quantization-format")
def quantization_format() -> Broken:
    return Broken(start().quantization(b"x\0", storage=5).data, 2)


@breaks("quantization-methods")
def quantization_methods() -> Broken:
    return Broken(start(mps_quantization_method_flags=4).data, 1)


@breaks("topology-carriage")
def topology_carriage() -> Broken:
    return Broken(start(topology_carriage_flag=1).data, 1)


@breaks("topology-data")
def topology_data() -> Broken:
    return Broken(start(topology_carriage_flag=1).topology(b"\0").data, 2)


@breaks("base-model-id")
def base_model_id() -> Broken:
    return Broken(start(mps_parent_signalling_enabled_flag=1, nnr_pre_flag=1).data, 1)


@breaks("map-counts")
def map_counts() -> Broken:
    return Broken(
        start(mps_sparsification_flag=1, sparsification=SparsificationPerformanceMap(spm_count_thresholds=0)).data, 1
    )


@breaks("representation-type")
def representation_type() -> Broken:
    return Broken(pruned(start(), nnr_rep_type=2).data, 2)


@breaks("prune-counts")
def prune_counts() -> Broken:
    return Broken(pruned(start(), sparse_flag=1, sparse_mask=BitMask(bit_mask_value=bitarray())).data, 2)


@breaks("prune-dimensions")
def prune_dimensions() -> Broken:
    s = pruned(
        start(), nnr_rep_type=NNR_TPL_DICT, prune_flag=1, count_ids=1, element_id=["w"], count_dims=[1], dim=[[2]]
    )
    return Broken(raw(s, "w", [3]).data, 3)


@breaks("prune-mask")
def prune_mask() -> Broken:
    s = pruned(start(), sparse_flag=1, sparse_mask=BitMask(bit_mask_value=bitarray("101")))
    return Broken(raw(s, "w", [2, 2]).data, None)


@breaks("nnef-string")
def nnef_string() -> Broken:
    return Broken(start(topology_carriage_flag=1).topology(GRAPH[:-1]).data, 2)


@breaks("nnef-graph")
def nnef_graph() -> Broken:
    return Broken(start(topology_carriage_flag=1).topology(b"graph\0").data, 2)


@breaks("nnef-quantization")
def nnef_quantization() -> Broken:
    s = start(topology_carriage_flag=1).topology(GRAPH).quantization(QUANT.replace(b"w", b"v"))
    return Broken(raw(s, "w").data, 3)


@breaks("nnef-quantization-string")
def nnef_quantization_string() -> Broken:
    return Broken(raw(start(topology_carriage_flag=1).topology(GRAPH).quantization(b"\0\0"), "w").data, 3)


@breaks("nnef-topology-format")
def nnef_topology_format() -> Broken:
    return Broken(raw(start(topology_carriage_flag=1).topology(GRAPH, storage=0), "w").data, 2)


@breaks("nnef-quantization-format")
def nnef_quantization_format() -> Broken:
    s = start(topology_carriage_flag=1).topology(GRAPH).quantization(QUANT, storage=4)
    return Broken(raw(s, "w").data, 3)


@breaks("nnef-list-consecutive")
def nnef_list_consecutive() -> Broken:
    s = start(topology_carriage_flag=1).reference_list("w", "W").topology(GRAPH)
    return Broken(raw(s, "w").data, 2)


@breaks("nnef-topology-first")
def nnef_topology_first() -> Broken:
    return Broken(raw(start(topology_carriage_flag=1), "w").topology(GRAPH).data, 3)


@breaks("nnef-quantization-first")
def nnef_quantization_first() -> Broken:
    return Broken(raw(start(topology_carriage_flag=1).topology(GRAPH), "w").quantization(QUANT).data, 4)


@breaks("nnef-reference-list")
def nnef_reference_list() -> Broken:
    s = start(topology_carriage_flag=1, mps_parent_signalling_enabled_flag=1)
    return Broken(s.topology(GRAPH).reference_list("w", "v").data, 3)


@breaks("nnef-shapes")
def nnef_shapes() -> Broken:
    return Broken(raw(start(topology_carriage_flag=1).topology(GRAPH), "w", [2]).data, 3)


@breaks("nnef-names")
def nnef_names() -> Broken:
    return Broken(raw(raw(start(topology_carriage_flag=1).topology(GRAPH), "w"), "v").data, 4)


@breaks("complete")
def complete() -> Broken:
    return Broken(raw(start().reference_list("a", "b"), "b").data, None)


# ------------------------------------------------------------------------------------------------ tensors
@breaks("profile")
def profile() -> Broken:
    return Broken(mps(Bitstream().str_(2)).data, 0)


@breaks("payload-type")
def payload_type() -> Broken:
    return Broken(start().ndu(ndu("w", [1], kind=4), payload=b"").data, 2)


@breaks("tensor-dimensions")
def tensor_dimensions() -> Broken:
    return Broken(start().ndu(ndu("w", [0], kind=NNR_PT_INT), payload=b"").data, 2)


@breaks("dimensions-known")
def dimensions_known() -> Broken:
    s = mps(Bitstream({"w": [1]}).str_())
    return Broken(s.raw(ndu("w", None, kind=NNR_PT_RAW_FLOAT), [0.0]).data, 2)


@breaks("first-dimension-shift")
def first_dimension_shift() -> Broken:
    return Broken(raw(start(), "w", [2, 2], first_tensor_dimension_shift=2).data, 2)


@breaks("data-format")
def data_format() -> Broken:
    return Broken(raw(start(), "w", data_format=10).data, 2)


@breaks("data-format-kind")
def data_format_kind() -> Broken:
    return Broken(raw(start(), "w", data_format=0).data, 2)


@breaks("unique-parameters")
def unique_parameters() -> Broken:
    s = start()
    for name in ("a", "b"):
        s.raw(update_ndu(name, [1], 0, kind=NNR_PT_RAW_FLOAT), [0.0])
    return Broken(s.data, 3)


@breaks("parent-flag")
def parent_flag() -> Broken:
    header = update_ndu("w", [1], 0, kind=NNR_PT_RAW_FLOAT)
    header.put_node_depth = 2
    return Broken(start(mps_parent_signalling_enabled_flag=1).raw(header, [0.0]).data, 2)


def base(name: str = "w") -> bytes:
    """Return a base model of one tensor."""
    return start().raw(update_ndu(name, [1], 0, kind=NNR_PT_RAW_FLOAT), [0.0]).data


def update(depth: int, **elements: object) -> bytes:
    """Return an update of the base model."""
    s = start(mps_parent_signalling_enabled_flag=1, **elements)
    return s.ndu(update_ndu("w", [1], depth, kind=NNR_PT_INT), [1]).data


@breaks("parent-depth")
def parent_depth() -> Broken:
    return Broken(update(1), 2, [base(), update(1)])


@breaks("update-order")
def update_order() -> Broken:
    def external(depth: int) -> bytes:
        header = update_ndu("w", [1], depth, kind=NNR_PT_INT, parent_node_id_type=ICNN_NDU_EXT)
        del header.parent_device_id
        return start(mps_parent_signalling_enabled_flag=1).ndu(header, [1]).data

    return Broken(external(2), 2, [external(2)])


@breaks("parent-tensor")
def parent_tensor() -> Broken:
    return Broken(update(1), 2, [base("v")])


@breaks("required-information")
def required_information() -> Broken:
    return Broken(update(2), 2)


@breaks("topology-fit")
def topology_fit() -> Broken:
    return Broken(raw(start(), "w", [2]).data, None, topology=Topology("nnef", GRAPH[:-1]))


@breaks("residual-first")
def residual_first() -> Broken:
    return Broken(update(1, nnr_pre_flag=1, base_model_id_present_flag=1, base_model_id="m"), 2)


@breaks("quantization-method-used")
def quantization_method_used() -> Broken:
    s = start(mps_quantization_method_flags=NNR_QCB, mps_qp_density=2, mps_quantization_parameter=0)
    return Broken(s.ndu(ndu("w", [2]), [1, 2]).data, 2)


@breaks("reference-index")
def reference_index() -> Broken:
    s = start(mps_topology_indexed_reference_flag=1, mps_parent_signalling_enabled_flag=0).reference_list("a", "b")
    for k in range(3):
        s.raw(ndu(k, [1], kind=NNR_PT_RAW_FLOAT), [0.0])
    return Broken(s.data, 5)


@breaks("float-exact")
def float_exact() -> Broken:
    s = start(mps_quantization_method_flags=NNR_QSU, mps_qp_density=2, mps_quantization_parameter=0)
    return Broken(s.ndu(ndu("w", [3]), [1, 2**24 + 1, 0]).data, 2)


vector("parent-hash", "NNR-ACC-013")
vector("residual-quantization", "NNR-ACC-008")
vector("scan-order", "NNR-NEG-052")
vector("block-elements", "NNR-NEG-078")
vector("block-parameters", "NNR-NEG-080")
vector("decomposition-payload", "NNR-NEG-085")
vector("decomposition-pair", "NNR-NEG-084")
vector("decomposition-dimensions", "NNR-NEG-081")
vector("codebook-offset", "NNR-NEG-067")
vector("codebook-values", "NNR-NEG-070")
vector("codebook-index", "NNR-NEG-112")
vector("split-mapping", "NNR-NEG-073")
vector("quantization-parameters", "NNR-NEG-086")
vector("update-shape", "NNR-NEG-044")
vector("integer-range", "NNR-NEG-107")
vector("float-range", "NNR-NEG-115")
vector("raw-size", "NNR-NEG-124")
vector("deflate", "NNR-NEG-035")
vector("payload-complete", "NNR-NEG-096")
vector("terminating-bit", "NNR-NEG-090")
vector("nesting-zero-bit", "NNR-NEG-092")
vector("interval-offset", "NNR-NEG-097")
vector("limits", "NNR-NEG-060")
vector("entry-points", "NNR-NEG-180")
vector("side-information", "NNR-SID-123")
vector("attachment", "NNR-SID-710")
vector("index", "NNR-SID-621")
