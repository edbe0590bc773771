"""Rules for OpenVINO IRs: the XML, its graph, and the operations of opset1."""

from __future__ import annotations

from ..findings import ModelRule

_IR, _OPSET = "IR", "opset1"
_RULES = (
    # The XML and the graph
    ModelRule(
        "ir-text", _IR, "violation", "The XML is well-formed; constants fit their shapes and do not partly overlap."
    ),
    ModelRule("ir-data", _IR, "violation", "The .bin is beside the XML and contains every constant."),
    ModelRule("ir-layer-id", _IR, "violation", "Layers of a network have unique ids."),
    ModelRule("ir-port", _IR, "violation", "Ports have unique ids, and valid element types and extents."),
    ModelRule("ir-edge-port", _IR, "violation", "An edge starts at an output and ends at an input of a layer."),
    ModelRule("ir-input-edge", _IR, "violation", "Every input has exactly one edge."),
    ModelRule("ir-edge-type", _IR, "violation", "Both ports of an edge have the same element type."),
    ModelRule("ir-edge-shape", _IR, "violation", "Both ports of an edge have the same shape."),
    ModelRule("ir-body", "opset1 TensorIterator", "violation", "Ports are linked to parameters and results of a body."),
    ModelRule("ir-cycle", _IR, "violation", "Edges form no cycle."),
    ModelRule(
        "ir-limit", _IR, "note", "A network with more layers, ports, extents and edges than the limit is not checked."
    ),
    # Operations
    ModelRule("ir-operation", _OPSET, "note", "The operation of a layer of opset1 is in the specification."),
    ModelRule("ir-input-count", _OPSET, "violation", "A layer has as many inputs as its operation permits."),
    ModelRule("ir-output-count", _OPSET, "violation", "A layer has as many outputs as its operation permits."),
    ModelRule("ir-attribute-missing", _OPSET, "violation", "A layer has the required attributes of its operation."),
    ModelRule("ir-attribute-value", _OPSET, "violation", "Attributes have permitted values."),
    ModelRule("ir-attribute-count", _OPSET, "violation", "A window has a stride and a padding for each dimension."),
    ModelRule("ir-input-type", _OPSET, "violation", "Inputs have permitted element types."),
    ModelRule("ir-output-type", _OPSET, "violation", "Outputs have the element types of the operation."),
    ModelRule("ir-input-rank", _OPSET, "violation", "Inputs have a permitted rank."),
    ModelRule("ir-input-shape", _OPSET, "violation", "Inputs have the extents that the operation requires."),
    ModelRule("ir-axis", _OPSET, "violation", "Axes are dimensions of the input."),
    ModelRule("ir-broadcast", _OPSET, "violation", "Inputs can be broadcast to a common shape."),
    ModelRule("ir-channels", _OPSET, "violation", "Weights and input have the same number of channels."),
    ModelRule("ir-window", _OPSET, "violation", "A window fits in the padded input."),
    ModelRule("ir-matmul-inner", _OPSET, "violation", "The inner dimensions of a product of matrices are equal."),
    ModelRule("ir-concat-shapes", _OPSET, "violation", "Joined inputs differ at most in the extent of the axis."),
    ModelRule("ir-split", _OPSET, "violation", "The parts fill the axis that is split."),
    ModelRule("ir-volume", _OPSET, "violation", "Reshape, Squeeze and Unsqueeze keep the volume."),
    ModelRule(
        "ir-output-shape", _OPSET, "violation", "Outputs have the shapes that follow from inputs and attributes."
    ),
)
#: Rules by id.
RULES = {rule.id: rule for rule in _RULES}
