"""A tiny objective of our own: what warms a process up and measures a machine.

Tensors carry their shape: B samples, T positions, C channels, V values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from search.metric import Goal, Metric
from search.objective import Split
from search.training_params import micro_batch_size

if TYPE_CHECKING:
    from search.objective import Batch
    from search.results import Params

_VALUES = 64
_HEADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleParams:
    """The dimensions of the sample."""

    width: int = 64
    depth: int = 2
    sequence_length: int = 32


class Sample:
    """Tells back its own input, through the kinds of layer that most models are made of."""

    def __init__(self) -> None:
        """Needs no data."""
        self.metrics: tuple[Metric, ...] = (Metric(name="nats", goal=Goal.MIN),)
        self.parameters: type = SampleParams
        self.provenance: Mapping[str, str | int] = {}

    def model(self, params: Params) -> nn.Module:
        """An embedding, blocks of attention and a feed-forward net, and a head."""
        dimensions = _dimensions(params)
        blocks = (_Block(dimensions.width) for _ in range(dimensions.depth))
        return nn.Sequential(
            nn.Embedding(_VALUES, dimensions.width),
            _Blocks(blocks),
            nn.Linear(dimensions.width, _VALUES),
        )

    def batch(self, params: Params, split: Split) -> Batch:  # noqa: ARG002 - both splits are alike
        """Zeros, int64, (B, T)."""
        shape = (micro_batch_size(params), _dimensions(params).sequence_length)
        return {"values": torch.zeros(shape, dtype=torch.int64)}

    def data(
        self,
        params: Params,
        split: Split,
        *,
        seed: int,  # noqa: ARG002 - there is nothing to draw
        num_tokens: int | None = None,  # noqa: ARG002 - who asks stops by himself
    ) -> Iterator[Batch]:
        """The same batch for ever, or twice when held out."""
        count = 2 if split is Split.HELD_OUT else None
        for _ in itertools.count() if count is None else range(count):
            yield self.batch(params, split)

    def num_tokens(self, batch: Batch) -> int:
        """Values in a batch."""
        return batch["values"].numel()

    def tokens_per_sample(self, params: Params) -> int:
        """Values in one sample."""
        return _dimensions(params).sequence_length

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy in nats."""
        logits_BTV = model(batch["values"])
        return functional.cross_entropy(logits_BTV.flatten(0, 1), batch["values"].flatten())

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Mean cross-entropy of the last batch."""
        nats = [self.loss(model, batch).item() for batch in batches]
        return {"nats": nats[-1]}


def _dimensions(params: Params) -> SampleParams:
    names = SampleParams.__dataclass_fields__
    return SampleParams(**{name: params[name] for name in names if name in params})  # type: ignore[arg-type]


class _Blocks(nn.Module):
    """One block after another, in the list that checkpointing looks for."""

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x_BTC: Tensor) -> Tensor:
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return x_BTC


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x_BTC: Tensor) -> Tensor:
        qkv = self.queries_keys_values(self.norm(x_BTC)).chunk(3, dim=-1)
        q_BHTD, k_BHTD, v_BHTD = (t.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for t in qkv)
        gathered = functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        result: Tensor = x_BTC + self.feed_forward(gathered.transpose(1, 2).flatten(2))
        return result
