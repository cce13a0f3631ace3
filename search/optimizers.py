"""The update rules a configuration may choose, and which of torch's implementations runs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


class Optimizer(StrEnum):
    """The update rule."""

    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
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
    """Why there is no such optimizer here, or no such implementation of it; None where there is."""
    if optimizer is Optimizer.ADAMW_8BIT:
        if not has_torchao():
            return "optimizer adamw-8bit needs torchao (pip install 'paretune[quant]')"
        if implementation is not Implementation.AUTO:
            return (
                f"optimizer_implementation {implementation}: adamw-8bit has one alone (take auto)"
            )
    if optimizer is Optimizer.ADAFACTOR and implementation is Implementation.FUSED:
        return "optimizer_implementation fused: adafactor has none (take foreach or for-loop)"
    return None


def offload_refusal(optimizer: Optimizer) -> str | None:
    """Why its state cannot be kept on the host; None where it can."""
    if not has_torchao():
        return "optimizer_offload needs torchao (pip install 'paretune[quant]')"
    if optimizer not in _KINDS:
        return f"optimizer_offload: the state of {optimizer} is small already (take adamw)"
    return None


def load(optimizer: Optimizer, *, offload: bool) -> None:
    """Imports what an update needs, which takes memory and time of its own."""
    if optimizer is Optimizer.ADAMW_8BIT:
        import search.eight_bit
    if offload:
        import search.offload  # noqa: F401 - for its effect


def parts(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers one is made of, on the device and on the host; itself if it is one alone."""
    found: tuple[torch.optim.Optimizer, ...] = getattr(optimizer, "parts", (optimizer,))
    return found


def optimizers_here() -> tuple[Optimizer, ...]:
    """Those whose packages are installed."""
    return tuple(each for each in Optimizer if refusal(each, Implementation.AUTO) is None)


@cache
def has_torchao() -> bool:
    """Whether torchao is installed, which is not imported for the answer."""
    return find_spec("torchao") is not None


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Changes the learning rate of all parameters; some optimizers keep it as a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(learning_rate)
        else:
            group["lr"] = learning_rate


_KINDS: Mapping[Optimizer, type[torch.optim.Optimizer]] = {
    Optimizer.ADAMW: torch.optim.AdamW,
    Optimizer.ADAM: torch.optim.Adam,
    Optimizer.SGD: torch.optim.SGD,
}


def new_optimizer(
    params: Iterable[Tensor],
    optimizer: Optimizer,
    implementation: Implementation,
    *,
    learning_rate: float,
    weight_decay: float,
    momentum: float,
    offload: bool = False,
) -> torch.optim.Optimizer:
    """An optimizer over those of the parameters that train; `momentum` is for `sgd` alone.

    With `offload` its state lies on the host, and the parameters on a GPU.
    """
    trained = [param for param in params if param.requires_grad]
    chosen: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
    if implementation is not Implementation.AUTO:
        chosen["foreach"] = implementation is Implementation.FOREACH
        if optimizer is not Optimizer.ADAFACTOR:
            chosen["fused"] = implementation is Implementation.FUSED
    elif offload:
        chosen["fused"] = True  # torch would choose the slowest for the host
    if optimizer is Optimizer.SGD:
        chosen["momentum"] = momentum
    if offload:
        from search.offload import OffloadedOptimizer

        return OffloadedOptimizer(trained, _KINDS[optimizer], **chosen)
    if optimizer is Optimizer.ADAMW_8BIT:
        from search.eight_bit import EagerAdamW8bit

        return EagerAdamW8bit(trained, **chosen)
    if optimizer is Optimizer.ADAFACTOR:
        return torch.optim.Adafactor(trained, **chosen)
    return _KINDS[optimizer](trained, **chosen)
