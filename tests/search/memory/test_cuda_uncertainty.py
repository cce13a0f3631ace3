import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from search.memory.cuda import Cuda
from search.memory.cuda_uncertainty import total
from search.memory.target import Unsure
from search.memory.trace import record

GPU = torch.device("cpu", 0)


def test_what_is_kept_adds_up_and_of_the_rest_the_largest_counts():
    kept = Unsure(10, 20, adds_up=True)
    assert total([Unsure(3, 4), kept, Unsure(2, 9), kept]) == Unsure(23, 49)
    assert total([]) == Unsure(0, 0)


def test_a_trace_without_cudnn_is_certain():
    target = Cuda(architecture=(9, 0))
    record(lambda _: torch.empty(4, 4, device=GPU) @ torch.empty(4, 4, device=GPU), target)
    assert target.uncertain_bytes == Unsure(0, 0)


def test_attention_through_cudnn_states_what_flash_needs():
    shape = (2, 4, 128, 64)
    target = Cuda(architecture=(9, 0))

    def run(_):
        query = torch.empty(shape, dtype=torch.bfloat16, device=GPU, requires_grad=True)
        out = functional.scaled_dot_product_attention(query, query, query, is_causal=True)
        out.backward(torch.empty(shape, dtype=torch.bfloat16, device=GPU))

    events = record(run, target)
    stated = 2 * 4 * 128 * 64 * 4 + 2 * 4 * 128 * 4
    assert any(event.num_bytes == stated for event in events)
    assert target.uncertain_bytes == Unsure(stated, stated)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        record(run, target)
    assert target.uncertain_bytes == Unsure(0, 0)
