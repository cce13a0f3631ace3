"""A published row as others' tools want it: a model on the meta device, its batch, how it trains.

Runs where those tools are installed, which need not be where this project is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import gpumemnet_mlp, litgpt_step
from benchmarks.gpumemnet_mlp import MlpSetting
from benchmarks.gpumemnet_transformer import Classifier, TransformerSetting
from benchmarks.model_configs import Sizes, config_of
from benchmarks.published_gpumemnet import setting_of
from benchmarks.published_models import _litgpt, _setting, _sizes
from benchmarks.transformers_step import Setting, _attention_name

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a tool may ask of a row.

    Attributes:
        build: a new model, on the default device, in its own type, ready to train.
        loss: of a model and a batch that `inputs` made.
        inputs: a batch, on the default device.
        sample_shape: one sample without the batch.
        dtype: of the weights.
        compute_dtype: that of autocast, else `dtype`.
        keeps_gradients: whether they outlive a step, zeroed in place or summed over batches.
        rank: of the adapters, None where all weights train.
        decoder: the configuration of a Llama-like decoder, else None.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    loss: Callable[[nn.Module, Tensor], Tensor]
    batch: int
    sample_shape: tuple[int, ...]
    dtype: torch.dtype
    compute_dtype: torch.dtype
    trains: bool
    optimizer: str
    fused: bool = False
    keeps_gradients: bool = False
    attention: str = "sdpa"
    checkpointing: bool = False
    rank: int | None = None
    projections: tuple[str, ...] = ()
    decoder: Mapping[str, Any] | None = None

    @property
    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision on the CPU, where there is any."""
        if self.compute_dtype is self.dtype:
            return nullcontext()
        return torch.autocast("cpu", self.compute_dtype)


def subject_of(row: Row) -> Subject:
    """The row, rebuilt; one that the project's own benchmarks cover."""
    if row.get("group") == "vramcalc":
        return _of_transformers(_setting(row))
    if row.get("group") == "litgpt-thunder":
        _litgpt(row)  # refuses what is not rebuilt
        return _of_litgpt(
            row["model"], _sizes(row), row["micro_batch"], int(row["seq_len"].split()[0])
        )
    setting = setting_of(row)
    if isinstance(setting, TransformerSetting):
        return _of_classifier(setting)
    if isinstance(setting, MlpSetting):
        return _of_perceptron(setting)
    raise ValueError(setting)


def _of_transformers(setting: Setting) -> Subject:
    config = config_of(setting.model, setting.sizes)
    dtype = torch.float32 if setting.autocast else setting.dtype
    shape = (setting.micro_batch, setting.sequence_length)
    adapter = setting.adapter

    def build() -> nn.Module:
        from transformers import AutoModelForCausalLM

        model: nn.Module = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=_attention_name(setting.attention)
        )
        return model if adapter is None else _adapted(model, adapter.rank, adapter.projections)

    def loss(model: nn.Module, ids_BT: Tensor) -> Tensor:
        found: Tensor = model(input_ids=ids_BT, labels=ids_BT, use_cache=False).loss
        return found

    return Subject(
        build=build,
        inputs=lambda: torch.zeros(shape, dtype=torch.int64),
        loss=loss,
        batch=shape[0],
        sample_shape=shape[1:],
        dtype=dtype,
        compute_dtype=setting.dtype,
        trains=setting.trains,
        optimizer=setting.optimizer.lower(),
        keeps_gradients=True,
        attention=setting.attention,
        checkpointing=setting.checkpointing,
        rank=adapter.rank if adapter else None,
        projections=adapter.projections if adapter else (),
        decoder=config.to_dict(),
    )


def _adapted(model: nn.Module, rank: int, projections: tuple[str, ...]) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(
        r=rank, lora_alpha=rank, target_modules=list(projections), task_type="CAUSAL_LM"
    )
    found: nn.Module = get_peft_model(model, settings)
    return found


def _of_litgpt(name: str, sizes: Sizes, micro_batch: int, length: int) -> Subject:
    shape = (micro_batch, length)

    def build() -> nn.Module:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            return litgpt_step.Gpt(sizes, length)
        finally:
            torch.set_default_dtype(before)

    def loss(model: nn.Module, ids_BT: Tensor) -> Tensor:
        logits_BTV = model(ids_BT).float()
        return functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT.flatten())

    return Subject(
        build=build,
        inputs=lambda: torch.zeros(shape, dtype=torch.int64),
        loss=loss,
        batch=micro_batch,
        sample_shape=(length,),
        dtype=torch.bfloat16,
        compute_dtype=torch.bfloat16,
        trains=True,
        optimizer="adamw",
        fused=True,
        keeps_gradients=True,
        decoder=config_of(name, sizes).to_dict(),
    )


def _of_classifier(setting: TransformerSetting) -> Subject:
    shape = (setting.batch, setting.length)
    return _of_labelled(
        lambda: Classifier(setting), lambda: torch.zeros(shape, dtype=torch.int64), shape
    )


def _of_perceptron(setting: MlpSetting) -> Subject:
    shape = (min(setting.batch, gpumemnet_mlp.NUM_SAMPLES), setting.inputs)
    return _of_labelled(lambda: gpumemnet_mlp.network(setting), lambda: torch.zeros(shape), shape)


def _of_labelled(
    build: Callable[[], nn.Module], inputs: Callable[[], Tensor], shape: tuple[int, int]
) -> Subject:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return functional.cross_entropy(model(batch), torch.zeros(len(batch), dtype=torch.int64))

    return Subject(
        build=build,
        inputs=inputs,
        loss=loss,
        batch=shape[0],
        sample_shape=shape[1:],
        dtype=torch.float32,
        compute_dtype=torch.float32,
        trains=True,
        optimizer="adam",
    )
