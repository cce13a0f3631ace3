"""LitGPT's model: as many parameters as published, causal, and its norm is torch's."""

import torch
from torch.nn import functional

from benchmarks.litgpt_step import Gpt, RmsNorm, measure
from benchmarks.model_configs import PUBLISHED_SIZES, Sizes
from search.memory.allocator import simulate
from search.memory.cuda import Cuda
from search.memory.trace import record

SIZES = Sizes(hidden=32, layers=2, heads=4, kv_heads=2, ffn=64, vocab=64)


def test_tiny_llama_has_as_many_parameters_as_published():
    with torch.device("meta"):
        model = Gpt(PUBLISHED_SIZES["TinyLlama-1.1B"], 2048)
    assert sum(param.numel() for param in model.parameters()) == 1_100_048_384


def test_the_norm_is_the_root_mean_square_norm():
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(RmsNorm(8)(x), functional.rms_norm(x, (8,), eps=1e-5))


def test_no_position_sees_a_later_one():
    torch.manual_seed(0)
    model = Gpt(SIZES, 8)
    ids = torch.randint(0, 64, (1, 8))
    changed = ids.clone()
    changed[0, 5] = (ids[0, 5] + 1) % 64
    before, after = model(ids), model(changed)
    torch.testing.assert_close(after[:, :5], before[:, :5])
    assert not torch.equal(after[:, 5], before[:, 5])


def test_weights_and_moments_are_bf16_and_gradients_are_gone():
    target, kept = Cuda(architecture=(8, 0)), []
    events = record(lambda _: kept.append(measure(SIZES, 2, 8, target.device)), target)
    model, optimizer, _, _ = kept[0]
    assert {param.dtype for param in model.parameters()} == {torch.bfloat16}
    assert all(param.grad is None for param in model.parameters())
    moments = [one for state in optimizer.state.values() for one in state.values() if one.dim()]
    num_params = sum(param.numel() for param in model.parameters())
    assert sum(one.numel() for one in moments) == 2 * num_params
    statistics = simulate((event.storage, event.num_bytes) for event in events)
    assert statistics.peak_allocated_bytes > 4 * 2 * num_params
