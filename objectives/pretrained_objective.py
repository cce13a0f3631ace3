"""What the objectives over models of transformers share: how a model is opened, built and saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from objectives.adapters import with_adapters
from objectives.pretrained import (
    Task,
    dropouts,
    new_config,
    new_model,
    num_positions,
    require_weights,
)
from objectives.pretrained_params import TransformersParams
from objectives.pretrained_saving import save_pretrained
from objectives.pretrained_source import open_source
from objectives.token_source import TokenSource
from search.errors import InputError
from search.training_params import Precision, TrainingParams

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from search.results import Params


class PretrainedObjective:
    """What every objective has of its model, whatever it is for. Its data and loss are left out."""

    task: Task
    tokens: TokenSource
    settings: str

    def _open(self, model: str | None, config: Mapping[str, Any] | str | None) -> None:
        self.source = open_source(model, config)
        self.tokens = TokenSource.of(self.source)
        require_weights(self.source, self.task, self._config(TransformersParams()))
        self._load_code()
        versions = [version(name) for name in ("transformers", "peft")]
        self.settings = json.dumps([*versions, self.source.values], sort_keys=True)

    def _load_code(self) -> None:
        """Imports what a model takes, which no trial is to be charged for.

        Raises:
            InputError: when no model can be built of the values of its configuration.
        """
        try:
            with torch.device("meta"), suppress(InputError):  # told when it is asked for
                self._new_model({}, TransformersParams(lora_rank=1))
        except Exception as error:
            kind = self.source.values.get("model_type")
            msg = (
                f"transformers builds no {kind} model of this config: "
                f"{type(error).__name__}: {error} (correct the values it names)"
            )
            raise InputError(msg) from error

    def _config(self, chosen: TransformersParams, **changes: Any) -> PretrainedConfig:
        changes |= self.tokens.config_changes(chosen.vocabulary)
        if chosen.depth is not None:
            changes["num_hidden_layers"] = chosen.depth
        if chosen.dropout is not None:
            changes |= dict.fromkeys(dropouts(self.source), chosen.dropout)
        return new_config(self.source, self.task, changes)

    def _new_model(self, params: Params, chosen: TransformersParams, **changes: Any) -> nn.Module:
        precise = TrainingParams.of(params).precision is not Precision.BF16
        model = new_model(
            self.source,
            self.task,
            self._config(chosen, **changes),
            dtype=torch.float32 if precise else torch.bfloat16,
            attention=chosen.attention,
        )
        if not chosen.lora_rank:
            found: nn.Module = model
            return found
        return with_adapters(
            model,
            self.task,
            rank=chosen.lora_rank,
            alpha=chosen.lora_alpha,
            dropout=chosen.lora_dropout,
            target=chosen.lora_target,
        )

    def _require_positions(self, name: str, length: int, chosen: TransformersParams) -> None:
        most = num_positions(self._config(chosen))
        if most is not None and length > most:
            msg = f"{name} {length} is more than the {most} positions of this model (lower it)"
            raise InputError(msg)

    def save(self, model: nn.Module, params: Params, folder: Path) -> None:  # noqa: ARG002 - as the contract has it
        """Writes what `from_pretrained` reads: weights, or adapters for those of a folder."""
        save_pretrained(model, self.source, folder)
