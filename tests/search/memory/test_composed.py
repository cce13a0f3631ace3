"""What a trace books, against what the profiler sees of the same code on real tensors."""

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from search.memory.target import Cpu
from search.memory.trace import record

BLOCK_BYTES = 1 << 20


def branches():
    """A tensor used three times: its gradients meet in the autograd engine."""
    x = torch.zeros(BLOCK_BYTES // 4, requires_grad=True)
    y = x.exp()
    (y.sin().sum() + y.cos().sum() + y.tan().sum()).backward()


def residual():
    """A gradient that also goes on by another way, as round a block of a transformer."""
    x = torch.zeros(512, 512, requires_grad=True)
    y = x.exp()
    (y + torch.sigmoid(y)).sum().backward()


def deep():
    """Gradients that meet after a gradient of full size has been split in two ways."""
    x = torch.zeros(512, 512, requires_grad=True)
    y = x.exp()
    for _ in range(3):
        y = y + torch.sigmoid(y.cos())
    y.exp().sum().backward()


def chunks():
    """One product cut in three, as the queries, keys and values of attention are."""
    x = torch.zeros(512, 512, requires_grad=True)
    q, k, v = torch.cat([x, x, x]).exp().unflatten(0, (3, 512))
    ((q @ k) @ v).exp().sum().backward()


def kept():
    """A gradient that somebody keeps is not written over."""
    x = torch.zeros(BLOCK_BYTES // 4, requires_grad=True)
    y = x.exp()
    held = []
    z = y.sin()
    z.register_hook(held.append)
    (z * 2.0 + y.cos()).sum().backward()


def transposed_linear():
    """A layer whose input is not contiguous, as in attention with the batch first."""
    x = torch.zeros(64, 64, 64).transpose(0, 1)
    nn.functional.linear(x, torch.zeros(128, 64), torch.zeros(128))


def flat_linear():
    nn.functional.linear(torch.zeros(64, 64, 64), torch.zeros(128, 64), torch.zeros(128))


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x * 2.0

    @staticmethod
    def backward(_, gradient):
        return gradient * 1.0 + gradient * 1.0


def own_function():
    """A function of one's own that adds in its backward: a sum the engine knows nothing of."""
    _Doubled.apply(torch.zeros(BLOCK_BYTES // 4, requires_grad=True)).exp().sum().backward()


def traced_blocks(run):
    events = record(lambda _: run(), Cpu())
    return sum(event.num_bytes >= BLOCK_BYTES for event in events)


def real_blocks(run):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    memory = [
        event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    return sum(event.nbytes() >= BLOCK_BYTES for event in memory)


@pytest.mark.parametrize(
    "run",
    [
        branches,
        residual,
        deep,
        chunks,
        kept,
        own_function,
        transposed_linear,
        flat_linear,
    ],
)
def test_as_many_blocks_are_asked_for_as_on_real_tensors(run):
    assert traced_blocks(run) == real_blocks(run)
