import io
import subprocess
import sys

import pytest
import torch
from torch import nn

from search import optimizers
from search.memory.cuda import Cuda
from search.memory.events import Part
from search.memory.sample import Sample
from search.memory.trace import trace
from search.optimizers import (
    Implementation,
    Optimizer,
    has_torchao,
    new_optimizer,
    refusal,
    set_learning_rate,
)
from search.training import TrainingRun
from search.training_params import TrainingParams

needs_torchao = pytest.mark.skipif(not has_torchao(), reason="torchao is not installed")
EIGHT_BIT = {"optimizer": "adamw-8bit"}
MIB = 2**20


def over(*shapes, **chosen):
    """An 8-bit AdamW over parameters of these shapes, with gradients."""
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    wanted = {"learning_rate": 1e-2, "weight_decay": 0.01, "momentum": 0.0, **chosen}
    optimizer = new_optimizer(params, Optimizer.ADAMW_8BIT, Implementation.AUTO, **wanted)
    return optimizer, params


class TestRefusal:
    def test_8_bits_need_torchao(self, monkeypatch):
        monkeypatch.setattr(optimizers, "has_torchao", lambda: False)
        with pytest.raises(ValueError, match=r"adamw-8bit needs torchao \(pip install"):
            TrainingParams.of(EIGHT_BIT)

    @needs_torchao
    @pytest.mark.parametrize("implementation", list(Implementation)[1:])
    def test_8_bits_have_one_implementation(self, implementation):
        assert refusal(Optimizer.ADAMW_8BIT, Implementation.AUTO) is None
        assert "take auto" in str(refusal(Optimizer.ADAMW_8BIT, implementation))


@needs_torchao
class TestEightBits:
    def test_keep_a_byte_for_each_number_of_a_large_parameter(self):
        optimizer, (large, small, uneven) = over((64, 64), (63, 64), (65, 65))
        optimizer.step()
        first = optimizer.state[large]["exp_avg"]
        # A byte a number, 4 bytes a scale for each 256, and a table of the 256 values of a byte.
        assert (first.codes.nbytes, first.scale.nbytes, first.qmap.nbytes) == (4096, 64, 1024)
        for param in (small, uneven):  # fewer than 4,096, or no multiple of 256
            assert optimizer.state[param]["exp_avg"].nbytes == param.nbytes

    def test_step_as_adamw_does_to_a_few_percent(self):
        optimizer, params = over((64, 64), (128, 64))
        plain = [nn.Parameter(param.detach().clone()) for param in params]
        adamw = torch.optim.AdamW(plain, lr=1e-2, weight_decay=0.01)
        before = [param.detach().clone() for param in params]
        for _ in range(5):
            for one, other in zip(params, plain, strict=True):
                one.grad = torch.randn_like(one)
                other.grad = one.grad.clone()
            optimizer.step()
            adamw.step()
        for start, found, wanted in zip(before, params, plain, strict=True):
            error = torch.linalg.vector_norm((found - wanted).detach())
            assert error < 0.05 * torch.linalg.vector_norm((wanted - start).detach())

    def test_follow_the_learning_rate(self):
        optimizer, (param,) = over((64, 64))
        before = param.detach().clone()
        set_learning_rate(optimizer, 0.0)
        optimizer.step()
        assert torch.equal(param, before)
        set_learning_rate(optimizer, 1e-2)
        optimizer.step()
        assert not torch.equal(param, before)

    def test_go_on_from_a_file_bit_for_bit(self):
        (first, (one,)), (second, (other,)) = over((64, 64)), over((64, 64))
        first.step()
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second.load_state_dict(torch.load(file, weights_only=True, map_location="cpu"))
        other.data.copy_(one.data)
        for optimizer in (first, second):
            optimizer.step()
        assert torch.equal(one, other)

    @pytest.mark.parametrize("target", [None, Cuda(architecture=(8, 0))])
    def test_are_predicted_as_they_are_kept(self, target):
        params = {"width": 64, "depth": 2, "batch_size": 2}
        plain, quantized = (
            trace(Sample(), {**params, **chosen}, target=target).parts[Part.OPTIMIZER]
            for chosen in ({}, EIGHT_BIT)
        )
        model = TrainingRun(Sample(), params, num_tokens=9, device=torch.device("cpu")).model
        large = [p for p in model.parameters() if p.numel() >= 4096 and p.numel() % 256 == 0]
        # Of each number of the two moments 3 bytes less, a scale and a table more.
        saved = sum(2 * (3 * p.numel() - 4 * p.numel() // 256 - 1024) for p in large)
        assert plain - quantized == saved

    def test_learn_in_a_process_that_first_predicted_them(self):
        code = """
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    import search.eight_bit
from torchao.optim.subclass_8bit import get_qmap_signed
print(len(set(get_qmap_signed())))
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert done.stdout == b"256\n"

    def test_are_quiet_when_they_are_imported(self):
        code = "import search.eight_bit"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        assert (done.stdout, done.stderr) == (b"", b"")
