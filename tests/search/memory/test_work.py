import json
from collections import Counter
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from objectives.language_model import LanguageModel
from search.memory.cuda import Cuda
from search.memory.sample import Sample
from search.memory.target import Call, Cpu
from search.memory.trace import trace
from search.memory.work import Arithmetic, OperatorWork, Work, operator_work
from search.objective import Split
from search.training import TrainingRun
from search.training_params import micro_batch_size

_aten = torch.ops.aten


def counted(operator, *args, **kwargs):
    result = operator(*args, **kwargs)
    call = Call(operator=operator, args=args, kwargs=kwargs, result=result, in_backward=False)
    return operator_work(call, Cpu().holds)


def zeros(*shape, dtype=torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


class TestGolden:
    def test_a_product_multiplies_and_adds(self):
        # 2 x 3 x 4 x 5 operations on 12 + 20 + 15 numbers of 4 B
        work = counted(_aten.mm.default, zeros(3, 4), zeros(4, 5))
        assert work == OperatorWork(Arithmetic.FP32, 120, 4 * 47)

    @pytest.mark.parametrize(
        ("dtype", "arithmetic"),
        [
            (torch.bfloat16, "bf16"),
            (torch.float16, "fp16"),
            (torch.float32, "fp32"),
            (torch.float64, "fp64"),
        ],
    )
    def test_a_product_computes_with_the_type_of_its_operands(self, dtype, arithmetic):
        matrix = zeros(2, 2, dtype=dtype)
        work = counted(_aten.bmm.default, matrix[None], matrix[None])
        assert work == (arithmetic, 16, 12 * dtype.itemsize)

    def test_a_convolution_of_fp32_takes_tf32(self):
        args = (None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        work = counted(_aten.convolution.default, zeros(1, 2, 4, 4), zeros(3, 2, 3, 3), *args)
        # 2 x 2 places, 3 channels, 2 x 9 products each, 2 operations a product
        assert (work.arithmetic, work.flops) == (Arithmetic.TF32, 2 * 4 * 3 * 18)

    def test_attention_on_a_cpu_counts_as_on_cuda(self):
        heads = zeros(1, 2, 8, 4)
        cpu = counted(_aten._scaled_dot_product_flash_attention_for_cpu.default, *[heads] * 3)
        # two products of 8 x 8 x 4 for each of 2 heads
        assert cpu.flops == 2 * 2 * (2 * 8 * 8 * 4)
        assert cpu.arithmetic is Arithmetic.FP32

    def test_a_sum_moves_what_it_reads_and_writes(self):
        assert counted(_aten.add.Tensor, zeros(10), zeros(10)) == ("", 0, 120)
        assert counted(_aten.add_.Tensor, zeros(10), zeros(10)) == ("", 0, 120)

    def test_what_is_overwritten_is_not_read(self):
        assert counted(_aten.zero_.default, zeros(10)).num_bytes == 40
        assert counted(_aten.copy_.default, zeros(10), zeros(10)).num_bytes == 80

    def test_lists_changed_in_place_are_written(self):
        lists = [zeros(10), zeros(5)], [zeros(10), zeros(5)]
        assert counted(_aten._foreach_add_.List, *lists).num_bytes == 3 * 60

    def test_an_expanded_number_is_read_once(self):
        assert counted(_aten.mul.Tensor, zeros(10), zeros(1).expand(10)).num_bytes == 84

    def test_a_table_is_read_where_it_is_picked(self):
        # 3 indices of 8 B, 3 rows of 4 numbers read and written
        picked = counted(_aten.embedding.default, zeros(1000, 4), zeros(3, dtype=torch.int64))
        assert picked.num_bytes == 3 * 8 + 2 * 3 * 4 * 4

    @pytest.mark.parametrize(
        ("operator", "args"),
        [
            (_aten.view.default, ([4],)),
            (_aten.t.default, ()),
            (_aten.detach.default, ()),
            (_aten._unsafe_view.default, ([4],)),
            (_aten.empty_like.default, ()),
        ],
    )
    def test_metadata_is_free(self, operator, args):
        assert counted(operator, zeros(2, 2), *args) is None

    def test_what_is_elsewhere_does_not_count(self):
        call = Call(
            operator=_aten.add.Tensor,
            args=(zeros(2), zeros(2)),
            kwargs={},
            result=zeros(2),
            in_backward=False,
        )
        assert operator_work(call, lambda _: False) is None


class Products(Sample):
    """One linear layer without a bias, 8 to 4."""

    def model(self, params) -> nn.Module:  # noqa: ARG002 - as the contract has it
        return nn.Linear(8, 4, bias=False)

    def batch(self, params, split) -> Mapping[str, Tensor]:  # noqa: ARG002 - the same
        return {"inputs": torch.zeros(micro_batch_size(params), 8)}

    def num_tokens(self, batch) -> int:
        return len(batch["inputs"])

    def loss(self, model, batch) -> Tensor:
        return model(batch["inputs"]).square().mean()


class Penalized(Products):
    """Runs a backward pass inside its loss."""

    def loss(self, model, batch) -> Tensor:
        loss = super().loss(model, batch)
        if not torch.is_grad_enabled():
            return loss
        (gradient,) = torch.autograd.grad(loss, model.weight, create_graph=True)
        return loss + gradient.square().sum()


class TestStep:
    def test_a_step_of_one_layer_by_hand(self):
        # forward and the weight's gradient: 2 x 16 x 8 x 4 each; the input needs none
        work = trace(Products(), {"batch_size": 16}).work
        assert work.flops == {Arithmetic.FP32: 2 * 2 * 16 * 8 * 4}

    def test_the_update_belongs_to_the_bytes(self):
        plain, adam = (
            trace(Products(), {"batch_size": 1, "clip_norm": 0.0, "optimizer": kind}).work
            for kind in ("sgd", "adamw")
        )
        # the second moment alone is read and written, 32 weights of 4 B each
        assert adam.num_bytes > plain.num_bytes + 2 * 32 * 4
        assert adam.flops == plain.flops

    @pytest.mark.parametrize("objective", [Products, Penalized, Sample])
    def test_micro_batches_that_are_not_run_count(self, objective):
        few, many = (
            trace(objective(), {"batch_size": 4 * count, "micro_batch_size": 4}).work
            for count in (2, 7)
        )
        assert few.operators == many.operators
        assert many.num_waiting == 5
        # a step of seven is a step of two and five times the difference of two and three
        three = trace(objective(), {"batch_size": 12, "micro_batch_size": 4}).work
        more = three.counts() - few.counts()
        assert many.counts() == few.counts() + Counter({k: 5 * n for k, n in more.items()})
        single = trace(objective(), {"batch_size": 4}).work
        assert sum(many.flops.values()) == 7 * sum(single.flops.values())

    def test_tf32_is_what_was_asked_for(self):
        work = trace(Sample(), {"batch_size": 2, "precision": "tf32"}).work
        assert set(work.flops) == {Arithmetic.TF32}

    def test_mixed_precision_computes_in_bf16(self):
        work = trace(Sample(), {"batch_size": 2, "precision": "bf16-mixed"}).work
        assert set(work.flops) == {Arithmetic.BF16}

    def test_a_gpu_that_is_not_here_computes_what_a_cpu_does(self):
        params = {"batch_size": 2, "precision": "bf16-mixed"}
        here, there = (
            trace(Sample(), params, target=target).work
            for target in (Cpu(), Cuda(architecture=(8, 0)))
        )
        assert there.flops == here.flops
        # fewer operators: the optimizer goes over all tensors at once
        assert there.num_operators < here.num_operators

    def test_checkpointing_computes_more(self):
        plain, checkpointed = (
            trace(Sample(), {"batch_size": 4, "activation_checkpointing": choice}).work
            for choice in (False, True)
        )
        assert sum(plain.flops.values()) < sum(checkpointed.flops.values())
        assert sum(checkpointed.flops.values()) < 4 / 3 * sum(plain.flops.values())

    @settings(max_examples=3)
    @given(batch=st.integers(1, 8), length=st.integers(2, 40))
    def test_equals_what_torch_counts_of_a_real_step(self, batch, length):
        params = {"batch_size": batch, "sequence_length": length, "width": 16, "depth": 1}
        objective = LanguageModel(held_out_tokens=2_000, evaluation_context=64)
        run = TrainingRun(
            objective,
            params,
            num_tokens=2**40,
            device=torch.device("cpu"),
            batches=iter([objective.batch(params, Split.TRAIN)]),
        )
        with (
            FlopCounterMode(display=False) as counter,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            run.step()
        # attention by products of matrices: the backward pass repeats none of the forward's
        attention = 2 * 2 * batch * length * length * 16
        assert sum(trace(objective, params).work.flops.values()) == counter.get_total_flops() + (
            attention // 2
        )


def test_counts_of_an_empty_step():
    assert (Work().flops, Work().num_bytes, Work().num_operators) == ({}, 0, 0)


def test_a_step_is_read_back_by_its_counts():
    sum_of_ten = OperatorWork(Arithmetic.NONE, 0, 120)
    product = OperatorWork(Arithmetic.BF16, 120, 188)
    work = Work(
        operators=(product, sum_of_ten, product),
        repeated_from=1,
        repeated_to=3,
        num_waiting=2,
    )
    read = Work.from_json(json.loads(json.dumps(work.to_json())))
    assert read.counts() == work.counts() == {product: 4, sum_of_ten: 3}
