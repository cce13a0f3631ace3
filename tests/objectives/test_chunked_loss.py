import pytest
import torch
from torch import nn
from torch.nn import functional

from objectives.chunked_loss import chunked_cross_entropy
from objectives.language_model import LanguageModel
from search.memory.trace import trace


@pytest.mark.parametrize("num_chunks", [1, 3, 4, 12, 100])
def test_is_the_cross_entropy_of_all_logits(num_chunks):
    torch.manual_seed(0)
    x = torch.randn(12, 5, requires_grad=True)
    head, targets = nn.Linear(5, 7), torch.randint(7, (12,))
    whole = functional.cross_entropy(head(x), targets)
    gradients = torch.autograd.grad(whole, (x, head.weight))
    found = chunked_cross_entropy(x, head, targets, num_chunks=num_chunks)
    torch.testing.assert_close(found, whole)
    torch.testing.assert_close(torch.autograd.grad(found, (x, head.weight)), gradients)


def test_a_step_never_holds_all_logits():
    # 64 x 32 positions of 4,096 pieces: 32 MiB of logits in fp32, as much again for their
    # gradient; in 8 chunks 4 MiB of each.
    objective = LanguageModel(held_out_tokens=2_000)
    sizes = {"width": 8, "heads": 1, "depth": 1, "batch_size": 64, "sequence_length": 32}
    sizes |= {"vocabulary": 4_096, "optimizer": "sgd", "momentum": 0.0}
    whole, chunked = (trace(objective, {**sizes, "loss_chunks": n}) for n in (1, 8))
    assert whole.peak_bytes > 64 * 2**20
    assert max(chunked.alive_at_peak) <= 4 * 2**20
    assert chunked.peak_bytes < whole.peak_bytes / 4
