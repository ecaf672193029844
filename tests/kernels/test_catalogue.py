# SPDX-License-Identifier: Apache-2.0
"""The catalogue: every type is built, traced, named again, and keeps to its ranges."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nni_latency.errors import InvalidValueError, UnknownNameError
from nni_latency.kernels import (
    NN_METER_KERNELS,
    USUAL_KERNELS,
    Domain,
    Kernel,
    KernelType,
    find_types,
    kernel_of,
    kernel_types,
)
from nni_latency.operators import OpSpec, features_of, trace_both

TYPES = kernel_types()

#: Small sizes by name, for modules that really run.
TINY = {"HW": 9, "CIN": 12, "COUT": 8, "KERNEL_SIZE": 3, "STRIDES": 2, "POOL_STRIDES": 2, "GROUPS": 2, "LENGTH": 9}
TINY |= {"TOKENS": 5, "ROWS": 4, "INNER": 3, "COLUMNS": 6, "HEADS": 2, "CHANNELS": 4, "SCALE": 2}
TINY |= {"CIN1": 3, "CIN2": 4, "CIN3": 5, "CIN4": 0}


def _tiny(kind):
    return kind.check(kind.snap(TINY))


def _traced(kind, kernel):
    with torch.device("meta"):
        inputs = tuple(torch.empty(shape) for shape in kind.shapes(kernel))
        traces = trace_both(kind.module(kernel), inputs)
    return tuple(tuple(item.op for item in found.operators) for found in traces)


def test_all_kernels_of_nn_meter_are_there():
    assert len(NN_METER_KERNELS) == len(set(NN_METER_KERNELS)) == 29
    assert set(NN_METER_KERNELS) < set(USUAL_KERNELS) <= set(TYPES)
    assert list(TYPES["conv_bn_relu"].domains) == ["HW", "CIN", "COUT", "KERNEL_SIZE", "STRIDES"]
    assert list(TYPES["maxpool_block"].domains) == ["HW", "CIN", "KERNEL_SIZE", "POOL_STRIDES"]
    assert list(TYPES["fc_block"].domains) == ["CIN", "COUT"]


def test_kinds_of_one_operation_share_a_group():
    assert {TYPES[name].group for name in TYPES if name.startswith("conv_")} == {"conv"}
    assert {TYPES[name].group for name in TYPES if name.startswith("dwconv_")} == {"dwconv"}


@pytest.mark.parametrize("name", TYPES)
def test_a_module_runs_the_operators_that_its_type_says_and_is_named_after_them(name):
    kind = TYPES[name]
    kernel = _tiny(kind)
    result = kind.module(kernel).eval()(*(torch.zeros(shape) for shape in kind.shapes(kernel)))
    assert result is not None
    by_module, by_graph = _traced(kind, kernel)
    if name == "split_block":
        # A runtime without views copies; torch does not.
        assert by_graph == ()
    else:
        assert by_graph == kind.ops(kernel)
        assert kernel_of(by_graph) == kernel_of(by_module) == kernel


@settings(max_examples=100)
@given(name=st.sampled_from(sorted(TYPES)), data=st.data())
def test_whatever_is_snapped_is_valid_and_stays(name, data):
    kind = TYPES[name]
    sizes = {key: data.draw(st.floats(-10, 1e5)) for key in kind.domains}
    kernel = kind.check(kind.snap(sizes))
    assert kind.snap(kernel.sizes) == kernel
    assert sum(features_of(op).outputs for op in kind.ops(kernel) if op.kind != "split") > 0 or name == "split_block"


def test_features_are_configuration_flops_and_parameters():
    kind = TYPES["conv_block"]
    kernel = Kernel.of("conv_block", HW=8, CIN=3, COUT=4, KERNEL_SIZE=3, STRIDES=2)
    found = kind.features(kernel)
    assert found == {**kernel.sizes, "FLOPS": 2 * 16 * 4 * 27 + 16 * 4, "PARAMS": 4 * 27 + 4}


def test_weights_are_numbers_and_statistics_those_of_a_new_layer():
    kind = TYPES["conv_bn_relu"]
    module = kind.module(_tiny(kind))
    result = module.eval()(torch.randn(kind.shapes(_tiny(kind))[0]))
    assert torch.isfinite(result).all()
    assert 0.1 < result.detach().std().item() < 10
    assert float(module[1].running_var.min()) == 1.0


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"HW": 600, "CIN": 8}, "'HW' of 'relu_block' must be from 1 to 512. Got 600"),
        ({"HW": 512, "CIN": 4096}, "is too large: more than"),
        ({"HW": 8}, "has the configuration HW, CIN"),
        ({"HW": 8, "CIN": 8, "BATCH": 4}, "has the configuration HW, CIN"),
    ],
)
def test_a_configuration_out_of_range_is_refused(sizes, message):
    with pytest.raises(InvalidValueError, match=message):
        TYPES["relu_block"].check(Kernel.of("relu_block", **sizes))


def test_what_is_too_large_to_be_measured_can_be_predicted():
    kernel = Kernel.of("relu_block", HW=512, CIN=2048)
    assert TYPES["relu_block"].check(kernel, to_measure=False) == kernel
    with pytest.raises(InvalidValueError, match="is too large"):
        TYPES["relu_block"].check(kernel)


def test_groups_divide_channels_and_windows_fit():
    with pytest.raises(InvalidValueError, match="'CIN' of 'gconv_block' must be a multiple of GROUPS"):
        sizes = {"HW": 8, "CIN": 9, "COUT": 8, "KERNEL_SIZE": 3, "STRIDES": 1, "GROUPS": 4}
        TYPES["gconv_block"].check(Kernel.of("gconv_block", **sizes))
    with pytest.raises(InvalidValueError, match="window is larger than its input"):
        TYPES["maxpool_block"].check(Kernel.of("maxpool_block", HW=1, CIN=9, KERNEL_SIZE=2, POOL_STRIDES=2))


def test_types_are_found_by_name_and_by_group():
    assert [kind.name for kind in find_types(["add_block", "add_relu", "add_block"])] == ["add_block", "add_relu"]
    assert {kind.group for kind in find_types(["dwconv"])} == {"dwconv"}
    with pytest.raises(UnknownNameError, match=r"Unknown kernel 'conv_bn_rleu'.*conv_bn_relu"):
        find_types(["conv_bn_rleu"])


def test_a_type_of_ones_own_follows_from_its_module():
    """Its operators are traced; `known` and `multiples` are dictionaries and do not stand in the way."""
    known = ({"HW": 8, "CIN": 4},)
    domains = {"HW": Domain(1, 64), "CIN": Domain(2, 64)}

    def make():
        return KernelType(
            "mine",
            domains,
            lambda sizes: [(1, sizes["CIN"], sizes["HW"], sizes["HW"])],
            lambda sizes: torch.nn.Conv2d(sizes["CIN"], sizes["CIN"] // 2, 1),
            multiples={"CIN": 2},
            known=known,
        )

    kind = make()
    assert kind == make()
    assert hash(kind) == hash(make())
    assert [op.kind for op in kind.ops(kind.snap(known[0]))] == ["conv2d"]


def test_a_type_needs_one_way_to_be_built():
    with pytest.raises(InvalidValueError, match="either 'build' or 'layers'"):
        KernelType("mine", {}, lambda sizes: [(1,)])


def test_a_kernel_survives_pickling():
    kernel = _tiny(TYPES["se_block"])
    assert pickle.loads(pickle.dumps(kernel)) == kernel


def _convolution(**changes):
    given = {"out_channels": 8, "kernel_size": 3, "stride": 1, "groups": 1, "bias": False, **changes}
    return OpSpec.of("conv2d", [(1, 4, 16, 16)], **given)


@pytest.mark.parametrize(
    ("ops", "name"),
    [
        ([_convolution(), OpSpec.of("hardtanh", [(1, 8, 16, 16)], min_val=0.0, max_val=6.0)], "conv_relu6"),
        ([_convolution(), OpSpec.of("clamp", [(1, 8, 16, 16)])], "conv_relu6"),
        ([_convolution(), OpSpec.of("hardtanh", [(1, 8, 16, 16)], min_val=-1.0, max_val=1.0)], None),
        ([_convolution(kernel_size=(1, 7))], None),
        ([_convolution(dilation=2)], None),
        ([_convolution(groups=4, out_channels=4)], "dwconv_block"),
        ([_convolution(groups=4)], "gconv_block"),
        ([_convolution(), _convolution()], None),
        ([OpSpec.of("mean", [(1, 8, 7, 7)], dim=(2, 3), out=(1, 8))], "globalavgpool_block"),
        ([OpSpec.of("global_average_pool", [(1, 8, 7, 7)])], "globalavgpool_block"),
        ([OpSpec.of("add", [(1, 8, 7, 7)])], None),
        ([OpSpec.of("lstm", [(5, 1, 8)])], None),
        ([OpSpec.of("identity", [(1, 8)])], None),
        ([], None),
    ],
)
def test_kernels_are_named_by_what_the_operators_say(ops, name):
    found = kernel_of(ops)
    assert (found and found.kind) == name


@pytest.mark.parametrize(
    ("shape", "out", "name"),
    [
        ((1, 20, 2, 7, 5), (1, 40, 7, 5), "channel_shuffle(CIN=40,HW=6)"),  # as torch copies it
        ((1, 2, 20, 7, 7), (1, 20, 2, 7, 7), "channel_shuffle(CIN=40,HW=7)"),  # as a file exchanges it
        ((1, 3, 20, 7, 7), (1, 20, 3, 7, 7), None),  # three groups
        ((1, 2, 20, 7, 7), (1, 2, 20, 7, 7), None),  # nothing is exchanged
    ],
)
def test_channel_shuffle_is_known_in_traces_and_in_files(shape, out, name):
    found = kernel_of([OpSpec.of("copy", [shape], out=out)])
    assert (found and found.key) == name


def test_a_window_without_padding_counts_by_its_output():
    """The first layer of AlexNet gives 55 pixels a side, as many as a picture of 220 with the whole padding."""
    op = OpSpec.of(
        "conv2d", [(1, 3, 224, 224)], out_channels=64, kernel_size=11, stride=4, groups=1, bias=True, padding=2
    )
    assert kernel_of([op])["HW"] == 220


def test_more_inputs_than_four_are_joined():
    op = OpSpec.of("cat", [(1, 8, 7, 7)] * 6, dim=1, out=(1, 48, 7, 7))
    assert kernel_of([op]).sizes == {"HW": 7, "CIN1": 8, "CIN2": 8, "CIN3": 8, "CIN4": 24}


def test_several_images_are_another_kernel():
    kernel = kernel_of([OpSpec.of("relu", [(8, 4, 7, 7)])])
    assert kernel.sizes == {"HW": 7, "CIN": 4, "BATCH": 8}
    with pytest.raises(InvalidValueError, match="has the configuration HW, CIN"):
        TYPES["relu_block"].check(kernel)


def test_a_draw_takes_usual_values():
    generator = np.random.default_rng(0)
    assert {TYPES["conv_bn"].domains["KERNEL_SIZE"].draw(generator) for _ in range(50)} == {1, 3, 5, 7}


@pytest.mark.parametrize("shapes", [[(1, 8, 7, 5), (1, 8, 1, 1)], [(1, 8, 1, 1), (1, 8, 7, 5)]])
def test_product_with_a_number_for_each_channel_is_a_kernel_of_its_own(shapes):
    kernel = kernel_of([OpSpec.of("mul", shapes)])
    assert (kernel.kind, kernel.sizes) == ("scale_block", {"HW": 6, "CIN": 8})


def test_hard_sigmoid_is_an_activation():
    assert kernel_of([OpSpec.of("hardsigmoid", [(1, 8, 1, 1)])]).kind == "hsigmoid_block"
    kernel = kernel_of([*TYPES["conv_block"].ops(_tiny(TYPES["conv_block"])), OpSpec.of("hardsigmoid", [(1, 8, 5, 5)])])
    assert kernel.kind == "conv_hsigmoid"


def test_products_of_equal_tensors_and_of_others():
    assert kernel_of([OpSpec.of("mul", [(1, 8, 1, 1)] * 2)]).kind == "mul_block"
    assert kernel_of([OpSpec.of("mul", [(1, 8, 7, 7), (1, 1, 7, 7)])]) is None


@pytest.mark.parametrize(("numbers", "sizes"), [(1000, (1, 1000)), (4096, (1, 4096)), (4416, (2, 1104))])
def test_long_row_counts_as_a_picture(numbers, sizes):
    kernel = kernel_of([OpSpec.of("relu", [(1, numbers)])])
    assert kernel.kind == "relu_block"
    assert (kernel["HW"], kernel["CIN"]) == sizes
