"""Low-rank adapters beside frozen weights, through peft.

Source: Hu et al. 2021, arXiv 2106.09685, section 4.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from search.errors import InputError

if TYPE_CHECKING:
    from objectives.pretrained import Task

ALL_LINEAR = "all-linear"
"""Every linear map but the last one, whatever a model calls them."""


def with_adapters(
    model: nn.Module, task: Task, *, rank: int, alpha: float, dropout: float, target: str
) -> nn.Module:
    """The model with all weights frozen, adapters to train beside some, and a new head whole.

    Adapters are fp32 beside weights of 16 bits, as peft has them.

    Args:
        model: one of transformers.
        task: what it is for: the head of a classifier is trained whole.
        rank: of each adapter.
        alpha: what an adapter adds is multiplied by alpha / rank.
        dropout: on what adapters are given.
        target: `all-linear`, or the names of the maps that get one, with commas between.

    Raises:
        InputError: when the model has no map of such a name.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    names = [name.strip() for name in target.split(",")]
    settings = LoraConfig(
        task_type=task.value,
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=ALL_LINEAR if names == [ALL_LINEAR] else names,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )
    try:
        adapted: Any = get_peft_model(model, settings)
    except ValueError as error:
        if "arget modules" not in str(error):
            raise
        msg = f"lora_target {target}: {error}"
        raise InputError(msg) from error
    for name, param in adapted.named_parameters():
        if "lora_" in name:
            param.keeps_precision = True
    found: nn.Module = adapted
    return found
