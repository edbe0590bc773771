"""Rules for NNEF models (NNEF 1.0.3, chapter 6)."""

from __future__ import annotations

from ..findings import ModelRule

_RULES = (
    # The document
    ModelRule("text", "3.1", "violation", "A text is UTF-8 without NUL; outside comments it is ASCII."),
    ModelRule("syntax", "3.2", "violation", "A document follows the grammar; keywords are not identifiers."),
    ModelRule("version", "3.2.4", "violation", "The version of a document is 1.x."),
    ModelRule("version-known", "3.2.4", "warning", "The version is 1.0, also for NNEF 1.0.1 to 1.0.5."),
    ModelRule("extension-name", "3.2.4", "warning", "An extension is a list of identifiers; Khronos defines two."),
    ModelRule("fragment-extension", "3.2.2", "violation", "Fragments require KHR_enable_fragment_definitions."),
    ModelRule("operator-extension", "3.2.3", "violation", "Expressions require KHR_enable_operator_expressions."),
    # Declarations
    ModelRule(
        "fragment-unique", "3.3.2", "violation", "Fragments have unique names that differ from the names of operations."
    ),
    ModelRule("parameter-unique", "3.3.2", "violation", "Parameters and results of a declaration have unique names."),
    ModelRule("tensors-first", "3.3.2", "violation", "Parameters of tensor type precede attributes."),
    ModelRule("result-type", "3.3.2", "violation", "Results of a fragment are tensors with a data type."),
    ModelRule("mixed-tuple", "3.3.1", "violation", "The items of a tuple are all tensors, or none is."),
    ModelRule("default-type", "3.3.2", "violation", "A default value has the type of its parameter."),
    ModelRule(
        "generic-declaration", "3.3.2", "violation", "A fragment is generic if and only if it has a generic type."
    ),
    ModelRule("recursion", "3.3.3", "violation", "A fragment invokes itself only under a condition."),
    # Identifiers
    ModelRule(
        "single-assignment", "3.3.2", "violation", "An identifier is assigned once, and parameters are never assigned."
    ),
    ModelRule("use-before-assignment", "3.3.2", "violation", "An identifier is assigned before it is used."),
    ModelRule("result-assigned", "3.3.2", "violation", "Every result is assigned."),
    ModelRule(
        "graph-parameter", "3.3.2", "violation", "The parameters of the graph are the results of external operations."
    ),
    ModelRule("graph-only", "3.3.2", "violation", "external, variable and update occur only in the body of the graph."),
    ModelRule("identifier-tensor", "3.3.2", "violation", "Identifiers in the body of the graph are single tensors."),
    ModelRule(
        "target-structure", "3.3.2", "violation", "The left side of an assignment has the structure of its right side."
    ),
    ModelRule(
        "update-variable", "4.8", "violation", "An update has a variable as target, and each variable is updated once."
    ),
    # Invocations
    ModelRule(
        "operation-known", "3.3.2", "violation", "An operation is a standard operation or a fragment of the document."
    ),
    ModelRule("vendor-operation", "3.3.2", "note", "An unknown operation may belong to a vendor's extension."),
    ModelRule("later-operation", "4", "note", "An operation is in NNEF 1.0.3, to which ISO/IEC 15938-17 refers."),
    ModelRule("argument-order", "3.3.2", "violation", "Positional arguments precede named ones."),
    ModelRule("argument-count", "3.3.2", "violation", "An invocation has at most as many arguments as parameters."),
    ModelRule("argument-name", "3.3.2", "violation", "A named argument has the name of a parameter."),
    ModelRule("argument-twice", "3.3.2", "violation", "A parameter has one argument."),
    ModelRule("argument-missing", "3.3.2", "violation", "A parameter without default value has an argument."),
    ModelRule("attribute-named", "3.3.2", "violation", "Attributes are named arguments."),
    ModelRule("tensor-positional", "3.3.2", "warning", "Tensors should be positional arguments."),
    ModelRule(
        "generic-argument", "3.3.2", "violation", "A generic type is given, unambiguously deduced, or has a default."
    ),
    ModelRule("argument-type", "3.3.1", "violation", "An argument can be cast to the type of its parameter."),
    ModelRule("expression-type", "3.3.3", "violation", "Operands of an expression have permitted types."),
    ModelRule("argument-value", "4", "violation", "Arguments have permitted values."),
    ModelRule(
        "expression-value",
        "3.3.3",
        "violation",
        "Subscripts are within arrays, and arrays of a loop have equal lengths.",
    ),
    ModelRule("deprecated", "3.3.3", "warning", "shape_of and linear_quantize should not be used."),
    # Shapes of operands
    ModelRule("operand-rank", "4.3.1", "violation", "Operands have the rank that the operation requires."),
    ModelRule("broadcast", "4.2.2", "violation", "In each dimension, extents of operands are equal or 1."),
    ModelRule("item-count", "4.3", "violation", "An array of extents has an item for each dimension it applies to."),
    ModelRule("conv-channels", "4.3.1", "violation", "The channels of a filter match the channels of the input."),
    ModelRule("conv-groups", "4.3.1", "violation", "The number of groups divides the batch dimension of the filter."),
    ModelRule("conv-bias", "4.3.1", "violation", "A bias has an extent other than 1 only for the channels."),
    ModelRule("window-extent", "4.3", "violation", "A padded input holds a window, and no result is empty."),
    ModelRule(
        "output-shape",
        "4.3",
        "violation",
        "The forward operation applied to the output_shape of a reverse operation gives the shape of its input.",
    ),
    ModelRule("index-shape", "4.3.3", "violation", "The index has the shape of the down-scaled tensor."),
    ModelRule("sampling-factor", "4.3.4", "violation", "Factors of down-sampling divide the extents of the input."),
    ModelRule("axis-range", "4.4", "violation", "Axes are dimensions of the tensor."),
    ModelRule("reshape-volume", "4.5.1", "violation", "A reshape, or squeeze, keeps the volume."),
    ModelRule("transpose-axes", "4.5.2", "violation", "A transposition permutes the first dimensions."),
    ModelRule("split-ratios", "4.5.3", "violation", "The sum of the ratios divides the extent that is split."),
    ModelRule("concat-shapes", "4.5.3", "violation", "Joined tensors differ at most in the extent of the axis."),
    ModelRule("slice-range", "4.5.4", "violation", "A slice is within the tensor and not empty."),
    ModelRule("roi-shape", "4.6.1", "violation", "Regions have two corners and one batch index each."),
    ModelRule("matmul-inner", "4.7", "violation", "The inner dimensions of a product of matrices are equal."),
    ModelRule("updated-shape", "4.8", "violation", "An update has the shape of its variable."),
    ModelRule("shape-limit", "6", "note", "Shapes are checked if expanding fragments and loops stays within limits."),
    # Variables and their data
    ModelRule("variable-constant", "4.1.3", "violation", "Shape and label of a variable are constant."),
    ModelRule("variable-shape", "4.1.3", "violation", "A variable has at most eight extents, all positive."),
    ModelRule("label", "4.1.3", "violation", "A label is not empty and contains only letters, digits and _ - . / \\."),
    ModelRule("label-path", "5.1", "violation", "Labels are valid file names and map to different files."),
    ModelRule(
        "shared-label",
        "4.1.3",
        "violation",
        "Variables with the same label, ignoring case, have the same shape and data type.",
    ),
    ModelRule("data-missing", "5.1", "violation", "Every variable has a tensor file."),
    ModelRule("data-file", "5.2", "violation", "A tensor file is well-formed."),
    ModelRule("data-shape", "5.2", "violation", "A tensor file has the shape of its variable."),
    ModelRule("data-type", "5.2.1", "violation", "The items of a tensor file have the data type of its variable."),
    ModelRule("data-shared", "4.1.3", "violation", "Tensor files for the same label, ignoring case, are equal."),
    ModelRule("vendor-data", "5.2", "note", "Items of a vendor's item type are not checked."),
    ModelRule("vendor-file", "5.1", "note", "Other files belong to vendors, or are other versions of data."),
    # Quantization
    ModelRule("quant-syntax", "5.3", "violation", "graph.quant is well-formed."),
    ModelRule("quant-unique", "5.3", "violation", "A tensor is listed once."),
    ModelRule("quant-identifier", "5.3", "violation", "Each entry is an identifier of the graph."),
    ModelRule(
        "quant-argument",
        "5.3",
        "violation",
        "A quantization has only named arguments, which are parameters of its operation.",
    ),
    ModelRule("quant-missing", "5.2", "warning", "A tensor file of quantized items is listed."),
)
#: Rules by id.
RULES = {rule.id: rule for rule in _RULES}
