"""Weights of linear layers as int8, by torchao. Importing it takes seconds and 80 MiB, so it waits.

torch's own quantization is deprecated in favour of torchao.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from search.compression.params import Quantization
from search.errors import InputError
from search.quiet import quiet_torchao

EXTRA = "quant"


def missing() -> str:
    """What to install before anything can be quantized; empty when it is here."""
    if importlib.util.find_spec("torchao") is not None:
        return ""
    return f"needs torchao (pip install 'paretune[{EXTRA}]', or set it to none)"


def prepare() -> None:
    """Imports what quantizing needs, so that no trial is charged for it."""
    layer = nn.Sequential(nn.Linear(32, 32))
    for kind in (Quantization.INT8_DYNAMIC, Quantization.INT8_WEIGHT_ONLY):
        quantize(layer, kind)
        with torch.no_grad():
            layer(torch.zeros(2, 32))
        layer = nn.Sequential(nn.Linear(32, 32))


def register() -> None:
    """Lets torch read quantized weights from a file."""
    with quiet_torchao():
        importlib.import_module("torchao.quantization")


def quantize(model: nn.Module, kind: Quantization) -> tuple[str, ...]:
    """Replaces the weights of linear layers by int8 ones with a scale a row; the layers' names.

    In place, layer by layer. Left as they are: all other layers, and a weight that a layer shares
    with another module, as with an embedding.

    Raises:
        InputError: when the model has no such layer.
        ModuleNotFoundError: without torchao, see `missing`.
    """
    if kind is Quantization.NONE:
        return ()
    chosen = linear_layers(model)
    require_linear(chosen)
    with quiet_torchao():
        from torchao.quantization import quantize_

        quantize_(model, _config(kind), filter_fn=lambda _, name: name in chosen)
    return chosen


def require_linear(layers: tuple[str, ...]) -> None:
    """Raises InputError when there are no layers to quantize."""
    if not layers:
        msg = (
            "quantization: the model has no linear layer with a weight of its own (set it to none)"
        )
        raise InputError(msg)


def linear_layers(model: nn.Module) -> tuple[str, ...]:
    """The names of the linear layers that share their weight with nothing.

    Left out: the last layer of `nn.MultiheadAttention`, whose weight torch takes out of it.
    """
    uses = Counter(id(each) for _, each in model.named_parameters(remove_duplicate=False))
    return tuple(
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not isinstance(module, NonDynamicallyQuantizableLinear)
        and uses[id(module.weight)] == 1
    )


def _config(kind: Quantization) -> Any:
    from torchao import quantization

    configs = {
        Quantization.INT8_DYNAMIC: quantization.Int8DynamicActivationInt8WeightConfig,
        Quantization.INT8_WEIGHT_ONLY: quantization.Int8WeightOnlyConfig,
    }
    return configs[kind]()
