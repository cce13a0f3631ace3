import pytest
import torch
from torch import nn
from torch.nn import functional

from search.memory.cuda import Cuda
from search.memory.trace import record

GPU = torch.device("cpu", 0)


def numbers(*shape, needs_grad=True, dtype=torch.float32):
    return torch.empty(shape, device=GPU, requires_grad=needs_grad, dtype=dtype)


def blocks(run, operator):
    """Bytes of what an operator returns and asks for beside it, in order."""
    events = record(lambda _: run(), Cuda(architecture=(8, 0)))
    return [e.num_bytes for e in events if e.operator.split(".")[1] == operator and e.num_bytes > 0]


class TestSoftmaxBackward:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_multiplies_gradient_and_result_first(self, dtype):
        def run():
            numbers(4, 100, dtype=dtype).softmax(-1).backward(numbers(4, 100, dtype=dtype))

        assert blocks(run, "_softmax_backward_data") == [400 * dtype.itemsize] * 2

    def test_the_logarithm_does_not(self):
        def run():
            numbers(4, 100).log_softmax(-1).backward(numbers(4, 100))

        assert blocks(run, "_log_softmax_backward_data") == [1600]


class TestEmbeddingBackward:
    @staticmethod
    def looked_up(count, num_rows, dtype=torch.float32, **options):
        def run():
            indices = torch.empty(count, device=GPU, dtype=torch.int64)
            weight = numbers(num_rows, 16, dtype=dtype)
            functional.embedding(indices, weight, **options).sum().backward()

        return blocks(run, "embedding_dense_backward")

    def test_few_indices_need_nothing(self):
        assert self.looked_up(3072, 50) == [50 * 16 * 4]

    def test_many_are_sorted_and_summed_in_tens(self):
        # 4,000 sorted indices and their order, which begins as 0, 1, 2...; room for both. When they
        # are sorted, the gradient; of the 50 rows: where each begins, in how many parts, where
        # those begin; the parts, 4,000 / 10 and one more for each row; their sums.
        before = [4000 * 8] * 3 + [2 * 4000 * 8]
        after = [50 * 8] * 3 + [450 * 8, 450 * 16 * 4]
        assert self.looked_up(4000, 50) == [*before, 50 * 16 * 4, *after]

    def test_half_precision_is_summed_in_fp32(self):
        assert self.looked_up(4000, 50, torch.bfloat16)[-1] == 450 * 16 * 4

    def test_frequencies_are_counted(self):
        found = self.looked_up(100, 50, scale_grad_by_freq=True)
        assert found[:6] == [800, 800, 800, 1600, 800, 50 * 16 * 4]


class TestNorms:
    @staticmethod
    def layer_norm(rows, columns, dtype=torch.float32):
        def run():
            norm = nn.LayerNorm(columns, device=GPU, dtype=dtype)
            norm(numbers(rows, columns, dtype=dtype)).backward(numbers(rows, columns, dtype=dtype))

        return blocks(run, "native_layer_norm"), blocks(run, "native_layer_norm_backward")

    def test_mean_and_deviation_are_fp32(self):
        forward, _ = self.layer_norm(10, 64, torch.bfloat16)
        assert forward == [10 * 64 * 2, 40, 40]

    def test_few_rows_need_nothing(self):
        _, backward = self.layer_norm(65_536, 64)
        assert backward == [65_536 * 64 * 4, 256, 256]

    def test_many_short_rows_are_summed_in_parts(self):
        # 2 blocks of 32 columns, and one for each 32 of 65,568 rows.
        _, backward = self.layer_norm(65_568, 64)
        assert backward[3:] == [2_049 * 64 * 4] * 2

    def test_long_rows_are_not(self):
        _, backward = self.layer_norm(65_568, 54 * 32)
        assert len(backward) == 3

    def test_rms_norm_keeps_one_number_for_each_row(self):
        def run():
            norm = nn.RMSNorm(16, device=GPU)
            norm(numbers(8, 16)).backward(numbers(8, 16))

        assert blocks(run, "_fused_rms_norm") == [8 * 16 * 4, 8 * 4]
        assert blocks(run, "_fused_rms_norm_backward") == [8 * 16 * 4, 16 * 4]
        assert blocks(run, "pow") == []

    def test_rms_norm_of_two_types_is_broken_up(self):
        def run():
            return nn.RMSNorm(16, device=GPU)(numbers(8, 16, dtype=torch.bfloat16))

        assert blocks(run, "_fused_rms_norm") == []
        assert blocks(run, "pow") == [8 * 16 * 4]

    def test_batch_norm_keeps_fp32(self):
        def run():
            return nn.BatchNorm1d(6, device=GPU, dtype=torch.bfloat16)(
                numbers(3, 6, dtype=torch.bfloat16)
            )

        assert blocks(run, "native_batch_norm") == [36, 24, 24]

    def test_group_norm_sums_by_channel(self):
        def run():
            nn.GroupNorm(2, 6, device=GPU)(numbers(3, 6, 5)).backward(numbers(3, 6, 5))

        inside = [3 * 6 * 4] * 3 + [3 * 2 * 4] * 2
        assert blocks(run, "native_group_norm_backward")[3:] == inside


def test_norms_of_gradients_are_taken_by_chunk():
    def run():
        torch._foreach_norm([numbers(10, needs_grad=False), numbers(200_000, needs_grad=False)])

    # A number for each tensor; 4 chunks of 65,536 in the longest, for both.
    assert blocks(run, "_foreach_norm") == [4, 4, 2 * 4 * 4]


def test_the_gradient_of_an_index_is_sorted():
    def run():
        indices = torch.empty(7, device=GPU, dtype=torch.int64)
        numbers(50, 16)[indices].sum().backward()

    assert blocks(run, "index_put")[-3:] == [56] * 3


def test_a_kernel_casts_by_itself():
    # On a CPU the bf16 input would be copied in fp32 first.
    def run():
        return numbers(100, dtype=torch.bfloat16) + numbers(100)

    assert blocks(run, "add") == [400]


def test_the_mask_of_dropout_is_there_before_what_is_left():
    def run():
        functional.dropout(numbers(100), 0.5)

    assert blocks(run, "native_dropout") == [100, 400]
