# SPDX-License-Identifier: Apache-2.0
"""The blocks of the micro-benchmarks: names, shapes, modules."""

from __future__ import annotations

import pickle

import pytest
import torch

from nni_latency.errors import InvalidValueError
from nni_latency.micro_benchmarks import BLOCKS, KINDS, Block, draw_blocks
from nni_latency.operators import capture_operators


def _operators(block, batch):
    with torch.device("meta"):
        return [op for _, op in capture_operators(block.build(), torch.empty(block.input_shape(batch)), by="graph")]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_predefined_blocks_take_their_input_at_any_batch_size(block):
    assert _operators(block, 3)[0].input_shapes[0][0] == 3


def test_predefined_set_holds_every_kind_and_no_name_twice():
    assert {block.kind for block in BLOCKS} == set(KINDS)
    assert len({block.name for block in BLOCKS}) == len(BLOCKS)


def test_grouped_and_gated_blocks_are_what_they_say():
    grouped = next(block for block in BLOCKS if block.kind == "grouped-bottleneck")
    assert [op.get("groups") for op in _operators(grouped, 1) if op.kind == "conv2d"].count(32) == 1
    gated = [op.kind for op in _operators(next(block for block in BLOCKS if block.kind == "mbconv"), 1)]
    assert "sigmoid" in gated
    assert "mul" in gated


def test_drawn_blocks_are_new_different_and_run():
    drawn = draw_blocks(40, seed=1)
    assert len(set(drawn)) == 40
    assert not set(drawn) & set(BLOCKS)
    assert all(_operators(block, 2) for block in drawn)
    assert draw_blocks(40, seed=1) == drawn != draw_blocks(40, seed=2)


def test_a_block_survives_pickling():
    block = BLOCKS[0]
    assert pickle.loads(pickle.dumps(block)) == block


def test_an_unknown_kind_is_refused():
    with pytest.raises(InvalidValueError, match=r"'kind' of a Block must be one of conv, basic, .* Got 'lstm'"):
        Block.of("lstm", 4, channels=2)


def test_outputs_are_those_of_the_real_modules():
    block = Block.of("bottleneck", 8, channels=8, out=16, width=4, stride=2)
    assert block.build()(torch.zeros(block.input_shape(2))).shape == (2, 16, 4, 4)
    tokens = Block.of("transformer", 5, channels=8, heads=2)
    assert tokens.build()(torch.zeros(tokens.input_shape(3))).shape == (3, 5, 8)
