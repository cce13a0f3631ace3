import pytest
import torch
from torch import nn

from search.memory.cuda import Cuda
from search.memory.trace import record

GPU = torch.device("cpu", 0)
X, WEIGHT, Y = 2 * 3 * 8 * 8, 5 * 3 * 3 * 3, 2 * 5 * 8 * 8  # elements


def traced(*, dtype=torch.float32, architecture=(8, 0), memory_format=None, groups=1):
    """Blocks of forward and backward of 2 pictures of 3 x 8 x 8, 5 kernels of 3 x 3, and doubt."""
    target = Cuda(architecture=architecture)

    def run(_):
        layer = nn.Conv2d(3, 5 if groups == 1 else 6, 3, padding=1, groups=groups, bias=False)
        x = torch.empty(2, 3, 8, 8, dtype=dtype, device=GPU, requires_grad=True)
        layer = layer.to(device=GPU, dtype=dtype)
        if memory_format is not None:
            x = x.to(memory_format=memory_format)
            layer = layer.to(memory_format=memory_format)
        out = layer(x)
        out.backward(torch.empty_like(out))

    events = record(run, target)
    forward, backward = (
        [e.num_bytes for e in events if e.operator == operator and e.num_bytes > 0]
        for operator in ("aten.convolution.default", "aten.convolution_backward.default")
    )
    return forward, backward, target.uncertain_bytes


@pytest.mark.parametrize(
    ("dtype", "architecture"),
    [(torch.float32, (8, 0)), (torch.float16, (7, 0)), (torch.bfloat16, (9, 0))],
)
def test_tensor_cores_lay_everything_out_anew(dtype, architecture):
    forward, backward, unsure = traced(dtype=dtype, architecture=architecture)
    size = dtype.itemsize
    assert forward == [Y * size, (X + WEIGHT + Y) * size]
    # The gradient of the input and a workspace; then that of the weights, and another.
    workspace = (X + WEIGHT + Y) * size
    assert backward == [X * size, workspace, WEIGHT * size, workspace]
    assert unsure.below_bytes == unsure.above_bytes == (X + WEIGHT + Y) * size


def test_the_second_workspace_comes_after_the_first_has_gone():
    def run(_):
        layer = nn.Conv2d(3, 5, 3, padding=1, bias=False).to(GPU)
        x = torch.empty(2, 3, 8, 8, device=GPU, requires_grad=True)
        layer(x).backward(torch.empty(2, 5, 8, 8, device=GPU))

    events = record(run, Cuda(architecture=(8, 0)))
    inside = [e.num_bytes for e in events if e.operator == "aten.convolution_backward.default"]
    workspace = (X + WEIGHT + Y) * 4
    assert [n for n in inside if abs(n) == workspace] == [workspace, -workspace] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"memory_format": torch.channels_last},
        {"architecture": (7, 5)},
        {"dtype": torch.float64},
        {"groups": 3},
    ],
)
def test_else_there_may_be_none(options):
    forward, _, unsure = traced(**options)
    assert len(forward) == 1
    assert unsure.below_bytes == 0
    assert unsure.above_bytes > 0


def test_without_tf32_too():
    settings = torch.backends.cudnn.conv
    before, settings.fp32_precision = settings.fp32_precision, "ieee"
    try:
        assert len(traced()[0]) == 1
    finally:
        settings.fp32_precision = before


def test_trying_kernels_makes_it_less_sure(monkeypatch):
    certain = traced()[2].above_bytes
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert traced()[2].above_bytes == 4 * certain
