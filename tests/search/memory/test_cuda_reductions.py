"""Partial sums against sizes worked by hand from the rules of the kernel."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search.memory.cuda import Cuda
from search.memory.trace import record

GPU = torch.device("cpu", 0)
MIB = 2**20


def blocks(tensor, dimensions, operator="sum", architecture=(8, 0)):
    """Bytes that a sum asks for beside its result, in order."""

    def run():
        kept = tensor()
        return getattr(kept, operator)(dimensions), kept

    events = record(lambda _: run(), Cuda(architecture=architecture))
    asked = [e.num_bytes for e in events if e.operator.startswith(f"aten.{operator}.")]
    return [size for size in asked if size > 0][1:]


def numbers(*shape, dtype=torch.float32):
    return lambda: torch.empty(shape, device=GPU, dtype=dtype)


def test_many_rows_are_summed_by_several_blocks():
    # Four columns a thread: 128 threads a block, 32 across and 4 down. 1536 columns are 12 blocks
    # wide; 108 x 16 of them run at once, 144 for each column, but a thread has 8192 / 4 = 2048
    # numbers and gets 16 at least: 128. Each of their threads has room for every column.
    columns, parts = 1536, 128
    assert blocks(numbers(8192, columns), [0]) == [4 * columns * parts * 32 * 4, 4 * 12]


def test_a_buffer_has_a_largest_size():
    # 2304 columns are 18 blocks wide: 1728 / 18 = 96 blocks for each, whatever the rows.
    for rows in (32_768, 65_536):
        assert blocks(numbers(rows, 2304), [0]) == [108 * MIB, 4 * 18]


def test_columns_that_four_does_not_divide_are_read_one_by_one():
    # 512 threads, 16 down: 432 blocks at once, 9 across; 48 for each, and 8192 / 16 / 16 = 32.
    assert blocks(numbers(8192, 275), [0]) == [4 * 275 * 32 * 32, 4 * 9]


@pytest.mark.parametrize(
    ("shape", "dimensions"),
    [((4080, 1535), [0]), ((1020, 1536), [0]), ((8192, 1536), [1]), ((8, 4, 64), [0])],
)
def test_few_numbers_for_a_thread_and_the_fastest_dimension_need_nothing(shape, dimensions):
    assert blocks(numbers(*shape), dimensions) == []


def test_dimensions_that_follow_one_another_are_one():
    flat = blocks(numbers(8192, 512), [0])
    assert blocks(numbers(32, 256, 512), [0, 1]) == flat
    assert blocks(numbers(256, 32, 512), [0, 1], "mean") == flat
    turned = blocks(lambda: torch.empty(32, 256, 512, device=GPU).transpose(0, 1), [0, 1])
    assert turned == flat


def test_half_precision_is_summed_in_fp32():
    assert blocks(numbers(8192, 512, dtype=torch.bfloat16), [0]) == blocks(numbers(8192, 512), [0])


def test_a_tensor_beyond_32_bits_is_summed_in_halves():
    # 4 GiB: two halves of just below 2 GiB, one after the other.
    assert blocks(numbers(2**20, 1024), [0]) == blocks(numbers(2**19, 1024), [0])


def test_smaller_multiprocessors_run_fewer_blocks():
    assert blocks(numbers(32_768, 2304), [0], architecture=(8, 6)) == [
        4 * 2304 * math.ceil(84 * 12 / 18) * 128,
        4 * 18,
    ]


@given(st.integers(1, 200_000), st.integers(2, 5000))
def test_a_buffer_is_no_larger_than_all_threads_at_once_or_twice_the_rows(rows, columns):
    found = blocks(numbers(rows, columns), [0])
    if found:
        at_most = 4 * columns * 128 * max(rows / 64 + 2, rows / 1024 + 2)
        assert found[0] <= at_most
        assert found[1] <= 4 * columns
