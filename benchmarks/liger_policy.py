"""Liger's benchmark of a policy's loss over a linear layer, in plain torch.

Source: linkedin/Liger-Kernel, `benchmark/scripts/benchmark_grpo_loss.py` and
`test/chunked_loss/test_grpo_loss.py` (TorchLMHeadGRPO).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.liger_bench import Bench, Setting, of_loss


def grpo_loss(setting: Setting) -> Bench:
    """Clipped ratios to themselves, and the divergence from a reference model."""
    width, num_classes = setting.size("H", "hidden_size"), setting.size("V", "vocab_size")
    layers = [setting.linear(width, num_classes) for _ in range(4 if "H" in setting.config else 2)]
    num_samples, length = setting.size("B"), setting.size("T")
    x = setting.noise(num_samples, length, width, trained=True)
    tokens = setting.classes(num_classes, num_samples, length)
    mask = torch.ones(num_samples, length, device=setting.device)
    advantages = setting.noise(num_samples)
    reference_x = setting.noise(num_samples, length, width)
    sequence = setting.config.get("importance_sampling_level") == "sequence"

    def forward() -> Tensor:
        logits = x @ layers[0].weight.t()
        logps = functional.log_softmax(logits.float(), dim=-1)
        chosen = logps.gather(dim=-1, index=tokens.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            reference_logits = reference_x @ layers[1].weight.t()
            reference_logps = functional.log_softmax(reference_logits.float(), dim=-1)
            reference = reference_logps.gather(dim=-1, index=tokens.unsqueeze(-1)).squeeze(-1)
        return _grpo(chosen, reference, mask, advantages.unsqueeze(1), sequence=sequence)

    return Bench(forward=forward, backward=of_loss, retains_graph=False)


def _grpo(
    chosen: Tensor, reference: Tensor, mask: Tensor, advantages: Tensor, *, sequence: bool
) -> Tensor:
    weights = chosen - chosen.detach()
    if sequence:
        weights = ((weights * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    ratio = torch.exp(weights)
    clipped = torch.clamp(ratio, 0.8, 1.2)
    loss = -torch.min(ratio * advantages, clipped * advantages)
    reference = reference.float()
    divergence = torch.exp(reference - chosen) - (reference - chosen) - 1.0
    loss = loss + 0.1 * divergence
    return (loss * mask).sum() / torch.clamp(mask.sum(), min=1.0)
