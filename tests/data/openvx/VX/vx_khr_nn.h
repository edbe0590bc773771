/* The OpenVX neural network extension 1.2.1, as far as clients use it, declared from its text for the tests. */
#ifndef TESTS_VX_KHR_NN_H
#define TESTS_VX_KHR_NN_H

#include <VX/vx.h>

/* 2.1.3 */
enum vx_nn_enum_e {
    VX_ENUM_NN_ROUNDING_TYPE = 0x1A,
    VX_ENUM_NN_POOLING_TYPE = 0x1B,
    VX_ENUM_NN_NORMALIZATION_TYPE = 0x1C,
    VX_ENUM_NN_ACTIVATION_FUNCTION_TYPE = 0x1D
};

enum vx_nn_activation_function_e {
    VX_NN_ACTIVATION_LOGISTIC = VX_ENUM_BASE(VX_ID_KHRONOS, VX_ENUM_NN_ACTIVATION_FUNCTION_TYPE),
    VX_NN_ACTIVATION_HYPERBOLIC_TAN,
    VX_NN_ACTIVATION_RELU,
    VX_NN_ACTIVATION_BRELU,
    VX_NN_ACTIVATION_SOFTRELU,
    VX_NN_ACTIVATION_ABS,
    VX_NN_ACTIVATION_SQUARE,
    VX_NN_ACTIVATION_SQRT,
    VX_NN_ACTIVATION_LINEAR
};

enum vx_nn_norm_type_e {
    VX_NN_NORMALIZATION_SAME_MAP = VX_ENUM_BASE(VX_ID_KHRONOS, VX_ENUM_NN_NORMALIZATION_TYPE),
    VX_NN_NORMALIZATION_ACROSS_MAPS
};

enum vx_nn_pooling_type_e {
    VX_NN_POOLING_MAX = VX_ENUM_BASE(VX_ID_KHRONOS, VX_ENUM_NN_POOLING_TYPE),
    VX_NN_POOLING_AVG
};

enum vx_nn_rounding_type_e {
    VX_NN_DS_SIZE_ROUNDING_FLOOR = VX_ENUM_BASE(VX_ID_KHRONOS, VX_ENUM_NN_ROUNDING_TYPE),
    VX_NN_DS_SIZE_ROUNDING_CEILING
};

/* 2.1.1 */
typedef struct {
    vx_size padding_x;
    vx_size padding_y;
    vx_enum overflow_policy;
    vx_enum rounding_policy;
    vx_enum down_scale_size_rounding;
    vx_size dilation_x;
    vx_size dilation_y;
} vx_nn_convolution_params_t;

typedef struct {
    vx_size padding_x;
    vx_size padding_y;
    vx_enum overflow_policy;
    vx_enum rounding_policy;
    vx_size a_x;
    vx_size a_y;
} vx_nn_deconvolution_params_t;

typedef struct {
    vx_enum pool_type;
} vx_nn_roi_pool_params_t;

/* 2.1.4 */
vx_node vxActivationLayer(vx_graph graph, vx_tensor inputs, vx_enum function, vx_float32 a, vx_float32 b,
                          vx_tensor outputs);
vx_node vxConvolutionLayer(vx_graph graph, vx_tensor inputs, vx_tensor weights, vx_tensor biases,
                           const vx_nn_convolution_params_t *convolution_params, vx_size size_of_convolution_params,
                           vx_tensor outputs);
vx_node vxDeconvolutionLayer(vx_graph graph, vx_tensor inputs, vx_tensor weights, vx_tensor biases,
                             const vx_nn_deconvolution_params_t *deconvolution_params, vx_size size_of_deconv_params,
                             vx_tensor outputs);
vx_node vxFullyConnectedLayer(vx_graph graph, vx_tensor inputs, vx_tensor weights, vx_tensor biases,
                              vx_enum overflow_policy, vx_enum rounding_policy, vx_tensor outputs);
#ifndef VX_VERSION_1_3
vx_node vxNormalizationLayer(vx_graph graph, vx_tensor inputs, vx_enum type, vx_size normalization_size,
                             vx_float32 alpha, vx_float32 beta, vx_tensor outputs);
#else
vx_node vxLocalResponseNormalizationLayer(vx_graph graph, vx_tensor inputs, vx_enum type, vx_size normalization_size,
                                          vx_float32 alpha, vx_float32 beta, vx_float32 bias, vx_tensor outputs);
#endif
vx_node vxPoolingLayer(vx_graph graph, vx_tensor inputs, vx_enum pooling_type, vx_size pooling_size_x,
                       vx_size pooling_size_y, vx_size pooling_padding_x, vx_size pooling_padding_y, vx_enum rounding,
                       vx_tensor outputs);
vx_node vxROIPoolingLayer(vx_graph graph, vx_tensor input_data, vx_tensor input_rois,
                          const vx_nn_roi_pool_params_t *roi_pool_params, vx_size size_of_roi_params,
                          vx_tensor output_arr);
vx_node vxSoftmaxLayer(vx_graph graph, vx_tensor inputs, vx_tensor outputs);

#endif
