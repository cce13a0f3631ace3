from __future__ import annotations

import pytest
import torch

from search.memory.target import Cpu
from search.memory.trace import record

NUM_BYTES = 4 * 10 * 100


class _OfOnesOwn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[:, :1] * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        zeros = torch.zeros_like(x)
        index = torch.zeros(len(x), 1, dtype=torch.long)
        return zeros.scatter_add(1, index, gradient) * zeros


FUNCTIONS = {
    "gather": lambda x: x.gather(1, torch.zeros(len(x), 1, dtype=torch.long)),
    "sort": lambda x: x.sort(dim=-1).values,
    "max": lambda x: x.max(dim=-1).values,
    "indexing": lambda x: x[torch.zeros(3, dtype=torch.long)],
    "index_select": lambda x: x.index_select(0, torch.zeros(3, dtype=torch.long)),
    "a function of one's own": _OfOnesOwn.apply,
}


def _num_traced(function) -> int:
    """Tensors of the size of the input that the backward pass makes in a trace."""
    num_before = []

    def run(recorder):
        x = torch.randn(10, 100, requires_grad=True)
        loss = function(x * 2).sum()
        num_before.append(len(recorder.events()))
        loss.backward()

    events = record(run, Cpu())[num_before[0] :]
    return sum(event.num_bytes == NUM_BYTES for event in events)


def _num_real(function) -> int:
    """The same of real tensors, told by torch's profiler, which is no dispatch mode."""
    x = torch.randn(10, 100, requires_grad=True)
    loss = function(x * 2).sum()
    with torch.profiler.profile(profile_memory=True) as profile:
        loss.backward()
    roots = profile.profiler.kineto_results.experimental_event_tree()
    sizes = (getattr(node.extra_fields, "alloc_size", 0) for node in _below(roots))
    return sum(size == NUM_BYTES for size in sizes)


def _below(nodes):
    for node in nodes:
        yield node
        yield from _below(node.children)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_trace_makes_as_many_tensors_going_backward_as_torch_does(name):
    assert _num_traced(FUNCTIONS[name]) == _num_real(FUNCTIONS[name])


def test_the_gradient_of_gather_is_its_zeros():
    assert _num_traced(FUNCTIONS["gather"]) == 2  # the zeros, then their product with 2
