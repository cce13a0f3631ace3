"""Liger's benchmarks of preference losses over a linear layer, in plain torch.

Source: linkedin/Liger-Kernel, `benchmark/scripts/benchmark_{orpo,cpo,simpo,dpo,kto}_loss.py`,
`test/utils.py` (HFAlignmentLoss) and `test/chunked_loss/test_{orpo,cpo,dpo,kto}_loss.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.liger_bench import Bench, Setting, of_loss


class Batch(NamedTuple):
    """What a policy, and a model to compare it with, are given."""

    x: Tensor
    target: Tensor
    reference_x: Tensor | None = None
    nll_target: Tensor | None = None
    halves: tuple[Tensor, Tensor] | None = None


class Policy(NamedTuple):
    """Log-probabilities of the chosen and the rejected answers, their logits, and the loss."""

    chosen: Tensor
    rejected: Tensor
    chosen_logits: Tensor
    rejected_logits: Tensor
    nll_loss: Tensor


_LENGTH_OF_FIRST_SCRIPT = 4096
"""ORPO's first script had answers of this length, and a loss of its own in the logits' type."""


def orpo_loss(setting: Setting) -> Bench:
    """Odds ratio of chosen and rejected, beside cross entropy."""
    if setting.size("T") == _LENGTH_OF_FIRST_SCRIPT:
        return _first_orpo_loss(setting)

    def loss(chosen: Tensor, rejected: Tensor) -> tuple[Tensor, ...]:
        ratio, odds = _odds_ratio(chosen, rejected)
        return -0.1 * ratio, 0.1 * chosen, 0.1 * rejected, ratio.mean(), odds.mean()

    return _made_in_each_step(setting, loss, with_nll_target=True)


def _odds_ratio(chosen: Tensor, rejected: Tensor) -> tuple[Tensor, Tensor]:
    odds = (chosen - rejected) - (
        torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected))
    )
    return functional.logsigmoid(odds), odds


def _first_orpo_loss(setting: Setting) -> Bench:
    """With Liger's layer beside it, and the mean over the vocabulary as log-probability."""
    width, num_classes = setting.size("H"), setting.size("V")
    layers = [setting.linear(width, num_classes) for _ in range(2)]
    num_samples, length = setting.size("B"), setting.size("T")
    x = setting.noise(num_samples, length, width, trained=True)
    target = setting.classes(num_classes, num_samples, length)
    half = num_samples // 2

    def forward() -> Tensor:
        logits = layers[0](x)
        flat = logits[:half].view(-1, num_classes)
        nll_loss = nn.CrossEntropyLoss()(flat, target[:half].view(-1))
        logps = functional.log_softmax(logits, dim=-1).mean(dim=-1)
        ratio, _ = _odds_ratio(logps[:half], logps[half:])
        loss: Tensor = nll_loss - (0.1 * ratio).mean()
        return loss

    return Bench(forward=forward, backward=of_loss, retains_graph=False)


def cpo_loss(setting: Setting) -> Bench:
    """Log-sigmoid of the difference; SimPO is the same less a margin."""

    def loss(chosen: Tensor, rejected: Tensor) -> tuple[Tensor, ...]:
        logits = chosen - rejected
        losses = (
            -functional.logsigmoid(0.1 * logits) * 1.0 - functional.logsigmoid(-0.1 * logits) * 0.0
        )
        return losses, 0.1 * chosen, 0.1 * rejected

    return _made_in_each_step(setting, loss, with_nll_target=False)


def dpo_loss(setting: Setting) -> Bench:
    """Log-sigmoid of the difference to a reference model, averaged over an answer's tokens."""

    def loss(
        chosen: Tensor, rejected: Tensor, reference: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, ...]:
        chosen_ratio, rejected_ratio = chosen - reference[0], rejected - reference[1]
        rewards = 0.1 * chosen_ratio, 0.1 * rejected_ratio
        difference = 0.1 * (chosen_ratio - rejected_ratio)
        return -functional.logsigmoid(difference), *rewards

    return _against_reference(setting, loss, unpaired=False)


def kto_loss(setting: Setting) -> Bench:
    """Sigmoids of chosen and of rejected answers, half of each, told by a label a sample."""
    divergence = setting.noise(1)

    def loss(
        chosen: Tensor, rejected: Tensor, reference: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, ...]:
        of_chosen = 1 - functional.sigmoid(0.1 * ((chosen - reference[0]) - divergence))
        of_rejected = 1 - functional.sigmoid(0.1 * (divergence - (rejected - reference[1])))
        return (torch.cat((of_chosen, of_rejected), 0),)

    return _against_reference(setting, loss, unpaired=True)


def _is_old(setting: Setting) -> bool:
    """Whether the script builds all providers' modules."""
    return "H" in setting.config


def _made_in_each_step(
    setting: Setting,
    loss: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    *,
    with_nll_target: bool,
) -> Bench:
    """A layer that is made for each forward pass, and goes with its graph."""
    width, num_classes = setting.size("H", "hidden_size"), setting.size("V", "vocab_size")
    shape = setting.size("B"), setting.size("T")
    x = setting.noise(*shape, width, trained=True)
    target = setting.classes(num_classes, *shape)
    nll_target = setting.classes(num_classes, *shape) if with_nll_target else None
    batch = Batch(x, target, nll_target=nll_target)

    def forward() -> Tensor:
        layer = setting.linear(width, num_classes)
        return _loss_and_figures(layer, batch, loss, averages=with_nll_target)[0]

    return Bench(forward=forward, backward=of_loss, retains_graph=False)


def _against_reference(
    setting: Setting, loss: Callable[..., tuple[Tensor, ...]], *, unpaired: bool
) -> Bench:
    """Two layers, the second without gradients; Liger's own two stand beside them."""
    width, num_classes = setting.size("H", "hidden_size"), setting.size("V", "vocab_size")
    layers = [setting.linear(width, num_classes) for _ in range(4 if _is_old(setting) else 2)]
    num_samples, length = setting.size("B"), setting.size("T")
    x, reference_x = (setting.noise(num_samples, length, width) for _ in range(2))
    target = setting.classes(num_classes, num_samples, length)
    halves = torch.arange(num_samples, device=setting.device).chunk(2) if unpaired else None
    batch = Batch(x, target, reference_x=reference_x, halves=halves)

    def forward() -> Tensor:
        return _loss_and_figures(
            layers[0], batch, loss, reference=layers[1], averages=True, with_nll=False
        )[0]

    return Bench(forward=forward, backward=of_loss, retains_graph=False)


def _loss_and_figures(
    layer: nn.Linear,
    batch: Batch,
    loss: Callable[..., tuple[Tensor, ...]],
    *,
    reference: nn.Linear | None = None,
    averages: bool,
    with_nll: bool = True,
) -> tuple[Tensor, ...]:
    """The loss, and what is logged. Source: HFAlignmentLoss.get_batch_loss_metrics."""
    policy = _policy(layer, batch, averages=averages, with_nll=with_nll)
    answers: tuple[object, ...] = (policy.chosen, policy.rejected)
    if reference is not None:
        answers = *answers, _reference(reference, batch, averages=averages)
    losses, *figures = loss(*answers)
    total = policy.nll_loss * 1.0 + losses.mean()
    logged = (policy.chosen_logits.detach().mean(), policy.rejected_logits.detach().mean())
    return total, *logged, *figures


def _policy(layer: nn.Linear, batch: Batch, *, averages: bool, with_nll: bool) -> Policy:
    """Source: HFAlignmentLoss.concatenated_forward."""
    half = batch.x.shape[0] // 2
    outputs = batch.x @ layer.weight.t()
    if layer.bias is not None:
        outputs = outputs + layer.bias
    logits = outputs.float()
    labels = batch.target if batch.nll_target is None else batch.nll_target
    nll_loss = torch.tensor(0.0, device=logits.device)
    if with_nll:
        flat = logits[:half].view(-1, logits.shape[-1])
        nll_loss = nn.CrossEntropyLoss()(flat, labels[:half].view(-1))
    logps = _logps(logits, batch.target, averages=averages)
    return Policy(*_split(logps, batch.halves), *_split(logits, batch.halves), nll_loss)


def _reference(layer: nn.Linear, batch: Batch, *, averages: bool) -> tuple[Tensor, Tensor]:
    """Source: HFAlignmentLoss.get_ref_logps."""
    with torch.no_grad():
        logits = batch.reference_x @ layer.weight.t()
        if layer.bias is not None:
            logits = logits + layer.bias
        return _split(_logps(logits, batch.target, averages=averages), batch.halves)


def _split(x: Tensor, halves: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Two views, or two copies where samples are picked."""
    if halves is not None:
        return x[halves[0]], x[halves[1]]
    half = x.shape[0] // 2
    return x[:half], x[half:]


def _logps(logits: Tensor, labels: Tensor, *, averages: bool) -> Tensor:
    """Source: HFAlignmentLoss.get_batch_logps."""
    mask = labels != -100
    labels = torch.where(labels == -100, 0, labels)
    chosen = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    if averages:
        return (chosen * mask).sum(-1) / mask.sum(-1)
    return (chosen * mask).sum(-1)
