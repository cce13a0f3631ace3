import json

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from search.memory.convolution import convolution_backward_bytes, convolution_bytes

ALL = [True, True, True]
NO_BIAS = [True, True, False]


@pytest.fixture
def blocks_of_8(monkeypatch):
    """Channels in blocks of 8, as on AVX2, whatever this machine has."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")


def fake(*shape, dtype=torch.float32):
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype)


def forward(source, weight, *, stride=1, padding=1, transposed=False, groups=1):
    sizes = ([stride] * 2, [padding] * 2, [1, 1], transposed, [0, 0], groups)
    return convolution_bytes((source, weight, None, *sizes))


def backward(gradient, source, weight, *, padding=1, groups=1, wanted=NO_BIAS):
    sizes = ([1, 1], [padding] * 2, [1, 1], False, [0, 0], groups)
    return convolution_backward_bytes((gradient, source, weight, None, *sizes, wanted))


@pytest.mark.usefixtures("blocks_of_8")
class TestBlocked:
    def test_source_weights_and_result_are_blocked(self):
        # 32 samples x 16 channels x 10 x 10 x 4 B = 204,800 B of source and of result, 9,216 B of
        # weights, blocked; the plain result, as large, is not there yet.
        assert forward(fake(32, 16, 10, 10), fake(16, 16, 3, 3)) == 204_800 + 9_216

    def test_the_blocked_result_waits_for_the_plain_one(self):
        # Few channels are read as they are: only the blocked result, 204,800 B, is left.
        assert forward(fake(32, 3, 10, 10), fake(16, 3, 3, 3)) == 204_800

    def test_channels_fill_whole_blocks(self):
        # 12 channels take the room of 16: 204,800 B for source and result each, 9,216 B of
        # weights; the plain result of 153,600 B comes when source and weights are gone.
        assert forward(fake(32, 12, 10, 10), fake(12, 12, 3, 3)) == 2 * 204_800 + 9_216 - 153_600

    def test_a_pointwise_kernel_blocks_few_channels_too(self):
        # 3 and 4 channels take the room of 8 each, 32 x 8 x 100 x 4 B, the weights 8 x 8 x 4 B;
        # the plain result of 51,200 B is not there yet.
        found = forward(fake(32, 3, 10, 10), fake(4, 3, 1, 1), padding=0)
        assert found == 2 * 102_400 + 256 - 51_200

    def test_both_gradients_one_after_another(self):
        # Beside the source's gradient: the blocked source and gradient and the blocked weights,
        # where their plain gradient, as large, is not there yet.
        source, weight = fake(32, 16, 10, 10), fake(16, 16, 3, 3)
        assert backward(source, source, weight) == 2 * 204_800

    def test_a_picture_is_read_as_it_is(self):
        # Its gradient is not asked for. Blocked: 204,800 B of gradient, 16 x 8 x 9 x 4 B of
        # weights, of which 16 x 3 x 9 x 4 B are the result's.
        found = backward(
            fake(32, 16, 10, 10),
            fake(32, 3, 10, 10),
            fake(16, 3, 3, 3),
            wanted=[False, True, False],
        )
        assert found == 204_800 + 4_608 - 1_728

    def test_channels_last_needs_no_other_layout(self):
        source = fake(32, 16, 10, 10).to(memory_format=torch.channels_last)
        weight = fake(16, 16, 3, 3).to(memory_format=torch.channels_last)
        assert forward(source, weight) == 9_216

    def test_groups_that_fill_no_block_stay_plain(self):
        # The result twice, and nothing else of note: weights of 12 x 3, filled up, are no more.
        assert forward(fake(32, 12, 10, 10), fake(12, 3, 3, 3), groups=4) == 153_600

    def test_transposed_ones_are_left_out(self):
        assert forward(fake(32, 16, 10, 10), fake(16, 16, 3, 3), transposed=True) == 0


class TestColumns:
    """One sample of fp32 is torch's own matter on every machine."""

    def test_a_column_for_each_place(self):
        # 100 places of 16 channels x 9 taps x 4 B.
        assert forward(fake(1, 16, 10, 10), fake(8, 16, 3, 3)) == 100 * 16 * 9 * 4

    def test_fewer_places_with_a_stride(self):
        assert forward(fake(1, 16, 10, 10), fake(8, 16, 3, 3), stride=2) == 25 * 16 * 9 * 4

    def test_a_pointwise_kernel_reads_the_source(self):
        assert forward(fake(1, 16, 10, 10), fake(8, 16, 1, 1), padding=0) == 0

    def test_the_columns_come_again_for_the_gradient_of_the_weights(self):
        sizes = fake(1, 8, 10, 10), fake(1, 16, 10, 10), fake(8, 16, 3, 3)
        assert backward(*sizes) == 100 * 16 * 9 * 4
        assert backward(*sizes, wanted=[True, False, False]) == 0


_MEASURED = """
    from search.memory.scratch import scratch_bytes
    kind, sizes, how = {case}
    dtype = getattr(torch, kind)
    source = torch.ones(sizes[0], dtype=dtype)
    weight = torch.ones(sizes[1], dtype=dtype)
    aten, found = torch.ops.aten, []
    settings = ([1, 1], how, [1, 1], False, [0, 0], 1)
    for _ in range(2):
        args = (source, weight, None, *settings)
        with measure_peak(device) as forward:
            result = aten.convolution(*args)
        expected = [scratch_bytes(aten.convolution.default, args)]
        measured = [forward.num_bytes - result.nbytes]
        args = (result, source, weight, [len(weight)], *settings, [True, True, True])
        with measure_peak(device) as backward:
            gradients = aten.convolution_backward(*args)
        expected.append(scratch_bytes(aten.convolution_backward.default, args))
        measured.append(backward.num_bytes - sum(one.nbytes for one in gradients))
        del result, gradients
    print(json.dumps([expected, measured]))
"""


@pytest.mark.parametrize(
    "case",
    [
        ("float32", ([64, 16, 64, 64], [16, 16, 3, 3]), [1, 1]),
        ("float32", ([64, 12, 64, 64], [24, 12, 1, 1]), [0, 0]),
        ("bfloat16", ([64, 8, 64, 64], [8, 8, 3, 3]), [1, 1]),
        ("bfloat16", ([64, 16, 64, 64], [16, 16, 1, 1]), [0, 0]),
    ],
)
def test_is_what_a_convolution_really_needs(fresh, case):
    expected, measured = fresh(_MEASURED.replace("{case}", json.dumps(case)))
    assert measured == pytest.approx(expected, abs=1.5 * 2**20)
