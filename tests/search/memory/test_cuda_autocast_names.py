import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from search.memory.cuda import Cuda

GPU = torch.device("cpu", 0)
HALF, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture
def x():
    """Numbers on the stand-in, with the personality installed."""
    with Cuda(architecture=(8, 0)).installed(), FakeTensorMode():
        yield torch.empty(4, 4, device=GPU)


def test_autocast_by_the_name_of_the_gpu(x):
    with torch.autocast("cuda", BF16):
        assert (x @ x).dtype is BF16
        with torch.autocast("cuda", BF16, False):  # noqa: FBT003 - given by position
            assert (x @ x).dtype is FP32
    assert (x @ x).dtype is FP32


def test_fp16_where_no_type_is_given(x):
    with torch.autocast("cuda"):
        assert (x @ x).dtype is HALF
    with torch.autocast("cpu"):
        assert (x @ x).dtype is BF16


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_by_its_older_name(x):
    with torch.cuda.amp.autocast(dtype=BF16):
        assert (x @ x).dtype is BF16


def test_what_a_model_asks(x):  # noqa: ARG001 - installs the personality
    assert not torch.is_autocast_enabled()
    assert torch.get_autocast_dtype("cuda") is HALF
    with torch.autocast("cpu", BF16):
        assert torch.is_autocast_enabled()
        assert torch.is_autocast_enabled("cuda")
        assert torch.get_autocast_dtype("cuda") is BF16


def test_functions_of_ones_own(x):
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=FP32)
        def forward(ctx, x):
            del ctx
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            assert not torch.is_autocast_enabled("cuda")
            del ctx
            return grad * 2

    weight = x.clone().requires_grad_()
    with torch.autocast("cuda", BF16):
        Double.apply(weight @ weight).sum().backward()
    assert weight.grad.dtype is FP32


def test_names_mean_what_they_meant_afterwards():
    with Cuda(architecture=(8, 0)).installed():
        pass
    with torch.autocast("cpu", BF16):
        assert not torch.is_autocast_enabled()
        assert torch.get_autocast_dtype("cuda") is HALF
