"""A compressed model on disk: the file of a state dict, and how it becomes a model again."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from search.compression import quantization
from search.compression.channels import set_sizes
from search.compression.params import CompressionParams, Quantization

if TYPE_CHECKING:
    from search.objective import Objective
    from search.results import Params


class _Pickler(pickle.Pickler):
    """Writes members of an enum by their values.

    Some releases of Python 3.11 write them as calls of `getattr`, which torch refuses to read.
    """

    def reducer_override(self, value: object) -> Any:
        """How to write a value; NotImplemented where that is as ever."""
        return (type(value), (value.value,)) if isinstance(value, Enum) else NotImplemented


_PICKLE = ModuleType("pickle")
_PICKLE.Pickler = _Pickler  # type: ignore[attr-defined]
"""What torch asks of a module that pickles."""


def save_model(model: nn.Module, file: Path) -> int:
    """Writes a model's state dict; the bytes of the file, the same whatever it is called."""
    with file.open("wb") as opened:
        torch.save(model.state_dict(), opened, pickle_module=_PICKLE)
    return file.stat().st_size


def load_model(objective: Objective, params: Params, file: Path, device: torch.device) -> nn.Module:
    """The model that `save_model` wrote, in evaluation mode, with all its outputs as they were.

    Its weights are in memory once.

    Args:
        objective: that of the model.
        params: its configuration, with its dimensions of compression.
        file: its state dict.
        device: where it is to lie.
    """
    if CompressionParams.of(params).quantization is not Quantization.NONE:
        quantization.register()
    state = torch.load(file, map_location=device, weights_only=True)
    model = without_weights(objective, params)
    if not _covers(state, model):
        with device:
            model = objective.model(params)
    for name, module in model.named_modules():
        _fit(module, state.get(f"{name}.weight" if name else "weight"))
    model.requires_grad_(requires_grad=False)
    model.load_state_dict(state, assign=True)
    return model.eval()


def without_weights(objective: Objective, params: Params) -> nn.Module:
    """The model of a configuration as it is made, its tensors without values."""
    with torch.device("meta"):
        return objective.model(params)


def _covers(state: Mapping[str, Any], model: nn.Module) -> bool:
    """Whether the state has all of a model's tensors; some buffers are never saved."""
    return all(name in state for name, _ in (*model.named_parameters(), *model.named_buffers()))


def _fit(module: nn.Module, weight: Tensor | None) -> None:
    """Gives a layer the sizes of a stored weight, where units were taken out of it."""
    own = getattr(module, "weight", None)
    if weight is None or not isinstance(own, Tensor) or own.shape == weight.shape:
        return
    module.weight = nn.Parameter(own.new_empty(weight.shape), requires_grad=False)
    if isinstance(getattr(module, "bias", None), Tensor):
        module.bias = nn.Parameter(own.new_empty(weight.shape[:1]), requires_grad=False)
    set_sizes(module)
