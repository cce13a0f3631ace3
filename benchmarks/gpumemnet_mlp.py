"""The multilayer perceptrons of GPUMemNet's data set, and what their script does with the GPU.

Source: itu-rad/GPUMemNet, `NeuroNetGen_scripts/MLP/mlp.py` and the columns of
`mlp_data_step2.csv`, whose script (`mlp_next.py`) is not published; the counts of layers and
parameters in those columns are checked against the model built here. torchsummary runs one batch
of two samples first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from benchmarks.gpumemnet_transformer import batch_sizes

NUM_SAMPLES = 4096
_SUMMARY_BATCH = 2

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "elu": nn.ELU,
        "gelu": nn.GELU,
        "identity": nn.Identity,
        "leaky_relu": nn.LeakyReLU,
        "mish": nn.Mish,
        "prelu": nn.PReLU,
        "relu": nn.ReLU,
        "selu": nn.SELU,
        "softplus": nn.Softplus,
        "swish": nn.SiLU,
        "tanh": nn.Tanh,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSetting:
    """What the script was told; `dropout` is None where there is none."""

    inputs: int
    outputs: int
    hidden_layers: int
    architecture: str
    activation: str
    dropout: float | None
    batch_norm: bool
    batch: int


def widths(setting: MlpSetting) -> tuple[int, ...]:
    """The width of the input and of each hidden layer."""
    found, outputs = [setting.inputs], setting.outputs
    step = (setting.inputs - outputs) // setting.hidden_layers
    halved = setting.architecture in {"pyramid", "bottleneck"}
    for _ in range(setting.hidden_layers + (setting.architecture == "bottleneck")):
        if halved:
            found.append(max(found[-1] // 2, outputs))
        elif setting.architecture == "gradual":
            found.append(max(found[-1] - step, outputs))
        else:
            found.append(found[-1])
    return tuple(found)


def network(setting: MlpSetting) -> nn.Sequential:
    """Blocks of linear, batch norm, activation and dropout; a linear layer; the softmax."""
    return nn.Sequential(*_layers(setting))


def _layers(setting: MlpSetting) -> Iterator[nn.Module]:
    sizes = widths(setting)
    for inputs, outputs in pairwise(sizes):
        yield nn.Linear(inputs, outputs)
        if setting.batch_norm:
            yield nn.BatchNorm1d(outputs)
        yield ACTIVATIONS[setting.activation]()
        if setting.dropout is not None:
            yield nn.Dropout(setting.dropout)
    yield nn.Linear(sizes[-1], setting.outputs)
    if setting.outputs > 1:
        yield nn.Softmax(dim=1)


def num_parameters(setting: MlpSetting) -> int:
    """Trained scalars of the network without the slopes of PReLU, which the data set leaves out."""
    with torch.device("meta"):
        layers = [layer for layer in network(setting) if not isinstance(layer, nn.PReLU)]
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters())


def ends_early(setting: MlpSetting) -> bool:
    """Whether the script raises in its first epoch, a fraction of a second after its first step.

    Batch norm needs two samples, and the last batch has one. Memory was read once a second, so
    what it held at its peak was hardly seen.
    """
    return setting.batch_norm and NUM_SAMPLES % setting.batch == 1


def train_network(setting: MlpSetting, device: torch.device) -> dict[str, Any]:
    """A pass of two samples, then training over as many batches as can differ.

    With one output it is not published whether a sigmoid comes before the loss: it comes inside.
    """
    model = network(setting).to(device)
    model(torch.rand(_SUMMARY_BATCH, setting.inputs).to(device))
    several = setting.outputs > 1
    criterion = nn.CrossEntropyLoss() if several else nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for batch in batch_sizes(NUM_SAMPLES, min(setting.batch, NUM_SAMPLES)):
        inputs, labels = torch.zeros(batch, setting.inputs), torch.zeros(batch, dtype=torch.int64)
        inputs, labels = inputs.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, labels if several else labels.view(-1, 1).float())
        loss.backward()
        optimizer.step()
        loss.item()
    return locals()
