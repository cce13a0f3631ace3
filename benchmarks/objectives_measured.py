"""Objectives that stand for most models: an encoder, a convolutional net, a multilayer perceptron.

What they learn is made up, since it is their memory that is measured: random inputs, each labelled
by its first value. Every net keeps its blocks in an `nn.ModuleList`, which activation checkpointing
looks for.

Tensors carry their shape: B samples, T positions, C channels, F features, H and W pixels,
V values, K classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from search.metric import Goal, Metric
from search.objective import Split
from search.training_params import micro_batch_size

if TYPE_CHECKING:
    from search.objective import Batch
    from search.results import Params

__all__ = ["Classification", "convolutional_net", "multilayer_perceptron", "transformer_encoder"]

_NUM_CLASSES = 10
_NUM_VALUES = 1000
_NUM_COLOURS = 3
_HELD_OUT_SAMPLES = 8
_HELD_OUT_BATCHES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderParams:
    """The dimensions of the encoder."""

    width: int = 64
    depth: int = 2
    heads: int = 4
    dropout: float = 0.1
    sequence_length: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionalParams:
    """The dimensions of the convolutional net: `depth` blocks, pooled after every second one."""

    width: int = 16
    depth: int = 4
    image_size: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PerceptronParams:
    """The dimensions of the perceptron."""

    width: int = 256
    depth: int = 4
    num_features: int = 64
    dropout: float = 0.1


class Encoder(nn.Module):
    """torch's own transformer encoder over values (B, T), averaged over positions, to (B, K)."""

    def __init__(self, params: EncoderParams) -> None:
        """Post-norm layers with a feed-forward net four times as wide, as torch has by default."""
        super().__init__()
        self.embedding = nn.Embedding(_NUM_VALUES, params.width)
        self.positions = nn.Parameter(0.02 * torch.randn(params.sequence_length, params.width))
        layer = nn.TransformerEncoderLayer(
            params.width, params.heads, 4 * params.width, params.dropout, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, params.depth, enable_nested_tensor=False)
        self.head = nn.Linear(params.width, _NUM_CLASSES)

    def forward(self, values_BT: Tensor) -> Tensor:
        """Logits of the classes."""
        x_BTC = self.encoder(self.embedding(values_BT) + self.positions)
        return self.head(x_BTC.mean(dim=1))  # type: ignore[no-any-return]


class ConvolutionalNet(nn.Module):
    """Residual blocks with batch norm, halved by max-pooling, averaged: (B, C, H, W) to (B, K)."""

    def __init__(self, params: ConvolutionalParams) -> None:
        """The width doubles with every pooling."""
        super().__init__()
        widths = [params.width * 2 ** (index // 2) for index in range(params.depth)]
        self.stem = nn.Conv2d(_NUM_COLOURS, params.width, 3, padding=1)
        self.blocks = nn.ModuleList(
            _ConvolutionalBlock(before, width, pooled=index % 2 == 1)
            for index, (before, width) in enumerate(
                zip([params.width, *widths], widths, strict=False)
            )
        )
        self.head = nn.Linear(widths[-1], _NUM_CLASSES)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits of the classes."""
        x_BCHW = self.stem(x_BCHW)
        for block in self.blocks:
            x_BCHW = block(x_BCHW)
        return self.head(functional.adaptive_avg_pool2d(x_BCHW, 1).flatten(1))  # type: ignore[no-any-return]


class _ConvolutionalBlock(nn.Module):
    def __init__(self, num_inputs: int, num_outputs: int, *, pooled: bool) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(num_inputs, num_outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_outputs, num_outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
        )
        widens = num_inputs != num_outputs
        self.shortcut = nn.Conv2d(num_inputs, num_outputs, 1) if widens else nn.Identity()
        self.pooling = nn.MaxPool2d(2) if pooled else nn.Identity()

    def forward(self, x_BCHW: Tensor) -> Tensor:
        summed_BCHW = self.convolutions(x_BCHW) + self.shortcut(x_BCHW)
        return self.pooling(functional.relu(summed_BCHW))  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """Linear maps, batch norm, GELU and dropout, from features (B, F) to logits (B, K)."""

    def __init__(self, params: PerceptronParams) -> None:
        """`depth` blocks of one width."""
        super().__init__()
        widths = [params.num_features, *[params.width] * params.depth]
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(before, after),
                nn.BatchNorm1d(after),
                nn.GELU(),
                nn.Dropout(params.dropout),
            )
            for before, after in itertools.pairwise(widths)
        )
        self.head = nn.Linear(params.width, _NUM_CLASSES)

    def forward(self, x_BF: Tensor) -> Tensor:
        """Logits of the classes."""
        for block in self.blocks:
            x_BF = block(x_BF)
        return self.head(x_BF)  # type: ignore[no-any-return]


class Classification:
    """A net that sorts made-up inputs into classes."""

    def __init__(
        self,
        parameters: type,
        net: Callable[[Any], nn.Module],
        sample_shape: Callable[[Any], tuple[int, ...]],
        input_dtype: torch.dtype,
    ) -> None:
        """Needs no data.

        Args:
            parameters: the dimensions of the net, a dataclass.
            net: a new net of given dimensions.
            sample_shape: the shape of one of its inputs.
            input_dtype: int64 for values to be embedded, else a floating type.
        """
        self.metrics: tuple[Metric, ...] = (Metric(name="nats", goal=Goal.MIN),)
        self.parameters = parameters
        self.provenance: Mapping[str, str | int] = {}
        self._net = net
        self._sample_shape = sample_shape
        self._input_dtype = input_dtype

    def model(self, params: Params) -> nn.Module:
        """A new net."""
        return self._net(self._dimensions(params))

    def batch(self, params: Params, split: Split) -> Batch:
        """Zeros: `inputs`, and `targets`, int64, (B,)."""
        shape = self._shape(params, split)
        return {
            "inputs": torch.zeros(shape, dtype=self._input_dtype),
            "targets": torch.zeros(shape[0], dtype=torch.int64),
        }

    def data(
        self, params: Params, split: Split, *, seed: int, num_tokens: int | None = None
    ) -> Iterator[Batch]:
        """Random inputs, labelled by the first value of each; the held-out ones do not change."""
        num_samples, *sample_shape = self._shape(params, split)
        if split is Split.HELD_OUT or num_tokens is None:
            num_tokens = _HELD_OUT_BATCHES * num_samples
        generator = torch.Generator().manual_seed(seed if split is Split.TRAIN else 0)
        remaining = num_tokens
        while remaining > 0:
            yield self._drawn((min(num_samples, remaining), *sample_shape), generator)
            remaining -= num_samples

    def num_tokens(self, batch: Batch) -> int:
        """Samples in a batch."""
        return len(batch["targets"])

    def tokens_per_sample(self, params: Params) -> int:  # noqa: ARG002 - as the contract has it
        """One."""
        return 1

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy in nats."""
        inputs = batch["inputs"]
        if inputs.is_floating_point():
            inputs = inputs.to(next(model.parameters()).dtype)
        return functional.cross_entropy(model(inputs).float(), batch["targets"])

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Mean cross-entropy of the last batch."""
        nats = [self.loss(model, batch).item() for batch in batches]
        return {"nats": nats[-1]}

    def _drawn(self, shape: tuple[int, ...], generator: torch.Generator) -> Batch:
        if self._input_dtype.is_floating_point:
            inputs = torch.randn(shape, generator=generator, dtype=self._input_dtype)
        else:
            inputs = torch.randint(_NUM_VALUES, shape, generator=generator, dtype=self._input_dtype)
        return {"inputs": inputs, "targets": inputs.flatten(1)[:, 0].long().abs() % _NUM_CLASSES}

    def _shape(self, params: Params, split: Split) -> tuple[int, ...]:
        num_samples = micro_batch_size(params) if split is Split.TRAIN else _HELD_OUT_SAMPLES
        return (num_samples, *self._sample_shape(self._dimensions(params)))

    def _dimensions(self, params: Params) -> Any:
        names = self.parameters.__dataclass_fields__  # type: ignore[attr-defined]
        return self.parameters(**{name: params[name] for name in names if name in params})


def transformer_encoder() -> Classification:
    """Classifies sequences of values with `Encoder`."""
    return Classification(
        EncoderParams, Encoder, lambda params: (params.sequence_length,), torch.int64
    )


def convolutional_net() -> Classification:
    """Classifies pictures with `ConvolutionalNet`."""
    return Classification(
        ConvolutionalParams,
        ConvolutionalNet,
        lambda params: (_NUM_COLOURS, params.image_size, params.image_size),
        torch.float32,
    )


def multilayer_perceptron() -> Classification:
    """Classifies rows of features with `Perceptron`."""
    return Classification(
        PerceptronParams, Perceptron, lambda params: (params.num_features,), torch.float32
    )
