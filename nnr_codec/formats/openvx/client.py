"""Generator of a client in C99: tables of tensors and signals, functions to create and load them, a call per layer.

Names are untrusted: they occur only in string literals, with all special characters escaped. Identifiers are generated
and numbered.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from .network import Layer, Network
from .tensors import VxTensor

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./: ")

_HEADER = """\
/* A network for the OpenVX neural network extension 1.2.1: its tensors are in files in this folder. */
#ifndef NNR_CLIENT_H
#define NNR_CLIENT_H

#include <stdio.h>

#include <VX/vx.h>
#include <VX/vx_khr_nn.h>

/* Numbers of entries in the tables below, and the maximum number of dimensions. */
#define NNR_TENSORS %(tensors)d
#define NNR_SIGNALS %(signals)d
#define NNR_INPUTS %(inputs)d
#define NNR_OUTPUTS %(outputs)d
#define NNR_DIMS %(dims)d
/* 1: nnr_build adds the whole network. 0: add the operations between outputs and inputs to the graph yourself, before
   vxVerifyGraph. */
#define NNR_IS_COMPLETE %(complete)d

typedef struct {
    const char *name;      /* in the model: UTF-8 */
    const char *file;      /* in the folder; NULL for signals */
    vx_enum data_type;
    vx_int8 fixed_point_position;
    vx_bool is_virtual;    /* of signals: within the graph only */
    vx_bool is_padded;     /* of signals: zero outside its parts */
    vx_int32 whole;        /* of signals: the signal that contains it, or -1 */
    vx_size start[NNR_DIMS]; /* its start there */
    vx_size bytes;
    vx_size number_of_dims;
    vx_size dims[NNR_DIMS];
} nnr_tensor;

/* Each table ends with an entry without a name. */
extern const nnr_tensor nnr_tensors[NNR_TENSORS + 1];
extern const nnr_tensor nnr_signals[NNR_SIGNALS + 1];
/* Indices of the input and output signals. */
extern const vx_size nnr_inputs[NNR_INPUTS + 1];
extern const vx_size nnr_outputs[NNR_OUTPUTS + 1];

/* Create the tensors, and load them from a folder. */
vx_status nnr_load(vx_context context, const char *folder, vx_tensor tensors[NNR_TENSORS + 1]);
/* Create the signals, and the layers between them. */
vx_status nnr_build(vx_context context, vx_graph graph, const vx_tensor tensors[NNR_TENSORS + 1],
                    vx_tensor signals[NNR_SIGNALS + 1]);
/* Read the items of a tensor, little-endian; *at_end is true if the file ended before the first one. */
vx_status nnr_read(FILE *file, const nnr_tensor *what, vx_tensor tensor, vx_bool *at_end);
/* Write the items of a tensor. */
vx_status nnr_write(FILE *file, const nnr_tensor *what, vx_tensor tensor);
/* Release the tensors of an array that are not NULL. */
void nnr_release(vx_tensor *tensors, vx_size number);

#endif
"""

_START = """\
/* Usage, if the network is complete: client FOLDER INPUT OUTPUT. INPUT has the items of all inputs, for one or more
   runs; OUTPUT gets the items of all outputs. Items are little-endian integers; in Q7.8, 256 stands for 1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
"""

_FUNCTIONS = """\

static vx_status failed(vx_status status, const char *what, const char *name)
{
    if (status != VX_SUCCESS)
        fprintf(stderr, "%s %s: status %d\\n", what, name, (int)status);
    return status;
}

static vx_size width(const nnr_tensor *what)
{
    return what->data_type == VX_TYPE_INT16 ? 2 : 1;
}

/* Convert between little-endian and the byte order of this machine. */
static void exchange(unsigned char *items, const nnr_tensor *what)
{
    const vx_uint16 one = 1;
    unsigned char first;
    vx_size k;
    memcpy(&first, &one, 1);
    if (first == 1 || width(what) == 1)
        return;
    for (k = 0; k + 1 < what->bytes; k += 2) {
        const unsigned char low = items[k];
        items[k] = items[k + 1];
        items[k + 1] = low;
    }
}

static vx_status copy(const nnr_tensor *what, vx_tensor tensor, void *items, vx_enum usage)
{
    vx_size start[NNR_DIMS], stride[NNR_DIMS], k;
    for (k = 0; k < what->number_of_dims; k++) {
        start[k] = 0;
        stride[k] = k ? stride[k - 1] * what->dims[k - 1] : width(what);
    }
    return failed(vxCopyTensorPatch(tensor, what->number_of_dims, start, what->dims, stride, items, usage,
                                    VX_MEMORY_TYPE_HOST), "copying", what->name);
}

vx_status nnr_read(FILE *file, const nnr_tensor *what, vx_tensor tensor, vx_bool *at_end)
{
    unsigned char *items = malloc(what->bytes);
    vx_status status = VX_FAILURE;
    size_t found;
    if (items == NULL)
        return failed(VX_ERROR_NO_MEMORY, "reading", what->name);
    found = fread(items, 1, what->bytes, file);
    *at_end = found == 0 ? vx_true_e : vx_false_e;
    if (found == what->bytes) {
        exchange(items, what);
        status = copy(what, tensor, items, VX_WRITE_ONLY);
    } else if (found) {
        failed(status, "too few bytes for", what->name);
    }
    free(items);
    return status;
}

vx_status nnr_write(FILE *file, const nnr_tensor *what, vx_tensor tensor)
{
    unsigned char *items = malloc(what->bytes);
    vx_status status;
    if (items == NULL)
        return failed(VX_ERROR_NO_MEMORY, "writing", what->name);
    status = copy(what, tensor, items, VX_READ_ONLY);
    if (status == VX_SUCCESS) {
        exchange(items, what);
        if (fwrite(items, 1, what->bytes, file) != what->bytes)
            status = failed(VX_FAILURE, "writing", what->name);
    }
    free(items);
    return status;
}

void nnr_release(vx_tensor *tensors, vx_size number)
{
    vx_size k;
    for (k = 0; k < number; k++)
        if (tensors[k] != NULL)
            vxReleaseTensor(&tensors[k]);
}

vx_status nnr_load(vx_context context, const char *folder, vx_tensor tensors[NNR_TENSORS + 1])
{
    vx_status status = VX_SUCCESS;
    vx_size k;
    for (k = 0; k <= NNR_TENSORS; k++)
        tensors[k] = NULL;
    for (k = 0; nnr_tensors[k].name != NULL && status == VX_SUCCESS; k++) {
        const nnr_tensor *what = &nnr_tensors[k];
        vx_bool at_end;
        const size_t length = strlen(folder) + strlen(what->file) + 2;
        char *path = malloc(length);
        FILE *file;
        if (path == NULL)
            return failed(VX_ERROR_NO_MEMORY, "loading", what->name);
        snprintf(path, length, "%s/%s", folder, what->file);
        tensors[k] = vxCreateTensor(context, what->number_of_dims, what->dims, what->data_type,
                                    what->fixed_point_position);
        status = failed(vxGetStatus((vx_reference)tensors[k]), "creating", what->name);
        file = status == VX_SUCCESS ? fopen(path, "rb") : NULL;
        if (file != NULL) {
            status = nnr_read(file, what, tensors[k], &at_end);
            if (status != VX_SUCCESS || fgetc(file) != EOF)
                status = failed(VX_FAILURE, "wrong file size, or unreadable file:", path);
            fclose(file);
        } else if (status == VX_SUCCESS) {
            status = failed(VX_FAILURE, "opening", path);
        }
        free(path);
    }
    return status;
}

static vx_status signal_of(vx_context context, vx_graph graph, vx_tensor *signals, vx_size k)
{
    const nnr_tensor *what = &nnr_signals[k];
    vx_size end[NNR_DIMS], dim;
    vx_status status;
    for (dim = 0; dim < what->number_of_dims; dim++)
        end[dim] = what->start[dim] + what->dims[dim];
    if (what->whole >= 0)
        signals[k] = vxCreateTensorFromView(signals[what->whole], what->number_of_dims, what->start, end);
    else if (what->is_virtual)
        signals[k] = vxCreateVirtualTensor(graph, what->number_of_dims, what->dims, what->data_type,
                                           what->fixed_point_position);
    else
        signals[k] = vxCreateTensor(context, what->number_of_dims, what->dims, what->data_type,
                                    what->fixed_point_position);
    status = failed(vxGetStatus((vx_reference)signals[k]), "creating", what->name);
    if (status == VX_SUCCESS && what->is_padded) {
        void *zeros = calloc(what->bytes, 1);
        if (zeros == NULL)
            return failed(VX_ERROR_NO_MEMORY, "creating", what->name);
        status = copy(what, signals[k], zeros, VX_WRITE_ONLY);
        free(zeros);
    }
    return status;
}

static vx_status signals_of(vx_context context, vx_graph graph, vx_tensor signals[NNR_SIGNALS + 1])
{
    vx_status status = VX_SUCCESS;
    vx_size k;
    for (k = 0; k <= NNR_SIGNALS; k++)
        signals[k] = NULL;
    for (k = NNR_SIGNALS; k-- > 0 && status == VX_SUCCESS;)  /* parts precede signals that are made of parts */
        if (nnr_signals[k].whole < 0 || (vx_size)nnr_signals[k].whole > k)
            status = signal_of(context, graph, signals, k);
    for (k = 0; nnr_signals[k].name != NULL && status == VX_SUCCESS; k++)  /* other views follow the signal */
        if (signals[k] == NULL)
            status = signal_of(context, graph, signals, k);
    return status;
}
"""

_ADDED = """\

/* The graph keeps the node. */
static vx_status added(vx_node node, const char *what, vx_size signal)
{
    const vx_status status = vxGetStatus((vx_reference)node);
    if (status == VX_SUCCESS)
        vxReleaseNode(&node);
    return failed(status, what, nnr_signals[signal].name);
}
"""

#: Functions that add a layer of each kind to the graph.
_LAYERS = {
    "convolution": """\

static vx_status convolution(vx_graph graph, vx_tensor *signals, vx_size input, vx_tensor weights, vx_tensor biases,
                             vx_size padding_x, vx_size padding_y, vx_enum rounding, vx_size dilation_x,
                             vx_size dilation_y, vx_size output)
{
    vx_nn_convolution_params_t params;
    memset(&params, 0, sizeof params);
    params.padding_x = padding_x;
    params.padding_y = padding_y;
    params.overflow_policy = VX_CONVERT_POLICY_SATURATE;
    params.rounding_policy = VX_ROUND_POLICY_TO_NEAREST_EVEN;
    params.down_scale_size_rounding = rounding;
    params.dilation_x = dilation_x;
    params.dilation_y = dilation_y;
    return added(vxConvolutionLayer(graph, signals[input], weights, biases, &params, sizeof params, signals[output]),
                 "vxConvolutionLayer", output);
}
""",
    "deconvolution": """\

static vx_status deconvolution(vx_graph graph, vx_tensor *signals, vx_size input, vx_tensor weights, vx_tensor biases,
                               vx_size padding_x, vx_size padding_y, vx_size a_x, vx_size a_y, vx_size output)
{
    vx_nn_deconvolution_params_t params;
    memset(&params, 0, sizeof params);
    params.padding_x = padding_x;
    params.padding_y = padding_y;
    params.overflow_policy = VX_CONVERT_POLICY_SATURATE;
    params.rounding_policy = VX_ROUND_POLICY_TO_NEAREST_EVEN;
    params.a_x = a_x;
    params.a_y = a_y;
    return added(vxDeconvolutionLayer(graph, signals[input], weights, biases, &params, sizeof params, signals[output]),
                 "vxDeconvolutionLayer", output);
}
""",
    "fully_connected": """\

static vx_status fully_connected(vx_graph graph, vx_tensor *signals, vx_size input, vx_tensor weights,
                                 vx_tensor biases, vx_size output)
{
    return added(vxFullyConnectedLayer(graph, signals[input], weights, biases, VX_CONVERT_POLICY_SATURATE,
                                       VX_ROUND_POLICY_TO_NEAREST_EVEN, signals[output]),
                 "vxFullyConnectedLayer", output);
}
""",
    "pooling": """\

static vx_status pooling(vx_graph graph, vx_tensor *signals, vx_size input, vx_enum type, vx_size size_x,
                         vx_size size_y, vx_size padding_x, vx_size padding_y, vx_enum rounding, vx_size output)
{
    return added(vxPoolingLayer(graph, signals[input], type, size_x, size_y, padding_x, padding_y, rounding,
                                signals[output]), "vxPoolingLayer", output);
}
""",
    "roi_pooling": """\

/* The regions are items of 16 bits: first column, first row, last column and last row. */
static vx_status roi_pooling(vx_graph graph, vx_tensor *signals, vx_size input, vx_tensor regions, vx_size output)
{
    vx_nn_roi_pool_params_t params;
    memset(&params, 0, sizeof params);
    params.pool_type = VX_NN_POOLING_MAX;
    return added(vxROIPoolingLayer(graph, signals[input], regions, &params, sizeof params, signals[output]),
                 "vxROIPoolingLayer", output);
}
""",
    "addition": """\

static vx_status addition(vx_graph graph, vx_tensor *signals, vx_size input, vx_tensor other, vx_size output)
{
    return added(vxTensorAddNode(graph, signals[input], other, VX_CONVERT_POLICY_SATURATE, signals[output]),
                 "vxTensorAddNode", output);
}
""",
    "subtraction": """\

static vx_status subtraction(vx_graph graph, vx_tensor *signals, vx_size input, vx_tensor other, vx_size output)
{
    return added(vxTensorSubtractNode(graph, signals[input], other, VX_CONVERT_POLICY_SATURATE, signals[output]),
                 "vxTensorSubtractNode", output);
}
""",
    "multiplication": """\

static vx_status multiplication(vx_graph graph, vx_tensor *signals, vx_size input, vx_tensor other, vx_float32 factor,
                                vx_size output)
{
    vx_scalar scale = vxCreateScalar(vxGetContext((vx_reference)graph), VX_TYPE_FLOAT32, &factor);
    vx_status status = failed(vxGetStatus((vx_reference)scale), "creating a factor for", nnr_signals[output].name);
    if (status == VX_SUCCESS) {
        status = added(vxTensorMultiplyNode(graph, signals[input], other, scale, VX_CONVERT_POLICY_SATURATE,
                                            VX_ROUND_POLICY_TO_NEAREST_EVEN, signals[output]),
                       "vxTensorMultiplyNode", output);
        vxReleaseScalar(&scale);
    }
    return status;
}
""",
    "activation": """\

static vx_status activation(vx_graph graph, vx_tensor *signals, vx_size input, vx_enum function, vx_float32 a,
                            vx_float32 b, vx_size output)
{
    return added(vxActivationLayer(graph, signals[input], function, a, b, signals[output]), "vxActivationLayer",
                 output);
}
""",
    "softmax": """\

static vx_status softmax(vx_graph graph, vx_tensor *signals, vx_size input, vx_size output)
{
    return added(vxSoftmaxLayer(graph, signals[input], signals[output]), "vxSoftmaxLayer", output);
}
""",
    "normalization": """\

static vx_status normalization(vx_graph graph, vx_tensor *signals, vx_size input, vx_enum type, vx_size size,
                               vx_float32 alpha, vx_float32 beta, vx_size output)
{
#ifdef VX_VERSION_1_3 /* which renamed the function */
    return added(vxLocalResponseNormalizationLayer(graph, signals[input], type, size, alpha, beta, 1.0f,
                                                   signals[output]), "vxLocalResponseNormalizationLayer", output);
#else
    return added(vxNormalizationLayer(graph, signals[input], type, size, alpha, beta, signals[output]),
                 "vxNormalizationLayer", output);
#endif
}
""",
}

#: Layers with a bias, which may be NULL.
_BIASED = ("convolution", "deconvolution", "fully_connected")

_BUILD = """\

vx_status nnr_build(vx_context context, vx_graph graph, const vx_tensor tensors[NNR_TENSORS + 1],
                    vx_tensor signals[NNR_SIGNALS + 1])
{
    vx_status status = signals_of(context, graph, signals);
    (void)tensors;
"""

_MAIN = """\

static vx_status run(vx_context context, const char *folder, FILE *input, FILE *output)
{
    vx_tensor tensors[NNR_TENSORS + 1], signals[NNR_SIGNALS + 1] = {NULL};
    vx_graph graph = vxCreateGraph(context);
    vx_status status = nnr_load(context, folder, tensors);
    vx_bool at_end = vx_false_e;
    vx_size k;
    if (status == VX_SUCCESS)
        status = nnr_build(context, graph, tensors, signals);
    if (status == VX_SUCCESS)
        status = failed(vxVerifyGraph(graph), "verifying", "the graph");
    while (status == VX_SUCCESS) {
        for (k = 0; k < NNR_INPUTS && status == VX_SUCCESS; k++)
            status = nnr_read(input, &nnr_signals[nnr_inputs[k]], signals[nnr_inputs[k]], &at_end);
        if (status != VX_SUCCESS) {
            if (at_end && k == 1)
                status = VX_SUCCESS;
            break;
        }
        status = failed(vxProcessGraph(graph), "processing", "the graph");
        for (k = 0; k < NNR_OUTPUTS && status == VX_SUCCESS; k++)
            status = nnr_write(output, &nnr_signals[nnr_outputs[k]], signals[nnr_outputs[k]]);
    }
    nnr_release(signals, NNR_SIGNALS);
    nnr_release(tensors, NNR_TENSORS);
    vxReleaseGraph(&graph);
    return status;
}

int main(int argc, char **argv)
{
    vx_status status = VX_FAILURE;
    FILE *input = argc == 4 ? fopen(argv[2], "rb") : NULL, *output = input ? fopen(argv[3], "wb") : NULL;
    if (argc != 4) {
        fprintf(stderr, "usage: %s FOLDER INPUT OUTPUT\\n", argv[0]);
    } else if (output == NULL) {
        fprintf(stderr, "cannot open %s\\n", argv[input ? 3 : 2]);
    } else {
        vx_context context = vxCreateContext();
        status = failed(vxGetStatus((vx_reference)context), "creating", "a context");
        if (status == VX_SUCCESS) {
            status = run(context, argv[1], input, output);
            vxReleaseContext(&context);
        }
        if (fclose(output) != 0)
            status = VX_FAILURE;
    }
    if (input != NULL)
        fclose(input);
    return status == VX_SUCCESS ? EXIT_SUCCESS : EXIT_FAILURE;
}
"""


def header_source(tensors: Sequence[VxTensor], network: Network) -> str:
    """Return the text of ``client.h``."""
    return _HEADER % {
        "tensors": len(tensors),
        "signals": len(network.signals),
        "inputs": len(network.inputs),
        "outputs": len(network.outputs),
        "dims": max((len(each.dims) for each in (*tensors, *network.signals)), default=1),
        "complete": network.is_complete,
    }


def client_source(tensors: Sequence[VxTensor], network: Network) -> str:
    """Return the text of ``client.c``, without a main function if the network is incomplete."""
    real = {*network.inputs, *network.outputs, *network.views, *[whole for whole, _ in network.views.values()]}
    signals = [
        _entry(tensor, k not in real, k in network.padded, *network.views.get(k, (-1, ())))
        for k, tensor in enumerate(network.signals)
    ]
    parts = [
        _START,
        _table("nnr_tensor nnr_tensors[NNR_TENSORS + 1]", [_entry(tensor) for tensor in tensors], "{NULL}"),
        _table("nnr_tensor nnr_signals[NNR_SIGNALS + 1]", signals, "{NULL}"),
        _table("vx_size nnr_inputs[NNR_INPUTS + 1]", map(str, network.inputs), "0"),
        _table("vx_size nnr_outputs[NNR_OUTPUTS + 1]", map(str, network.outputs), "0"),
        _FUNCTIONS,
    ]
    kinds = {layer.kind for layer in network.layers}
    parts += [_ADDED] if kinds else []
    parts += [text for kind, text in _LAYERS.items() if kind in kinds]
    places = {tensor.name: k for k, tensor in enumerate(tensors)}
    calls = [f"    if (status == VX_SUCCESS)\n        status = {_call(layer, places)};\n" for layer in network.layers]
    parts += [_BUILD, *calls, "    return status;\n}\n"]
    parts += [_MAIN] if network.is_complete else []
    return "".join(parts)


def _table(declared: str, entries: Iterable[str], last: str) -> str:
    lines = "".join(f"    {entry},\n" for entry in (*entries, last))
    return f"\nconst {declared} = {{\n{lines}}};\n"


def _entry(
    tensor: VxTensor,
    is_virtual: bool = False,
    is_padded: bool = False,
    whole: int = -1,
    start: tuple[int, ...] = (),
) -> str:
    file = string(tensor.file) if tensor.file else "NULL"
    flags = ", ".join("vx_true_e" if flag else "vx_false_e" for flag in (is_virtual, is_padded))
    first, dims = (", ".join(map(str, items)) for items in (start or (0,), tensor.dims))
    sizes = f"{whole}, {{{first}}}, {tensor.nbytes}, {len(tensor.dims)}, {{{dims}}}"
    return f"{{{string(tensor.name)}, {file}, {tensor.type.name}, {tensor.type.position}, {flags}, {sizes}}}"


def _call(layer: Layer, places: dict[str, int]) -> str:
    """Return the call that adds a layer."""
    arguments = ["graph", "signals", str(layer.input)]
    if layer.weight is not None:
        arguments.append(f"tensors[{places[layer.weight]}]")
    if layer.other is not None:
        arguments.append(f"signals[{layer.other}]")
    if layer.kind in _BIASED:
        arguments.append("NULL" if layer.bias is None else f"tensors[{places[layer.bias]}]")
    arguments += [literal(argument) for argument in layer.arguments]
    return f"{layer.kind}({', '.join([*arguments, str(layer.output)])})"


def literal(value: int | float | str) -> str:
    """Return a C literal: a number, with floats as float32, or a macro."""
    if isinstance(value, float):
        (single,) = struct.unpack("<f", struct.pack("<f", value))
        return f"{single!r}f"
    return str(value)


def string(text: str) -> str:
    """Return a string literal in UTF-8, with special characters in octal."""
    data = text.encode("utf-8", "surrogatepass")
    return '"' + "".join(chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in data) + '"'
