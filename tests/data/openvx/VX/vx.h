/* What a client of the neural network extension uses of OpenVX 1.2, declared for the tests. */
#ifndef TESTS_VX_H
#define TESTS_VX_H

#include <stddef.h>
#include <stdint.h>

typedef int8_t vx_int8;
typedef int32_t vx_int32;
typedef uint16_t vx_uint16;
typedef float vx_float32;
typedef size_t vx_size;
typedef int32_t vx_enum;
typedef vx_enum vx_status;
typedef enum { vx_false_e = 0, vx_true_e = 1 } vx_bool;

typedef struct tests_reference *vx_reference;
typedef struct tests_context *vx_context;
typedef struct tests_graph *vx_graph;
typedef struct tests_node *vx_node;
typedef struct tests_tensor *vx_tensor;
typedef struct tests_scalar *vx_scalar;

#define VX_ID_KHRONOS 0
#define VX_ENUM_BASE(vendor, id) (((vendor) << 20) | ((id) << 12))

enum { VX_SUCCESS = 0, VX_FAILURE = -1, VX_ERROR_NO_MEMORY = -8, VX_ERROR_INVALID_PARAMETERS = -10 };
enum { VX_TYPE_INT8 = 2, VX_TYPE_UINT8 = 3, VX_TYPE_INT16 = 4, VX_TYPE_FLOAT32 = 10 };
enum { VX_READ_ONLY = VX_ENUM_BASE(VX_ID_KHRONOS, 1) + 1, VX_WRITE_ONLY };
enum { VX_MEMORY_TYPE_HOST = VX_ENUM_BASE(VX_ID_KHRONOS, 2) + 1 };
enum { VX_CONVERT_POLICY_WRAP = VX_ENUM_BASE(VX_ID_KHRONOS, 3), VX_CONVERT_POLICY_SATURATE };
enum { VX_ROUND_POLICY_TO_ZERO = VX_ENUM_BASE(VX_ID_KHRONOS, 4) + 1, VX_ROUND_POLICY_TO_NEAREST_EVEN };

vx_context vxCreateContext(void);
vx_status vxReleaseContext(vx_context *context);
vx_context vxGetContext(vx_reference reference);
vx_graph vxCreateGraph(vx_context context);
vx_status vxReleaseGraph(vx_graph *graph);
vx_status vxReleaseNode(vx_node *node);
vx_status vxVerifyGraph(vx_graph graph);
vx_status vxProcessGraph(vx_graph graph);
vx_status vxGetStatus(vx_reference reference);

vx_tensor vxCreateTensor(vx_context context, vx_size number_of_dims, const vx_size *dims, vx_enum data_type,
                         vx_int8 fixed_point_position);
vx_tensor vxCreateVirtualTensor(vx_graph graph, vx_size number_of_dims, const vx_size *dims, vx_enum data_type,
                                vx_int8 fixed_point_position);
vx_tensor vxCreateTensorFromView(vx_tensor tensor, vx_size number_of_dims, const vx_size *view_start,
                                 const vx_size *view_end);
vx_status vxReleaseTensor(vx_tensor *tensor);
vx_status vxCopyTensorPatch(vx_tensor tensor, vx_size number_of_dims, const vx_size *view_start,
                            const vx_size *view_end, const vx_size *user_stride, void *user_ptr, vx_enum usage,
                            vx_enum user_memory_type);

vx_scalar vxCreateScalar(vx_context context, vx_enum data_type, const void *ptr);
vx_status vxReleaseScalar(vx_scalar *scalar);
vx_node vxTensorAddNode(vx_graph graph, vx_tensor input1, vx_tensor input2, vx_enum policy, vx_tensor output);
vx_node vxTensorSubtractNode(vx_graph graph, vx_tensor input1, vx_tensor input2, vx_enum policy, vx_tensor output);
vx_node vxTensorMultiplyNode(vx_graph graph, vx_tensor input1, vx_tensor input2, vx_scalar scale,
                             vx_enum overflow_policy, vx_enum rounding_policy, vx_tensor output);

#endif
