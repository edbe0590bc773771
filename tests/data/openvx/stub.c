/* OpenVX for tests: the layers of the neural network extension and the elementwise nodes of OpenVX 1.2, in Q7.8,
   computed from their definitions, one after another. Each call is checked, and written to the file that VX_LOG names. Nothing is fast or frees its memory early. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <VX/vx_khr_nn.h>

#define MOST 8
#define NODES 4096

struct tests_reference { vx_status status; };
struct tests_context { struct tests_reference reference; };
struct tests_scalar { struct tests_reference reference; vx_float32 value; };

struct tests_tensor {
    struct tests_reference reference;
    vx_size rank, dims[MOST], strides[MOST]; /* in items */
    vx_enum type;
    int position, is_virtual, is_loaded;
    int16_t *items;
    struct tests_tensor *whole;
};

struct tests_node {
    struct tests_reference reference;
    void (*run)(const struct tests_node *);
    vx_tensor in, weights, biases, other, out;
    vx_enum function, type;
    vx_size size_x, size_y, padding_x, padding_y, dilation_x, dilation_y, skip_x, skip_y;
    double a, b;
};

struct tests_graph {
    struct tests_reference reference;
    vx_size number;
    int verified;
    vx_node nodes[NODES];
};

/* ------------------------------------------------------------------------------------------------ telling */
static void told(const char *format, ...)
{
    const char *path = getenv("VX_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    va_list arguments;
    if (!file)
        return;
    va_start(arguments, format);
    vfprintf(file, format, arguments);
    va_end(arguments);
    fputc('\n', file);
    fclose(file);
}

static const char *dims_of(vx_tensor tensor)
{
    static char texts[8][160];
    static int next;
    char *text = texts[next++ % 8];
    vx_size k, at = 0;
    text[0] = 0;
    if (!tensor)
        return "none";
    for (k = 0; k < tensor->rank; k++)
        at += (vx_size)snprintf(text + at, sizeof texts[0] - at, k ? "x%lu" : "%lu", (unsigned long)tensor->dims[k]);
    return text;
}

static void *made(vx_size size, vx_status status)
{
    struct tests_reference *reference = calloc(1, size);
    if (!reference)
        abort();
    reference->status = status;
    return reference;
}

/* ------------------------------------------------------------------------------------------------ objects */
vx_context vxCreateContext(void) { return made(sizeof(struct tests_context), VX_SUCCESS); }
vx_status vxReleaseContext(vx_context *context) { free(*context); *context = NULL; return VX_SUCCESS; }
vx_context vxGetContext(vx_reference reference) { return (vx_context)reference; } /* which nothing here reads */
vx_graph vxCreateGraph(vx_context context) { (void)context; return made(sizeof(struct tests_graph), VX_SUCCESS); }
vx_status vxGetStatus(vx_reference reference) { return reference ? reference->status : VX_ERROR_NO_MEMORY; }
vx_status vxReleaseNode(vx_node *node) { *node = NULL; return VX_SUCCESS; }

vx_scalar vxCreateScalar(vx_context context, vx_enum data_type, const void *ptr)
{
    vx_scalar scalar = made(sizeof *scalar, data_type == VX_TYPE_FLOAT32 ? VX_SUCCESS : VX_ERROR_INVALID_PARAMETERS);
    (void)context;
    memcpy(&scalar->value, ptr, sizeof scalar->value);
    return scalar;
}

vx_status vxReleaseScalar(vx_scalar *scalar) { free(*scalar); *scalar = NULL; return VX_SUCCESS; }

vx_status vxReleaseGraph(vx_graph *graph)
{
    vx_size k;
    for (k = 0; k < (*graph)->number; k++)
        free((*graph)->nodes[k]);
    free(*graph);
    *graph = NULL;
    return VX_SUCCESS;
}

static vx_tensor tensor_of(vx_size rank, const vx_size *dims, vx_enum type, int position, int is_virtual)
{
    const int known = (type == VX_TYPE_INT16 && position == 8) ||
                      ((type == VX_TYPE_INT8 || type == VX_TYPE_UINT8) && position == 0);
    vx_tensor tensor = made(sizeof *tensor, known && rank && rank <= MOST ? VX_SUCCESS : VX_ERROR_INVALID_PARAMETERS);
    vx_size k, items = 1;
    if (tensor->reference.status != VX_SUCCESS)
        return tensor;
    tensor->rank = rank;
    for (k = 0; k < rank; k++) {
        tensor->dims[k] = dims[k];
        tensor->strides[k] = items;
        items *= dims[k];
    }
    tensor->type = type;
    tensor->position = position;
    tensor->is_virtual = is_virtual;
    tensor->items = malloc(items * sizeof(int16_t)); /* integers of 8 bits are held in 16 */
    memset(tensor->items, 0x55, items * sizeof(int16_t)); /* a tensor has any items before it is written */
    told("%s %s type %d position %d", is_virtual ? "virtual" : "tensor", dims_of(tensor), type, position);
    return tensor;
}

vx_tensor vxCreateTensor(vx_context context, vx_size number_of_dims, const vx_size *dims, vx_enum data_type,
                         vx_int8 fixed_point_position)
{
    (void)context;
    return tensor_of(number_of_dims, dims, data_type, fixed_point_position, 0);
}

vx_tensor vxCreateVirtualTensor(vx_graph graph, vx_size number_of_dims, const vx_size *dims, vx_enum data_type,
                                vx_int8 fixed_point_position)
{
    (void)graph;
    return tensor_of(number_of_dims, dims, data_type, fixed_point_position, 1);
}

vx_tensor vxCreateTensorFromView(vx_tensor tensor, vx_size number_of_dims, const vx_size *view_start,
                                 const vx_size *view_end)
{
    vx_tensor view = made(sizeof *view, VX_SUCCESS);
    vx_size k;
    *view = *tensor;
    view->whole = tensor;
    for (k = 0; k < number_of_dims; k++) {
        if (number_of_dims > tensor->rank || view_start[k] >= view_end[k] || view_end[k] > tensor->dims[k])
            view->reference.status = VX_ERROR_INVALID_PARAMETERS;
        view->dims[k] = view_end[k] - view_start[k];
        view->items += view_start[k] * tensor->strides[k];
    }
    view->rank = number_of_dims;
    told("view %s of %s", dims_of(view), dims_of(tensor));
    return view;
}

vx_status vxReleaseTensor(vx_tensor *tensor)
{
    if (!(*tensor)->whole)
        free((*tensor)->items);
    free(*tensor);
    *tensor = NULL;
    return VX_SUCCESS;
}

vx_status vxCopyTensorPatch(vx_tensor tensor, vx_size number_of_dims, const vx_size *view_start,
                            const vx_size *view_end, const vx_size *user_stride, void *user_ptr, vx_enum usage,
                            vx_enum user_memory_type)
{
    const vx_size width = tensor->type == VX_TYPE_INT16 ? 2 : 1;
    vx_size at[MOST] = {0}, stride = width, k;
    if (tensor->is_virtual || number_of_dims != tensor->rank || user_memory_type != VX_MEMORY_TYPE_HOST)
        return VX_ERROR_INVALID_PARAMETERS;
    for (k = 0; k < number_of_dims; k++) {
        if (view_start[k] != 0 || view_end[k] != tensor->dims[k] || user_stride[k] != stride)
            return VX_ERROR_INVALID_PARAMETERS;
        stride *= tensor->dims[k];
    }
    for (;;) {
        vx_size item = 0, byte = 0;
        int16_t *here;
        char *there;
        for (k = 0; k < tensor->rank; k++) {
            item += at[k] * tensor->strides[k];
            byte += at[k] * user_stride[k];
        }
        here = tensor->items + item;
        there = (char *)user_ptr + byte;
        if (width == 2 && usage == VX_WRITE_ONLY)
            memcpy(here, there, 2);
        else if (width == 2)
            memcpy(there, here, 2);
        else if (usage == VX_WRITE_ONLY)
            *here = tensor->type == VX_TYPE_INT8 ? *(int8_t *)there : *(uint8_t *)there;
        else
            *there = (char)*here;
        for (k = 0; k < tensor->rank && ++at[k] == tensor->dims[k]; k++)
            at[k] = 0;
        if (k == tensor->rank)
            break;
    }
    if (usage == VX_WRITE_ONLY)
        tensor->is_loaded = 1;
    return VX_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------ numbers */
static vx_size extent(vx_tensor tensor, vx_size dim) { return dim < tensor->rank ? tensor->dims[dim] : 1; }

/* The item at x, y, channel, batch. */
static int16_t *item(vx_tensor tensor, vx_size x, vx_size y, vx_size z, vx_size n)
{
    const vx_size at[4] = {x, y, z, n};
    vx_size k, place = 0;
    for (k = 0; k < tensor->rank; k++)
        place += at[k] * tensor->strides[k];
    return tensor->items + place;
}

static int16_t saturated(double value) { return (int16_t)(value < -32768 ? -32768 : value > 32767 ? 32767 : value); }

/* A sum of products, of 16 bits of fraction, which double holds exactly; rint rounds ties to even. */
static int16_t rounded(double sum) { return saturated(rint(sum / 256)); }

/* ------------------------------------------------------------------------------------------------ layers */
static vx_node node_of(vx_graph graph, void (*run)(const struct tests_node *), vx_tensor in, vx_tensor out, int fits)
{
    vx_node node = made(sizeof *node, VX_SUCCESS);
    fits = fits && in->type == VX_TYPE_INT16 && out->type == VX_TYPE_INT16 && graph->number < NODES;
    if (!fits) {
        node->reference.status = VX_ERROR_INVALID_PARAMETERS;
        return node;
    }
    node->run = run;
    node->in = in;
    node->out = out;
    graph->nodes[graph->number++] = node;
    return node;
}

/* The least skip by which an extent is the result; 0 where there is none (vxConvolutionLayer). */
static vx_size skip_of(vx_size in, vx_size padding, vx_size kernel, vx_size out, vx_enum rounding)
{
    const vx_size span = in + 2 * padding - kernel;
    vx_size skip;
    for (skip = 1; skip <= span + 1 && in + 2 * padding >= kernel; skip++) {
        const vx_size more = rounding == VX_NN_DS_SIZE_ROUNDING_CEILING ? skip - 1 : 0;
        if ((span + more) / skip + 1 == out)
            return skip;
    }
    return 0;
}

static void convolve(const struct tests_node *node)
{
    vx_size n, z, y, x, c, j, k;
    for (n = 0; n < extent(node->out, 3); n++)
    for (z = 0; z < extent(node->out, 2); z++)
    for (y = 0; y < extent(node->out, 1); y++)
    for (x = 0; x < extent(node->out, 0); x++) {
        const vx_size width = node->weights->dims[0], height = node->weights->dims[1];
        const int16_t *weights = item(node->weights, 0, 0, 0, z);
        int64_t sum = node->biases ? 256 * (int64_t)node->biases->items[z] : 0;
        for (j = 0; j < height; j++) {
            const vx_size from_y = y * node->skip_y + j * (node->dilation_y + 1) - node->padding_y;
            for (k = 0; k < width; k++) {
                const vx_size from_x = x * node->skip_x + k * (node->dilation_x + 1) - node->padding_x;
                const int16_t *from;
                if (from_x >= extent(node->in, 0) || from_y >= extent(node->in, 1)) /* also before 0, as it wraps */
                    continue;
                from = item(node->in, from_x, from_y, 0, n);
                for (c = 0; c < node->weights->dims[2]; c++)
                    sum += (int32_t)weights[c * node->weights->strides[2] + j * width + k] *
                           from[c * node->in->strides[2]];
            }
        }
        *item(node->out, x, y, z, n) = rounded((double)sum);
    }
}

vx_node vxConvolutionLayer(vx_graph graph, vx_tensor inputs, vx_tensor weights, vx_tensor biases,
                           const vx_nn_convolution_params_t *params, vx_size size_of_convolution_params,
                           vx_tensor outputs)
{
    const vx_size reach_x = weights->dims[0] + (weights->dims[0] - 1) * params->dilation_x;
    const vx_size reach_y = weights->dims[1] + (weights->dims[1] - 1) * params->dilation_y;
    const vx_enum rounding = params->down_scale_size_rounding;
    const vx_size skip_x = skip_of(inputs->dims[0], params->padding_x, reach_x, outputs->dims[0], rounding);
    const vx_size skip_y = skip_of(inputs->dims[1], params->padding_y, reach_y, outputs->dims[1], rounding);
    vx_node node = node_of(graph, convolve, inputs, outputs,
        size_of_convolution_params == sizeof *params && weights->rank == 4 && weights->type == VX_TYPE_INT16 &&
        inputs->rank >= 3 && outputs->rank == inputs->rank && weights->dims[2] == inputs->dims[2] &&
        weights->dims[3] == outputs->dims[2] && extent(inputs, 3) == extent(outputs, 3) && skip_x && skip_y &&
        (!biases || (biases->rank == 1 && biases->dims[0] == weights->dims[3] && biases->is_loaded)) &&
        weights->is_loaded && params->overflow_policy == VX_CONVERT_POLICY_SATURATE);
    node->weights = weights;
    node->biases = biases;
    node->padding_x = params->padding_x;
    node->padding_y = params->padding_y;
    node->dilation_x = params->dilation_x;
    node->dilation_y = params->dilation_y;
    node->skip_x = skip_x;
    node->skip_y = skip_y;
    told("convolution %s by %s with %s to %s", dims_of(inputs), dims_of(weights), dims_of(biases), dims_of(outputs));
    return node;
}

/* Correlation with the input, between whose items zeros are. */
static void deconvolve(const struct tests_node *node)
{
    vx_size n, z, y, x, c, j, k;
    for (n = 0; n < extent(node->out, 3); n++)
    for (z = 0; z < extent(node->out, 2); z++)
    for (y = 0; y < extent(node->out, 1); y++)
    for (x = 0; x < extent(node->out, 0); x++) {
        double sum = node->biases ? 256.0 * node->biases->items[z] : 0;
        for (c = 0; c < extent(node->weights, 2); c++)
        for (j = 0; j < extent(node->weights, 1); j++)
        for (k = 0; k < extent(node->weights, 0); k++) {
            const vx_size before_x = node->weights->dims[0] - 1 - node->padding_x;
            const vx_size before_y = node->weights->dims[1] - 1 - node->padding_y;
            const vx_size from_x = (x + k - before_x) / node->skip_x, from_y = (y + j - before_y) / node->skip_y;
            if (x + k >= before_x && y + j >= before_y && (x + k - before_x) % node->skip_x == 0 &&
                (y + j - before_y) % node->skip_y == 0 && from_x < extent(node->in, 0) && from_y < extent(node->in, 1))
                sum += (double)*item(node->weights, k, j, c, z) * *item(node->in, from_x, from_y, c, n);
        }
        *item(node->out, x, y, z, n) = rounded(sum);
    }
}

/* By what the width or height is scaled; 0 where the dimensions do not tell. */
static vx_size upscale_of(vx_size in, vx_size padding, vx_size kernel, vx_size more, vx_size out)
{
    const vx_size rest = out + 2 * padding - kernel - more;
    if (in == 1)
        return rest == 0;
    return rest % (in - 1) ? 0 : rest / (in - 1);
}

vx_node vxDeconvolutionLayer(vx_graph graph, vx_tensor inputs, vx_tensor weights, vx_tensor biases,
                             const vx_nn_deconvolution_params_t *params, vx_size size_of_deconv_params,
                             vx_tensor outputs)
{
    const vx_size width = weights->dims[0], height = weights->dims[1];
    const vx_size up_x = upscale_of(inputs->dims[0], params->padding_x, width, params->a_x, outputs->dims[0]);
    const vx_size up_y = upscale_of(inputs->dims[1], params->padding_y, height, params->a_y, outputs->dims[1]);
    vx_node node = node_of(graph, deconvolve, inputs, outputs,
        size_of_deconv_params == sizeof *params && weights->rank == 4 && weights->type == VX_TYPE_INT16 &&
        inputs->rank >= 3 && outputs->rank == inputs->rank && weights->dims[2] == inputs->dims[2] &&
        weights->dims[3] == outputs->dims[2] && extent(inputs, 3) == extent(outputs, 3) && up_x && up_y &&
        (!biases || (biases->rank == 1 && biases->dims[0] == weights->dims[3] && biases->is_loaded)) &&
        weights->is_loaded && params->padding_x < width && params->padding_y < height &&
        (!params->a_x || params->a_x < up_x) && (!params->a_y || params->a_y < up_y));
    node->weights = weights;
    node->biases = biases;
    node->padding_x = params->padding_x;
    node->padding_y = params->padding_y;
    node->skip_x = up_x;
    node->skip_y = up_y;
    told("deconvolution %s by %s with %s to %s", dims_of(inputs), dims_of(weights), dims_of(biases), dims_of(outputs));
    return node;
}

static void connect(const struct tests_node *node)
{
    const vx_size depth = node->weights->dims[0];
    vx_size n, z, k;
    for (n = 0; n < extent(node->out, 1); n++)
    for (z = 0; z < node->weights->dims[1]; z++) {
        double sum = node->biases ? 256.0 * node->biases->items[z] : 0;
        for (k = 0; k < depth; k++) { /* all before the batch, the first of them fastest */
            const vx_size width = node->in->rank >= 3 ? node->in->dims[0] : depth;
            const vx_size height = node->in->rank >= 3 ? node->in->dims[1] : 1;
            const int16_t *here = node->in->rank >= 3
                ? item(node->in, k % width, k / width % height, k / width / height, n) : item(node->in, k, n, 0, 0);
            sum += (double)node->weights->items[z * depth + k] * *here;
        }
        node->out->items[n * node->weights->dims[1] + z] = rounded(sum);
    }
}

vx_node vxFullyConnectedLayer(vx_graph graph, vx_tensor inputs, vx_tensor weights, vx_tensor biases,
                              vx_enum overflow_policy, vx_enum rounding_policy, vx_tensor outputs)
{
    const vx_size depth = inputs->rank >= 3 ? inputs->dims[0] * inputs->dims[1] * inputs->dims[2] : inputs->dims[0];
    const vx_size batch = inputs->rank >= 3 ? extent(inputs, 3) : extent(inputs, 1);
    vx_node node = node_of(graph, connect, inputs, outputs,
        weights->rank == 2 && weights->is_loaded && weights->dims[0] == depth && outputs->rank == 2 &&
        outputs->dims[0] == weights->dims[1] && outputs->dims[1] == batch && weights->type == VX_TYPE_INT16 &&
        (!biases || (biases->rank == 1 && biases->dims[0] == weights->dims[1] && biases->is_loaded)) &&
        overflow_policy == VX_CONVERT_POLICY_SATURATE && rounding_policy == VX_ROUND_POLICY_TO_NEAREST_EVEN);
    node->weights = weights;
    node->biases = biases;
    told("fully connected %s by %s with %s to %s", dims_of(inputs), dims_of(weights), dims_of(biases),
         dims_of(outputs));
    return node;
}

static void pool(const struct tests_node *node)
{
    vx_size n, z, y, x, j, k;
    for (n = 0; n < extent(node->out, 3); n++)
    for (z = 0; z < extent(node->out, 2); z++)
    for (y = 0; y < extent(node->out, 1); y++)
    for (x = 0; x < extent(node->out, 0); x++) {
        double sum = 0, most = -32768;
        for (j = 0; j < node->size_y; j++)
        for (k = 0; k < node->size_x; k++) {
            const vx_size from_x = x * node->skip_x + k, from_y = y * node->skip_y + j;
            const int within = from_x >= node->padding_x && from_x < node->padding_x + extent(node->in, 0) &&
                               from_y >= node->padding_y && from_y < node->padding_y + extent(node->in, 1);
            const double value =
                within ? *item(node->in, from_x - node->padding_x, from_y - node->padding_y, z, n) : 0;
            sum += value;
            most = value > most ? value : most;
        }
        if (node->type == VX_NN_POOLING_AVG)
            most = rint(sum / (double)(node->size_x * node->size_y));
        *item(node->out, x, y, z, n) = saturated(most);
    }
}

vx_node vxPoolingLayer(vx_graph graph, vx_tensor inputs, vx_enum pooling_type, vx_size pooling_size_x,
                       vx_size pooling_size_y, vx_size pooling_padding_x, vx_size pooling_padding_y, vx_enum rounding,
                       vx_tensor outputs)
{
    const vx_size skip_x = skip_of(inputs->dims[0], pooling_padding_x, pooling_size_x, outputs->dims[0], rounding);
    const vx_size skip_y = skip_of(inputs->dims[1], pooling_padding_y, pooling_size_y, outputs->dims[1], rounding);
    vx_node node = node_of(graph, pool, inputs, outputs,
        inputs->rank >= 3 && outputs->rank == inputs->rank && extent(inputs, 2) == extent(outputs, 2) &&
        extent(inputs, 3) == extent(outputs, 3) && skip_x && skip_y);
    node->type = pooling_type;
    node->size_x = pooling_size_x;
    node->size_y = pooling_size_y;
    node->padding_x = pooling_padding_x;
    node->padding_y = pooling_padding_y;
    node->skip_x = skip_x;
    node->skip_y = skip_y;
    told("%s pooling %s to %s", pooling_type == VX_NN_POOLING_MAX ? "max" : "average", dims_of(inputs),
         dims_of(outputs));
    return node;
}

/* The greatest item of each cell of a region, whose last column and row are within it. */
static void pool_regions(const struct tests_node *node)
{
    vx_size n, z, y, x, j, k;
    for (n = 0; n < extent(node->out, 3); n++)
    for (z = 0; z < extent(node->out, 2); z++)
    for (y = 0; y < extent(node->out, 1); y++)
    for (x = 0; x < extent(node->out, 0); x++) {
        const int left = *item(node->other, 0, n, 0, 0), top = *item(node->other, 1, n, 0, 0);
        const int right = *item(node->other, 2, n, 0, 0), bottom = *item(node->other, 3, n, 0, 0);
        const vx_size width = (vx_size)(right - left + 1), height = (vx_size)(bottom - top + 1);
        int16_t most = -32768;
        if (left < 0 || top < 0 || right < left || bottom < top || right >= (int)node->in->dims[0] ||
            bottom >= (int)node->in->dims[1])
            abort();
        for (j = y * height / node->size_y; j * node->size_y < (y + 1) * height; j++)
        for (k = x * width / node->size_x; k * node->size_x < (x + 1) * width; k++) {
            const int16_t value = *item(node->in, (vx_size)left + k, (vx_size)top + j, z, 0);
            most = value > most ? value : most;
        }
        *item(node->out, x, y, z, n) = most;
    }
}

vx_node vxROIPoolingLayer(vx_graph graph, vx_tensor input_data, vx_tensor input_rois,
                          const vx_nn_roi_pool_params_t *roi_pool_params, vx_size size_of_roi_params,
                          vx_tensor output_arr)
{
    vx_node node = node_of(graph, pool_regions, input_data, output_arr,
        size_of_roi_params == sizeof *roi_pool_params && roi_pool_params->pool_type == VX_NN_POOLING_MAX &&
        input_data->rank == 3 && input_rois->rank == 2 && output_arr->rank == 4 && input_rois->dims[0] == 4 &&
        input_rois->dims[1] == output_arr->dims[3] && input_data->dims[2] == output_arr->dims[2] &&
        input_rois->type == VX_TYPE_INT16);
    node->other = input_rois;
    node->size_x = output_arr->dims[0];
    node->size_y = output_arr->dims[1];
    told("roi pooling %s by %s to %s", dims_of(input_data), dims_of(input_rois), dims_of(output_arr));
    return node;
}

static int same_dims(vx_tensor one, vx_tensor other)
{
    return one->rank == other->rank && !memcmp(one->dims, other->dims, one->rank * sizeof(vx_size));
}

static double activated(vx_enum function, double x, double a, double b)
{
    switch (function) {
    case VX_NN_ACTIVATION_LOGISTIC: return 1 / (1 + exp(-x));
    case VX_NN_ACTIVATION_HYPERBOLIC_TAN: return a * tanh(b * x);
    case VX_NN_ACTIVATION_RELU: return x > 0 ? x : 0;
    case VX_NN_ACTIVATION_BRELU: return x < 0 ? 0 : x < a ? x : a;
    case VX_NN_ACTIVATION_SOFTRELU: return log(1 + exp(x));
    case VX_NN_ACTIVATION_ABS: return fabs(x);
    case VX_NN_ACTIVATION_SQUARE: return x * x;
    case VX_NN_ACTIVATION_SQRT: return sqrt(x);
    default: return a * x + b;
    }
}

static void activate(const struct tests_node *node)
{
    vx_size n, z, y, x;
    for (n = 0; n < extent(node->out, 3); n++)
    for (z = 0; z < extent(node->out, 2); z++)
    for (y = 0; y < extent(node->out, 1); y++)
    for (x = 0; x < extent(node->out, 0); x++) {
        const double value = *item(node->in, x, y, z, n) / 256.0;
        *item(node->out, x, y, z, n) = saturated(rint(256 * activated(node->function, value, node->a, node->b)));
    }
}

vx_node vxActivationLayer(vx_graph graph, vx_tensor inputs, vx_enum function, vx_float32 a, vx_float32 b,
                          vx_tensor outputs)
{
    vx_node node = node_of(graph, activate, inputs, outputs, same_dims(inputs, outputs) && a > 0 && b > 0);
    node->function = function;
    node->a = a;
    node->b = b;
    told("activation %d of %s, %g, %g", function & 0xFFF, dims_of(inputs), a, b);
    return node;
}

/* The sum, the difference or the product of two tensors; dimensions of 1 of the second one are repeated. */
static void combine(const struct tests_node *node)
{
    vx_size n, z, y, x;
    for (n = 0; n < extent(node->out, 3); n++)
    for (z = 0; z < extent(node->out, 2); z++)
    for (y = 0; y < extent(node->out, 1); y++)
    for (x = 0; x < extent(node->out, 0); x++) {
        const double one = *item(node->in, x, y, z, n);
        const double two = *item(node->other, extent(node->other, 0) > 1 ? x : 0, extent(node->other, 1) > 1 ? y : 0,
                                 extent(node->other, 2) > 1 ? z : 0, extent(node->other, 3) > 1 ? n : 0);
        *item(node->out, x, y, z, n) =
            node->function == '*' ? rounded(one * two * node->a) : saturated(node->function == '+' ? one + two : one - two);
    }
}

static vx_node elementwise(vx_graph graph, int operation, vx_tensor one, vx_tensor two, double scale, vx_enum policy,
                           vx_tensor out)
{
    int fits = same_dims(one, out) && one->rank == two->rank && one->rank <= 4 && policy == VX_CONVERT_POLICY_SATURATE;
    vx_node node;
    vx_size k;
    for (k = 0; k < two->rank; k++)
        fits = fits && (two->dims[k] == one->dims[k] || two->dims[k] == 1);
    node = node_of(graph, combine, one, out, fits && two->type == VX_TYPE_INT16 && scale >= 0);
    node->other = two;
    node->function = operation;
    node->a = scale;
    told("%s %c %s by %g", dims_of(one), operation, dims_of(two), scale);
    return node;
}

vx_node vxTensorAddNode(vx_graph graph, vx_tensor input1, vx_tensor input2, vx_enum policy, vx_tensor output)
{
    return elementwise(graph, '+', input1, input2, 1, policy, output);
}

vx_node vxTensorSubtractNode(vx_graph graph, vx_tensor input1, vx_tensor input2, vx_enum policy, vx_tensor output)
{
    return elementwise(graph, '-', input1, input2, 1, policy, output);
}

vx_node vxTensorMultiplyNode(vx_graph graph, vx_tensor input1, vx_tensor input2, vx_scalar scale,
                             vx_enum overflow_policy, vx_enum rounding_policy, vx_tensor output)
{
    const int to_even = rounding_policy == VX_ROUND_POLICY_TO_NEAREST_EVEN;
    return elementwise(graph, '*', input1, input2, to_even ? scale->value : -1, overflow_policy, output);
}

static void soften(const struct tests_node *node)
{
    const vx_size dim = node->in->rank >= 3 ? 2 : 0;
    vx_size at[4] = {0}, k, n, y, x;
    for (n = 0; n < extent(node->in, 3); n++)
    for (y = 0; y < extent(node->in, 1); y++)
    for (x = 0; x < (dim ? extent(node->in, 0) : 1); x++) {
        double sum = 0, most = -32768;
        for (k = 0; k < extent(node->in, dim); k++) {
            at[0] = x, at[1] = y, at[3] = n, at[dim] = k;
            most = fmax(most, *item(node->in, at[0], at[1], at[2], at[3]) / 256.0);
        }
        for (k = 0; k < extent(node->in, dim); k++) {
            at[dim] = k;
            sum += exp(*item(node->in, at[0], at[1], at[2], at[3]) / 256.0 - most);
        }
        for (k = 0; k < extent(node->in, dim); k++) {
            at[dim] = k;
            *item(node->out, at[0], at[1], at[2], at[3]) =
                saturated(rint(256 * exp(*item(node->in, at[0], at[1], at[2], at[3]) / 256.0 - most) / sum));
        }
    }
}

vx_node vxSoftmaxLayer(vx_graph graph, vx_tensor inputs, vx_tensor outputs)
{
    told("softmax of %s", dims_of(inputs));
    return node_of(graph, soften, inputs, outputs, same_dims(inputs, outputs));
}

static void normalize(const struct tests_node *node)
{
    vx_size n, z, y, x, k;
    for (n = 0; n < extent(node->out, 3); n++)
    for (z = 0; z < extent(node->out, 2); z++)
    for (y = 0; y < extent(node->out, 1); y++)
    for (x = 0; x < extent(node->out, 0); x++) {
        double sum = 0;
        for (k = z < node->size_x / 2 ? 0 : z - node->size_x / 2; k <= z + node->size_x / 2; k++)
            if (k < extent(node->in, 2))
                sum += pow(*item(node->in, x, y, k, n) / 256.0, 2);
        *item(node->out, x, y, z, n) = saturated(
            rint(*item(node->in, x, y, z, n) / pow(1 + node->a / (double)node->size_x * sum, node->b)));
    }
}

vx_node vxNormalizationLayer(vx_graph graph, vx_tensor inputs, vx_enum type, vx_size normalization_size,
                             vx_float32 alpha, vx_float32 beta, vx_tensor outputs)
{
    vx_node node = node_of(graph, normalize, inputs, outputs,
        same_dims(inputs, outputs) && type == VX_NN_NORMALIZATION_ACROSS_MAPS && normalization_size % 2 == 1 &&
        normalization_size >= 3 && normalization_size <= 7 && alpha > 0 && beta > 0);
    node->size_x = normalization_size;
    node->a = alpha;
    node->b = beta;
    told("normalization of %s, %lu, %g, %g", dims_of(inputs), (unsigned long)normalization_size, alpha, beta);
    return node;
}

/* ------------------------------------------------------------------------------------------------ graphs */
vx_status vxVerifyGraph(vx_graph graph)
{
    graph->verified = 1;
    return graph->number ? VX_SUCCESS : VX_FAILURE;
}

vx_status vxProcessGraph(vx_graph graph)
{
    vx_size k;
    if (!graph->verified)
        return VX_FAILURE;
    for (k = 0; k < graph->number; k++)
        graph->nodes[k]->run(graph->nodes[k]);
    return VX_SUCCESS;
}
