"""Names of kernels that are measured unless others are asked for."""

from __future__ import annotations

#: The kernels of nn-Meter's builder.
NN_METER_KERNELS: tuple[str, ...] = (
    *("conv_bn_relu", "conv_bn_relu6", "conv_bn", "conv_relu", "conv_relu6", "conv_hswish", "conv_block"),
    *("conv_bn_hswish", "dwconv_bn", "dwconv_relu", "dwconv_relu6", "dwconv_bn_relu", "dwconv_bn_relu6"),
    *("dwconv_block", "dwconv_bn_hswish", "maxpool_block", "avgpool_block", "fc_block", "concat_block"),
    *("split_block", "channel_shuffle", "se_block", "globalavgpool_block", "bn_relu", "bn_block", "hswish_block"),
    *("relu_block", "add_relu", "add_block"),
)

#: What is measured unless kernels are named: those of nn-Meter's builder, and what networks of today need besides.
USUAL_KERNELS: tuple[str, ...] = (
    *NN_METER_KERNELS,
    *("conv_silu", "conv_bn_silu", "dwconv_bn_silu", "gconv_block", "gconv_bn", "gconv_bn_relu", "gconv_relu"),
    *("convtranspose_block", "convtranspose_bn_relu", "conv1d_block", "conv1d_relu", "conv1d_bn_relu"),
    *("fc_relu", "linear_block", "linear_relu", "linear_gelu", "silu_block", "gelu_block", "relu6_block"),
    *(
        "sigmoid_block",
        "hsigmoid_block",
        "mul_block",
        "scale_block",
        "layernorm_block",
        "softmax_block",
        "matmul_block",
    ),
    *("attention_block", "resize_block", "mean_block"),
)
