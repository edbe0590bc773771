"""Identifiers and tables of constants, with the names of ISO/IEC 15938-17:2024 (Tables 3 to 16)."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class NnrUnitType(IntEnum):
    """nnr_unit_type, Table 3. 7..31 are reserved, 32..63 unspecified."""

    NNR_STR = 0  #: start of a bitstream
    NNR_MPS = 1  #: model parameter set: applies to the whole network
    NNR_LPS = 2  #: layer parameter set: applies to the units that follow
    NNR_TPL = 3  #: topology
    NNR_QNT = 4  #: quantization information
    NNR_NDU = 5  #: compressed data: one tensor, or a block of tensors
    NNR_AGG = 6  #: aggregate: units nested in a unit


class TopologyStorageFormat(IntEnum):
    """topology_storage_format, Table 4 and Annexes A to D (errata I14)."""

    NNR_TPL_UNREC = 0  #: a format without a number
    NNR_TPL_NNEF = 1  #: NNEF, Annex A
    NNR_TPL_ONNX = 2  #: ONNX, Annex B
    NNR_TPL_PYT = 3  #: PyTorch, Annex C
    NNR_TPL_TEF = 4  #: TensorFlow, Annex D
    NNR_TPL_PRUN = 5  #: pruning information
    NNR_TPL_REFLIST = 6  #: tensor names, to which units refer by index


class CompressionFormat(IntEnum):
    """topology_compression_format and quantization_compression_format, Tables 5 and 7."""

    NNR_PT_RAW = 0  #: not compressed
    NNR_DFL = 1  #: deflated, RFC 1950


class QuantizationStorageFormat(IntEnum):
    """quantization_storage_format, Table 6 and Annexes A to D (errata I14)."""

    NNR_QNT_UNREC = 0  #: a format without a number
    NNR_QNT_NNEF = 1  #: NNEF, Annex A
    NNR_QNT_ONNX = 2  #: ONNX, Annex B
    NNR_QNT_PYT = 3  #: PyTorch, Annex C
    NNR_QNT_TEF = 4  #: TensorFlow, Annex D


class ParentNodeIdType(IntEnum):
    """parent_node_id_type, Table 8."""

    ICNN_NDU_ID = 0  #: device_id, parameter_id and put_node_depth identify the parent
    ICNN_NDU_PL_SHA256 = 1  #: the SHA-256 of its payload identifies the parent
    ICNN_NDU_PL_SHA512 = 2  #: the SHA-512 of its payload identifies the parent
    ICNN_NDU_EXT = 3  #: the parent is a tensor of the base model, outside any NNR bitstream


class CompressedParameterType(IntFlag):
    """Bits of compressed_parameter_types, Table 9."""

    NNR_CPT_DC = 0x01  #: decomposed into G and H
    NNR_CPT_LS = 0x02  #: local scaling
    NNR_CPT_BN = 0x04  #: batch normalization: beta, gamma, mean, variance
    NNR_CPT_BI = 0x08  #: bias


class NnrAggregateUnitType(IntEnum):
    """nnr_aggregate_unit_type, Table 10."""

    NNR_AGG_GEN = 0  #: any units
    NNR_AGG_SLF = 1  #: self-contained: decodable after only an NNR_STR and an NNR_MPS


class QuantizationMethod(IntFlag):
    """Bits of mps_quantization_method_flags and lps_quantization_method_flags, Tables 11 and 12."""

    NNR_QSU = 0x01  #: uniform, scalar
    NNR_QCB = 0x02  #: codebook


class NnrRepType(IntEnum):
    """nnr_rep_type, Table 13."""

    NNR_TPL_BMSK = 0  #: bit mask
    NNR_TPL_DICT = 1  #: new dimensions by tensor


class PayloadType(IntEnum):
    """nnr_compressed_data_unit_payload_type, Table 16."""

    NNR_PT_INT = 0  #: integers (7.3.2)
    NNR_PT_FLOAT = 1  #: quantized floats (7.3.3)
    NNR_PT_RAW_FLOAT = 2  #: raw floats (7.3.4)
    NNR_PT_BLOCK = 3  #: a weight with its scaling, bias or batch normalization (7.3.5)


class DecompressedDataFormat(IntEnum):
    """nnr_decompressed_data_format, Table 15: data type (TENSOR_INT or TENSOR_FLOAT) and bit depth."""

    TENSOR_INT32 = 0
    TENSOR_FLOAT32 = 1
    TENSOR_INT2 = 2
    TENSOR_INT3 = 3
    TENSOR_INT4 = 4
    TENSOR_INT8 = 5
    TENSOR_INT16 = 6
    TENSOR_INT64 = 7
    TENSOR_FLOAT16 = 8
    TENSOR_FLOAT64 = 9

    @property
    def is_float(self) -> bool:
        """True if the data type is TENSOR_FLOAT (Table 14)."""
        return "FLOAT" in self.name

    @property
    def bit_depth(self) -> int:
        """Bits per parameter."""
        return int(self.name.removeprefix("TENSOR_").lstrip("INTFLOA"))


#: Names of the storage formats of Tables 4 and 6 in a Topology; both tables share one numbering (errata I14).
TOPOLOGY_FORMATS: dict[int, str] = {
    TopologyStorageFormat.NNR_TPL_UNREC: "",
    TopologyStorageFormat.NNR_TPL_NNEF: "nnef",
    TopologyStorageFormat.NNR_TPL_ONNX: "onnx",
    TopologyStorageFormat.NNR_TPL_PYT: "pytorch",
    TopologyStorageFormat.NNR_TPL_TEF: "tensorflow",
}

NNR_STR, NNR_MPS, NNR_LPS, NNR_TPL, NNR_QNT, NNR_NDU, NNR_AGG = NnrUnitType
NNR_TPL_UNREC, NNR_TPL_NNEF, NNR_TPL_ONNX, NNR_TPL_PYT, NNR_TPL_TEF, NNR_TPL_PRUN, NNR_TPL_REFLIST = (
    TopologyStorageFormat
)
NNR_PT_RAW, NNR_DFL = CompressionFormat
NNR_QNT_UNREC, NNR_QNT_NNEF, NNR_QNT_ONNX, NNR_QNT_PYT, NNR_QNT_TEF = QuantizationStorageFormat
ICNN_NDU_ID, ICNN_NDU_PL_SHA256, ICNN_NDU_PL_SHA512, ICNN_NDU_EXT = ParentNodeIdType
# Bits as plain integers: `&` with a member of an IntFlag takes a microsecond.
NNR_CPT_DC, NNR_CPT_LS, NNR_CPT_BN, NNR_CPT_BI = map(int, CompressedParameterType)
NNR_AGG_GEN, NNR_AGG_SLF = NnrAggregateUnitType
NNR_QSU, NNR_QCB = map(int, QuantizationMethod)
NNR_TPL_BMSK, NNR_TPL_DICT = NnrRepType
NNR_PT_INT, NNR_PT_FLOAT, NNR_PT_RAW_FLOAT, NNR_PT_BLOCK = PayloadType

#: Next stateId of dependent quantization, by stateId and the parity of the level (10.2.1.4).
STATE_TRANS_TAB = ((0, 2), (7, 5), (1, 3), (6, 4), (2, 0), (5, 7), (3, 1), (4, 6))
