import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from search.errors import InputError
from search.memory.cuda import Cuda
from search.memory.cuda_attention import Attention, chosen_backend, matmul_alignment
from search.memory.trace import record

GPU = torch.device("cpu", 0)
FLASH, EFFICIENT = SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION
CUDNN, MATH = SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH
HALF, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32


def heads(*, dtype=BF16, width=64, length=128, count=8, needs_grad=True):
    shape = (2, count, length, width)
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=needs_grad)


def chosen(
    architecture,
    query,
    *,
    key=None,
    value=None,
    mask=None,
    dropout=0.0,
    causal=False,
    grouped=False,
):
    key = query if key is None else key
    attention = Attention(
        query=query,
        key=key,
        value=key if value is None else value,
        mask=mask,
        dropout=dropout,
        causal=causal,
        grouped=grouped,
        architecture=architecture,
    )
    return chosen_backend(attention)


class TestChoice:
    @pytest.mark.parametrize(
        ("architecture", "dtype", "backend"),
        [
            ((8, 0), BF16, FLASH),
            ((8, 0), HALF, FLASH),
            ((8, 0), FP32, EFFICIENT),
            ((8, 0), torch.float64, MATH),
            ((9, 0), BF16, CUDNN),
            ((10, 0), HALF, CUDNN),
            ((9, 0), FP32, EFFICIENT),
            ((12, 0), BF16, FLASH),
            ((7, 5), HALF, EFFICIENT),
            ((7, 5), BF16, MATH),
            ((7, 0), FP32, EFFICIENT),
            ((3, 7), FP32, MATH),
        ],
    )
    def test_by_architecture_and_type(self, architecture, dtype, backend):
        assert chosen(architecture, heads(dtype=dtype)) == backend

    def test_a_mask_forbids_flash_but_not_cudnn(self):
        mask = torch.ones(128, 128, dtype=torch.bool, device="meta")
        assert chosen((8, 0), heads(), mask=mask) == EFFICIENT
        assert chosen((9, 0), heads(), mask=mask) == CUDNN

    def test_a_mask_with_gaps_in_its_rows_leaves_mathematics(self):
        mask = torch.ones(128, 128, device="meta").t()
        assert chosen((8, 0), heads(), mask=mask) == MATH

    @pytest.mark.parametrize(
        ("width", "backend"),
        [(60, FLASH), (256, FLASH), (264, EFFICIENT), (257, MATH)],
    )
    def test_width_of_a_head(self, width, backend):
        assert chosen((8, 0), heads(width=width)) == backend

    @pytest.mark.parametrize(("width", "backend"), [(6, MATH), (4, EFFICIENT), (12, EFFICIENT)])
    def test_fp32_needs_a_multiple_of_four(self, width, backend):
        assert chosen((8, 0), heads(dtype=FP32, width=width)) == backend

    def test_alignment_of_the_efficient_kernel(self):
        assert [matmul_alignment(HALF, arch) for arch in ((6, 1), (7, 5), (8, 0))] == [1, 8, 8]
        assert [matmul_alignment(FP32, arch) for arch in ((6, 1), (7, 5), (8, 0))] == [1, 1, 4]

    @pytest.mark.parametrize(
        ("width", "dropout", "needs_grad", "backend"),
        [
            (192, 0.1, True, FLASH),
            (224, 0.0, True, EFFICIENT),
            (256, 0.0, True, FLASH),
            (256, 0.1, True, EFFICIENT),
            (224, 0.1, False, FLASH),
        ],
    )
    def test_wide_heads_train_with_flash_on_large_chips_alone(
        self, width, dropout, needs_grad, backend
    ):
        query = heads(width=width, needs_grad=needs_grad)
        assert chosen((8, 6), query, dropout=dropout) == backend
        assert chosen((8, 9), query, dropout=dropout) == backend
        assert chosen((8, 0), query, dropout=dropout) == FLASH

    def test_no_gradient_under_no_grad(self):
        with torch.no_grad():
            assert chosen((8, 6), heads(width=224)) == FLASH

    def test_causal_flash_needs_a_square(self):
        key = heads(length=64)
        assert chosen((8, 0), heads(), key=key, causal=True) == EFFICIENT
        assert chosen((8, 0), heads(), key=key) == FLASH

    def test_groups_are_for_flash_cudnn_and_mathematics(self):
        key = heads(count=2)
        mask = torch.ones(128, 128, dtype=torch.bool, device="meta")
        assert chosen((8, 0), heads(), key=key, grouped=True) == FLASH
        assert chosen((9, 0), heads(), key=key, grouped=True) == CUDNN
        assert chosen((8, 0), heads(), key=key, grouped=True, mask=mask) == MATH
        assert chosen((8, 0), heads(dtype=FP32), key=heads(dtype=FP32, count=2), grouped=True) == (
            MATH
        )

    def test_three_dimensions_leave_mathematics(self):
        assert chosen((8, 0), heads()[0]) == MATH

    @pytest.mark.parametrize("dropout", [0.125, 0.1])
    def test_cudnn_takes_sixteenths_of_dropout(self, dropout):
        assert chosen((9, 0), heads(), dropout=dropout) == (CUDNN if dropout == 0.125 else FLASH)

    def test_cudnn_leaves_wide_heads_to_flash(self):
        assert chosen((9, 0), heads(width=128)) == CUDNN
        assert chosen((9, 0), heads(width=136)) == FLASH

    def test_the_user_switches_backends_off(self):
        with sdpa_kernel([EFFICIENT, MATH]):
            assert chosen((8, 0), heads()) == EFFICIENT
        with sdpa_kernel(MATH):
            assert chosen((9, 0), heads()) == MATH
        assert chosen((8, 0), heads()) == FLASH

    def test_the_user_sets_the_order(self):
        with sdpa_kernel([EFFICIENT, FLASH, MATH], set_priority=True):
            assert chosen((9, 0), heads()) == EFFICIENT

    def test_cudnn_can_be_put_last(self, monkeypatch):
        monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
        assert chosen((9, 0), heads()) == FLASH

    def test_none_left_is_said(self):
        with sdpa_kernel(FLASH), pytest.raises(InputError, match=r"enable SDPBackend\.MATH"):
            chosen((7, 5), heads())


def blocks(run, architecture=(8, 0)):
    """Bytes of every block by operator, in order, those that a run allocates after `start`."""
    return [
        (event.operator.split(".")[1], event.num_bytes)
        for event in record(run, Cuda(architecture=architecture))
        if event.num_bytes > 0
    ]


def attended(*, dtype=BF16, width=64, count=4, groups=None, mask=None, dropout=0.0, length=128):
    """Forward and backward of one attention: B = 2, T = `length`."""

    def run(_):
        shape = (2, count, length, width)
        query, key, value = (
            torch.empty(2, heads_of, length, width, dtype=dtype, device=GPU, requires_grad=True)
            for heads_of in (count, groups or count, groups or count)
        )
        bias = None if mask is None else torch.ones(mask, dtype=torch.bool, device=GPU)
        out = functional.scaled_dot_product_attention(
            query, key, value, bias, dropout, scale=0.1, enable_gqa=groups is not None
        )
        out.backward(torch.empty(shape, dtype=dtype, device=GPU))

    return run


def of(operator, found):
    return [num_bytes for name, num_bytes in found if name == operator]


class TestFlash:
    FORWARD = "_scaled_dot_product_flash_attention"
    BACKWARD = FORWARD + "_backward"

    def test_by_hand(self):
        found = blocks(attended(count=128))
        # (2, 128, 128, 64) in bf16, one fp32 sum a query, two 8-byte numbers and one for dropout;
        # 2 x 128 x 2 blocks of queries keep 216 processors busy: nothing is divided.
        full = 2 * 128 * 128 * 64 * 2
        assert of(self.FORWARD, found) == [full, 2 * 128 * 128 * 4, 16, 8]
        # Gradient and result copied to (B, T, H, E); three gradients; a dot product a query; the
        # gradient of the queries in fp32.
        sums = 2 * 128 * 128 * 4
        assert of(self.BACKWARD, found) == [full] * 2 + [full] * 3 + [sums, full * 2]

    def test_length_and_width_are_rounded_up(self):
        found = blocks(attended(width=40, length=100, dropout=0.1))
        # T = 128 instead of 100, E = 64 instead of 40.
        assert of(self.BACKWARD, found)[-2:] == [2 * 4 * 128 * 4, 2 * 4 * 128 * 64 * 4]

    def test_an_odd_width_is_padded_to_eight(self):
        found = blocks(attended(width=36, dropout=0.1))
        assert of("constant_pad_nd", found)[:3] == [2 * 4 * 128 * 40 * 2] * 3

    @staticmethod
    def looked_at(*, dropout=0.0, needs_grad=False):
        def run(_):
            query = torch.empty(2, 4, 512, 64, dtype=BF16, device=GPU, requires_grad=needs_grad)
            functional.scaled_dot_product_attention(query, query, query, dropout_p=dropout)

        return run

    def test_few_queries_divide_the_keys(self):
        # 2 x 4 x 8 blocks of queries for 216 processors, 512 keys in 2 blocks: 2 parts.
        parts = [2 * 2 * 4 * 512 * 4, 2 * 2 * 4 * 512 * 64 * 4]
        assert of(self.FORWARD, blocks(self.looked_at()))[4:] == parts

    @pytest.mark.parametrize("options", [{"dropout": 0.1}, {"needs_grad": True}])
    def test_neither_with_dropout_nor_in_training(self, options):
        assert of(self.FORWARD, blocks(self.looked_at(**options)))[4:] == []

    def test_groups_are_written_out_in_the_backward_pass(self):
        plain, grouped = (
            of(self.BACKWARD, blocks(attended(count=8, groups=groups, dropout=0.1)))
            for groups in (None, 2)
        )
        full = 2 * 8 * 128 * 64 * 2
        assert grouped == [*plain[:2], full, full // 4, full // 4, *plain[5:], full, full]


class TestEfficient:
    FORWARD = "_scaled_dot_product_efficient_attention"
    BACKWARD = FORWARD + "_backward"

    def test_fp32_by_hand(self):
        found = blocks(attended(dtype=FP32, length=100))
        full = 2 * 4 * 100 * 64 * 4
        # One sum a query, the length rounded up to 32. Seed and offset lie on the host.
        assert of(self.FORWARD, found) == [full, 2 * 4 * 128 * 4]
        # The gradient of the result copied to (B, T, H, E); three gradients; a product with the
        # result, summed, and laid out anew; 2 x 1 blocks of 64 x 64 sums with 16 bytes of lock.
        dots = 2 * 4 * 100 * 4
        workspace = 2 * 4 * 2 * (16 + 64 * 64 * 4)
        assert of(self.BACKWARD, found) == [full] * 4 + [full, dots, dots, workspace]

    def test_the_product_is_gone_before_the_sums_come(self):
        events = record(attended(dtype=FP32), Cuda(architecture=(8, 0)))
        inside = [e.num_bytes for e in events if e.operator.endswith("attention_backward.default")]
        product = 2 * 4 * 128 * 64 * 4
        assert inside.index(-product) < inside.index(2 * 4 * 2 * (16 + 64 * 64 * 4))

    def test_half_precision_counts_in_the_kernel(self):
        found = blocks(attended(dtype=HALF), architecture=(7, 5))
        full, dots = 2 * 4 * 128 * 64 * 2, 2 * 4 * 128 * 4
        workspace = 2 * 4 * 2 * (16 + 64 * 64 * 4)
        assert of(self.BACKWARD, found) == [full] * 4 + [dots, workspace]

    @pytest.mark.parametrize(
        ("architecture", "queries", "keys"), [((8, 0), 128, 128), ((8, 6), 128, 64)]
    )
    def test_shared_memory_decides_the_blocks(self, architecture, queries, keys):
        with sdpa_kernel(EFFICIENT):
            found = blocks(attended(width=96), architecture=architecture)
        num_blocks = math.ceil(128 / queries) * math.ceil(96 / keys)
        workspace = 2 * 4 * num_blocks * (16 + queries * keys * 4)
        assert of(self.BACKWARD, found)[-1] == workspace

    def test_wide_heads_keep_sums_of_keys_and_values(self):
        with sdpa_kernel(EFFICIENT):
            found = blocks(attended(width=128), architecture=(8, 6))
        # 64 x 64 blocks: keys and values in 2 parts of 64 x 128, queries in 2 x 2 blocks.
        floats = 2 * (2 * 64 * 128) + 4 * (4 + 64 * 64)
        assert of(self.BACKWARD, found)[-1] == 2 * 4 * floats * 4

    def test_heads_above_128_are_summed_in_fp32(self):
        with sdpa_kernel(EFFICIENT):
            found = blocks(attended(width=136))
        assert of(self.FORWARD, found)[-1] == 2 * 4 * 128 * 136 * 4
        assert of(self.FORWARD, blocks(attended(dtype=FP32, width=136)))[2:] == []

    def test_a_boolean_mask_becomes_numbers_in_the_type_of_the_queries(self):
        found = blocks(attended(mask=(2, 1, 128, 128)))
        assert of("where", found) == [2 * 128 * 128 * 2]
        assert of("constant_pad_nd", found) == []

    def test_rows_of_a_mask_are_padded_to_eight(self):
        found = blocks(attended(mask=(1, 1, 100, 100), length=100))
        assert of("constant_pad_nd", found)[0] == 100 * 104 * 2


class TestMathematics:
    def test_scores_are_kept_in_fp32(self):
        found = blocks(attended(dtype=BF16, groups=2, mask=(128, 128)))
        scores = 2 * 4 * 128 * 128 * 4
        # Before rows without a key are made 0: the softmax, which scores and rows those are.
        inside = [scores, scores // 4, 2 * 4 * 128]
        assert of("_safe_softmax", found) == [scores, *inside]
        # Keys and values, in fp32, written out for every head.
        assert of("clone", found)[:2] == [2 * 4 * 128 * 64 * 4] * 2
        # The mask is added where the scores are.
        assert of("add", found) == of("add_", found) == []

    def test_numbers_are_those_of_torch(self):
        torch.manual_seed(0)
        query, key, value = (torch.randn(2, 4, 6, 8) for _ in range(3))
        mask = torch.rand(6, 6) > 0.3
        with sdpa_kernel(MATH):
            expected = functional.scaled_dot_product_attention(query, key, value, mask)
            with Cuda(architecture=(8, 0)).installed():
                found = functional.scaled_dot_product_attention(query, key, value, mask)
        assert torch.equal(found, expected)

    @pytest.mark.parametrize("causal", [True, False])
    def test_groups_too(self, causal):
        torch.manual_seed(0)
        query, key, value = (torch.randn(2, count, 6, 8) for count in (4, 2, 2))
        with sdpa_kernel(MATH):
            expected, found = (
                _grouped(query, key, value, causal=causal, installed=installed)
                for installed in (False, True)
            )
        assert torch.equal(found, expected)


def _grouped(query, key, value, *, causal, installed):
    def run():
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=True
        )

    if not installed:
        return run()
    with Cuda(architecture=(8, 0)).installed():
        return run()


def test_torch_is_as_before_afterwards():
    with Cuda(architecture=(8, 0)).installed():
        pass
    with FakeTensorMode():
        x = torch.empty(2, 3, device=GPU, requires_grad=True)
        assert "NativeDropout" not in type(functional.dropout(x, 0.5).grad_fn).__name__
