"""Requirements of decoding that the decoder refuses to do without: ISO/IEC 15938-17:2024, 6.4.3.7, 7 and 10."""

from __future__ import annotations

from .registry import requirement

requirement(
    "unique-parameters",
    "6.4.3.7",
    "device_id and parameter_id identify one tensor of a bitstream.",
    "device_id and parameter_id .* occur twice",
)
requirement("profile", "6.4.3.2", "general_profile_idc is 0 or 1.", "general_profile_idc .* is not defined")
requirement("payload-type", "7.3.1", "The payload type is one of Table 16.", "payload type .* is reserved")
requirement("scan-order", "6.4.3.7", "scan_order is 0 to 4.", "scan_order is")
requirement(
    "tensor-dimensions",
    "6.4.3.7",
    "Each dimension of a coded tensor is at least 1.",
    "tensor_dimensions .* hold nothing",
)
requirement(
    "dimensions-known",
    "6.4.3.7",
    "Dimensions that a unit leaves out are given by the topology.",
    "the dimensions of .* are not in the bitstream",
)
requirement(
    "first-dimension-shift",
    "6.4.3.7",
    "first_tensor_dimension_shift is less than the number of dimensions.",
    "first_tensor_dimension_shift .* is not less",
)
requirement(
    "data-format",
    "7.2",
    "nnr_decompressed_data_format is one of Table 15, 0 or 1 in profile 0.",
    "format .* is not one of profile",
)
requirement(
    "data-format-kind",
    "6.4.3.7",
    "The format is one of integers for NNR_PT_INT and one of floats for all others.",
    "is not a format of this payload type",
)
requirement(
    "reference-index",
    "6.4.3.7",
    "topology_elem_id_index is, counted from 0, an entry of the reference list.",
    "is not in the reference list",
)
requirement(
    "block-elements",
    "6.4.3.7",
    "A block lists the ids of its tensors, in order: one for each that compressed_parameter_types names.",
    "topology elements are listed for the",
)
requirement(
    "block-parameters",
    "6.4.3.7",
    "A block has local scaling, bias, batch norm parameters or a decomposed weight (errata N7).",
    "a block has no parameters",
)
requirement(
    "decomposition-payload",
    "7.3.5",
    "Decomposed tensors are of type NNR_PT_FLOAT or NNR_PT_BLOCK, and of one topology element.",
    "are decomposed",
    "a decomposed tensor has one topology element",
)
requirement(
    "decomposition-pair",
    "6.4.3.7",
    "A unit with G is followed by that with its H, which agrees about the tensor.",
    "H of .* is expected after G",
    "before H of",
    "H of .* comes without",
    "G and H of .* differ",
)
requirement(
    "decomposition-dimensions",
    "6.4.3.7",
    "The rows and the rank of G and H multiply to the dimensions of the tensor.",
    "cannot be G of",
)
requirement(
    "codebook-offset", "6.4.3.7", "CbZeroOffset is an entry of the codebook.", "CbZeroOffset .* is not an entry"
)
requirement(
    "codebook-values", "9.2.2", "The entries of a codebook are integers of 32 bits.", "a codebook entry exceeds 32 bits"
)
requirement("codebook-index", "7.3.6", "Each level is an index into the codebook.", "is outside the codebook")
requirement(
    "split-mapping",
    "7.3.1",
    "The dimension mapping splits the tensor into one piece for each topology element and shifts axes within them.",
    "concatentation_axis_index is",
    "split_index .* does not divide",
    "cannot be shifted left",
    "topology elements share a tensor",
)
requirement(
    "quantization-parameters",
    "6.4.4.3",
    "A parameter set in force gives the density and the quantization parameter of float tensors.",
    "no active parameter set has a qp_density",
)
requirement(
    "required-information",
    "7.1",
    "What decoding needs is in the bitstream or supplied beside it: here, the parent of an update.",
    "needs a parent that only a hash",
    "but none is known",
    "has temporal contexts of update",
    "and so have .* devices",
)
requirement(
    "topology-fit",
    "7.1",
    "A topology that is supplied beside the bitstream has all of its tensors, in their shapes.",
    "the topology given does not fit",
)
requirement(
    "update-shape",
    "10.3.4.2.2",
    "The updates of one parameter have one shape and type.",
    "the updates before .* have not its shape",
    "has another shape or type",
    "the updates of one parameter differ",
)
requirement(
    "integer-range",
    "7.3.2",
    "Integers fit the bits of their format.",
    "a level exceeds the",
    "a level exceeds 32 bits",
)
requirement(
    "float-range",
    "7.3.3",
    "Steps are normal numbers of the format, and values are finite (errata N6).",
    "is not a normal number",
    "times the step .* exceeds",
    "a value exceeds",
    "an update exceeds",
    "a recomposed value is not finite",
)
requirement("raw-size", "6.3.4.7", "Raw parameters take four bytes each.", "bytes of raw_float32_parameter are not")
DEFLATE = requirement("deflate", "6.4.3.5", "Deflated data follows RFC 1950 and ends with its unit.", "deflated data")
requirement(
    "payload-complete",
    "10.2.1.1",
    "The payload holds all bins of its tensors.",
    "the payload ends before its last parameter",
)
requirement(
    "terminating-bit",
    "10.2.1.2",
    "terminating_one_bit is 1, and so is the last bit read before it.",
    "terminating_one_bit is 0",
    "the last bit read into IvlOffset is 0",
)
requirement("nesting-zero-bit", "10.2.1.2", "The bits after the terminating one are 0.", "nesting_zero_bit is 1")
requirement(
    "interval-offset",
    "10.3.2.4",
    "IvlOffset is less than IvlCurrRange, and not 510 or 511 at first.",
    "IvlOffset has a value that no encoder produces",
)
requirement(
    "complete",
    "7.1",
    "All tensors are there that the topology, the reference list or side information names, unless it is an update.",
    "incomplete: ",
    severity="should",
)
requirement(
    "side-information",
    "",
    "Side information follows docs/side-information.md, and the units what it says; no rule of the standard.",
    "side information",
    "are not float32 words",
    severity="extension",
)
requirement(
    "limits",
    "",
    "Reading and decoding stay within the limits given; no rule of the standard.",
    severity="limit",
)
requirement("decodable", "7.1", "The decoder decodes it.")
