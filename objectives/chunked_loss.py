"""Cross-entropy without all logits at once: they are computed chunk by chunk, in both passes.

Tensors carry their shape: N positions, C channels, V pieces of a vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def chunked_cross_entropy(
    x_NC: Tensor, head: nn.Module, targets_N: Tensor, *, num_chunks: int
) -> Tensor:
    """Mean cross-entropy in nats, a scalar.

    No chunk keeps its logits for the backward pass: they are computed again there, so that the head
    costs a third more and its logits 1 / num_chunks of the memory.

    Args:
        x_NC: what the head makes logits of, (N, C).
        head: from (N, C) to logits, (N, V).
        targets_N: the piece that follows each position, int64, (N,).
        num_chunks: how many; at most N are made.
    """
    chunks = zip(x_NC.chunk(num_chunks), targets_N.chunk(num_chunks), strict=True)
    totals = [checkpoint(_total, head, x, targets, use_reentrant=False) for x, targets in chunks]
    return torch.stack(totals).sum() / len(targets_N)


def _total(head: nn.Module, x_NC: Tensor, targets_N: Tensor) -> Tensor:
    logits_NV = head(x_NC).float()  # bf16 would round the loss to 3 figures
    return functional.cross_entropy(logits_NV, targets_N, reduction="sum")
