from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from search.memory import cuda_attention_scratch as scratch
from search.memory.target import Freed, Inside

ARCHITECTURES = [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)]
SHAPES = st.tuples(
    st.integers(1, 4), st.integers(1, 8), st.integers(1, 600), st.integers(1, 32).map((8).__mul__)
)


def call(kernel, shape, dtype):
    """A backward call of an attention kernel over tensors of one shape, (B, H, T, E)."""
    grad, query, key, value, out = (
        torch.empty(shape, dtype=dtype, device="meta").transpose(1, 2).contiguous().transpose(1, 2)
        for _ in range(5)
    )
    if kernel is scratch.flash_backward:
        return SimpleNamespace(args=(grad, query, key, value, out))
    arguments = (grad, query, key, value, None, out, *[None] * 3, 0.0)
    return SimpleNamespace(args=arguments, result=(query, key, value, None))


def most_bytes(kernel, shape, dtype, architecture):
    """The most that is there at once inside a kernel."""
    alive, most, there = 0, 0, []
    for step in kernel(call(kernel, shape, dtype), architecture):
        if isinstance(step, Inside):
            there.append(step)
            alive += step.num_bytes
        elif isinstance(step, Freed):
            for block in step.blocks:
                assert any(block is kept for kept in there)
                alive -= block.num_bytes
        most = max(most, alive)
    return most


@given(shape=SHAPES, dtype=st.sampled_from([torch.float16, torch.bfloat16]))
def test_flash_sums_the_gradient_of_the_queries_in_fp32(shape, dtype):
    batch, heads, length, width = shape
    least = batch * heads * length * (width + 1) * 4
    found = most_bytes(scratch.flash_backward, shape, dtype, (8, 0))
    assert least <= found <= batch * heads * (length + 127) * (width + 31 + 1) * 4


@given(
    shape=SHAPES,
    dtype=st.sampled_from([torch.float16, torch.float32]),
    architecture=st.sampled_from(ARCHITECTURES),
)
def test_the_efficient_kernel_does_too(shape, dtype, architecture):
    batch, heads, length, width = shape
    found = most_bytes(scratch.efficient_backward, shape, dtype, architecture)
    assert found >= batch * heads * length * width * 4


@given(
    shape=SHAPES,
    more=st.integers(1, 300),
    kernel=st.sampled_from([scratch.flash_backward, scratch.efficient_backward]),
    architecture=st.sampled_from(ARCHITECTURES),
)
def test_a_longer_sequence_needs_no_less(shape, more, kernel, architecture):
    longer = (*shape[:2], shape[2] + more, shape[3])
    sizes = [most_bytes(kernel, one, torch.float16, architecture) for one in (shape, longer)]
    assert sizes[0] <= sizes[1]


@given(
    num_blocks=st.integers(1, 400),
    num_processors=st.sampled_from([80, 160, 216, 264]),
    num_key_blocks=st.integers(1, 64),
)
def test_keys_are_divided_only_while_processors_are_idle(
    num_blocks, num_processors, num_key_blocks
):
    splits = scratch._num_splits(num_blocks, num_processors, num_key_blocks)
    assert 1 <= splits <= num_key_blocks
    if num_blocks >= 0.8 * num_processors:
        assert splits == 1
