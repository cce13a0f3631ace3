"""What the recorder books when operators arrive in another form than in training."""

import pytest
import torch
from torch import nn

from search.memory.cuda import Cuda
from search.memory.target import Cpu
from search.memory.trace import record


def evaluation(mode, target):
    def run(_):
        model = nn.Sequential(nn.Linear(8, 256), nn.GELU(), nn.Dropout(), nn.Linear(256, 4))
        model, inputs = model.to(target.device), torch.zeros(64, 8, device=target.device)
        heads = torch.zeros(1, 2, 64, 32, device=target.device)
        with mode():
            model(inputs).sum().item()
            nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            nn.functional.cross_entropy(inputs, torch.zeros_like(inputs[:, 0]).long())

    return [(event.num_bytes, event.operator) for event in record(run, target)]


@pytest.mark.parametrize("target", [Cpu(), Cuda(architecture=(8, 0))])
def test_inference_mode_books_what_no_grad_books(target):
    assert evaluation(torch.inference_mode, target) == evaluation(torch.no_grad, target)


def test_inference_mode_books_what_is_inside_a_composed_operator():
    # The loss is one number, made from the logarithms of 64 x 16 probabilities in fp32, as many as
    # there are logits.
    def run(_):
        logits = torch.zeros(64, 16)
        with torch.inference_mode():
            nn.functional.cross_entropy(logits, torch.zeros(64).long())

    sizes = [event.num_bytes for event in record(run, Cpu())]
    assert sizes.count(64 * 16 * 4) == 2
