"""What vramcalc measures: steps of a `transformers` model, or its forward pass with a cache.

Source: `_measure` in vramcalc 0.1.2, `vramcalc/bench.py`, which this follows call by call.

Tensors carry their shape: B samples, T positions.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.model_configs import Sizes, config_of

NUM_MEASURED_STEPS = 2
"""The script measures three: the third repeats the second."""
_FUSED = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION]
_FLASH = "recorded_flash_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """LoRA on the projections named, e.g. `q_proj`. The adapters are fp32 whatever the model is."""

    rank: int
    projections: tuple[str, ...]
    dropout: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One measurement. `dtype` is the model's own, or the autocast one over fp32 weights."""

    model: str
    sizes: Sizes
    attention: str
    dtype: torch.dtype
    autocast: bool
    trains: bool
    micro_batch: int
    sequence_length: int
    optimizer: str = "AdamW"
    checkpointing: bool = False
    adapter: Adapter | None = None


def measure(setting: Setting, device: torch.device, reset: Callable[[], None]) -> object:
    """Runs all of it on a device, calling `reset` where the measurement begins anew.

    What is returned is what is still in memory at the end.
    """
    gc.freeze()  # what was there before is no garbage of the run, and slow to look through
    try:
        return _measure(setting, device, reset)
    finally:
        gc.unfreeze()


def _measure(setting: Setting, device: torch.device, reset: Callable[[], None]) -> object:
    model = _model(setting, device)
    ids_BT = torch.randint(
        0, setting.sizes.vocab, (setting.micro_batch, setting.sequence_length), device=device
    )
    if setting.trains:
        return _train(setting, model, ids_BT, reset)
    return _infer(setting, model, ids_BT, reset)


def _model(setting: Setting, device: torch.device) -> nn.Module:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(
        config_of(setting.model, setting.sizes),
        dtype=torch.float32 if setting.autocast else setting.dtype,
        attn_implementation=_attention_name(setting.attention),
    ).to(device)
    if setting.adapter is None:
        return model
    return _adapted(model, setting.adapter)


def _adapted(model: nn.Module, adapter: Adapter) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        model,
        LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.rank,
            lora_dropout=adapter.dropout,
            target_modules=list(adapter.projections),
            task_type="CAUSAL_LM",
        ),
    )


def _attention_name(attention: str) -> str:
    if attention != "flash":
        return attention
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register(_FLASH, _flash_attention)
    AttentionMaskInterface.register(_FLASH, flash_attention_mask)
    return _FLASH


def _flash_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # noqa: ARG001 - part of the interface; a plain batch has none
    **settings: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as in the flash-attn package: torch's flash kernel, keys and values not repeated.

    Source: flash-attn's `flash_attn_func`, of which torch's kernel is a copy.
    """
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=bool(getattr(module, "is_causal", True)),
            dropout_p=settings.get("dropout", 0.0),
            scale=settings.get("scaling"),
            enable_gqa=True,
        )
    return out.transpose(1, 2), None


def _kernels(setting: Setting) -> AbstractContextManager[Any]:
    return sdpa_kernel(_FUSED) if setting.attention == "sdpa" else nullcontext()


def _infer(
    setting: Setting, model: nn.Module, ids_BT: torch.Tensor, reset: Callable[[], None]
) -> object:
    model.eval()
    reset()
    with torch.inference_mode(), _kernels(setting):
        return model(input_ids=ids_BT, use_cache=True), model, ids_BT


def _train(setting: Setting, model: Any, ids_BT: torch.Tensor, reset: Callable[[], None]) -> object:
    model.train()
    model.config.use_cache = False
    if setting.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = _optimizer(setting, [one for one in model.parameters() if one.requires_grad])
    for _ in range(1 + NUM_MEASURED_STEPS):
        gc.collect()
        reset()
        _step(setting, model, ids_BT, optimizer)
    return model, optimizer, ids_BT


def _optimizer(setting: Setting, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    if setting.optimizer == "AdamW":
        return torch.optim.AdamW(params, lr=1e-5, foreach=True)
    return torch.optim.SGD(params, lr=1e-5, momentum=0.9, foreach=True)


def _step(
    setting: Setting, model: nn.Module, ids_BT: torch.Tensor, optimizer: torch.optim.Optimizer
) -> None:
    with _kernels(setting):
        with _autocast(setting, ids_BT.device):
            out = model(input_ids=ids_BT, labels=ids_BT, use_cache=False)
            loss = out.loss
        loss.backward()
    del out, loss
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def _autocast(setting: Setting, device: torch.device) -> AbstractContextManager[Any]:
    if setting.autocast:
        return torch.autocast(device.type, dtype=setting.dtype)
    return nullcontext()
