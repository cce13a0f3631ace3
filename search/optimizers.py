"""The update rules a configuration may choose, and which of torch's implementations runs them."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor


class Optimizer(StrEnum):
    """The update rule."""

    ADAMW = "adamw"
    ADAM = "adam"
    SGD = "sgd"
    ADAFACTOR = "adafactor"


class Implementation(StrEnum):
    """How an update goes over the parameters: all at once, in one kernel, or one by one.

    All at once is faster, and makes temporaries as large as the parameters together.
    """

    AUTO = "auto"
    FOREACH = "foreach"
    FUSED = "fused"
    FOR_LOOP = "for-loop"


def refusal(optimizer: Optimizer, implementation: Implementation) -> str | None:
    """Why torch has no such implementation; None where it has."""
    if optimizer is Optimizer.ADAFACTOR and implementation is Implementation.FUSED:
        return "optimizer_implementation fused: adafactor has none (take foreach or for-loop)"
    return None


def new_optimizer(
    params: Iterable[Tensor],
    optimizer: Optimizer,
    implementation: Implementation,
    *,
    learning_rate: float,
    weight_decay: float,
    momentum: float,
) -> torch.optim.Optimizer:
    """An optimizer over those of the parameters that train; `momentum` is for `sgd` alone."""
    trained = [param for param in params if param.requires_grad]
    chosen: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
    if implementation is not Implementation.AUTO:
        chosen["foreach"] = implementation is Implementation.FOREACH
        if optimizer is not Optimizer.ADAFACTOR:
            chosen["fused"] = implementation is Implementation.FUSED
    if optimizer is Optimizer.SGD:
        return torch.optim.SGD(trained, momentum=momentum, **chosen)
    kinds: dict[Optimizer, type[torch.optim.Optimizer]] = {
        Optimizer.ADAMW: torch.optim.AdamW,
        Optimizer.ADAM: torch.optim.Adam,
        Optimizer.ADAFACTOR: torch.optim.Adafactor,
    }
    return kinds[optimizer](trained, **chosen)
