"""Which parts of a model give up their activations, to compute them again in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    apply_activation_checkpointing,
)

from search.errors import InputError

Checkpointing = bool | Literal["every-2", "every-3", "every-4", "attention"]
"""Every block, every second to fourth block, or the attention of each block alone."""


def checkpoint(model: nn.Module, choice: Checkpointing) -> None:
    """Wraps the chosen parts of a model. A block is an element of an outermost `nn.ModuleList`.

    Raises:
        InputError: when the model has no such list, or its blocks no attention.
    """
    if not choice:
        return
    blocks = list(outermost_blocks(model))
    if not blocks:
        msg = "activation_checkpointing: the model has no nn.ModuleList of blocks (set it to false)"
        raise InputError(msg)
    chosen = set(_chosen(blocks, choice))
    if not chosen:
        msg = (
            "activation_checkpointing: attention: the blocks have no module whose name or class "
            "says attention (set it to true)"
        )
        raise InputError(msg)
    apply_activation_checkpointing(model, check_fn=lambda module: module in chosen)


def without_checkpoints(model: nn.Module) -> None:
    """Takes off what `checkpoint` wrapped round parts of a model."""
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, CheckpointWrapper):
                setattr(module, name, child._checkpoint_wrapped_module)  # noqa: SLF001 - torch takes it off nowhere


def _chosen(blocks: list[nn.Module], choice: Checkpointing) -> Iterator[nn.Module]:
    if choice == "attention":
        for block in blocks:
            yield from _outermost_attention(block)
    else:
        step = 1 if choice is True else int(str(choice).removeprefix("every-"))
        yield from blocks[::step]


def _outermost_attention(module: nn.Module) -> Iterator[nn.Module]:
    for name, child in module.named_children():
        if _is_attention(name, child):
            yield child
        else:
            yield from _outermost_attention(child)


def _is_attention(name: str, module: nn.Module) -> bool:
    """Norms and dropout round an attention are often named after it, and have no matrix to mix."""
    words = f"{name} {type(module).__name__}".lower()
    mixes = any(param.dim() > 1 for param in module.parameters())
    return mixes and ("attention" in words or "attn" in words)


def outermost_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The elements of each `nn.ModuleList` that lies in no other."""
    if isinstance(module, nn.ModuleList):
        yield from module
        return
    for child in module.children():
        yield from outermost_blocks(child)
