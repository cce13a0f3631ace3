"""Sorts texts into classes, or gives each a number: by the mean of its pieces, or by an encoder.

Tensors carry their shape: B samples, T positions, C channels (the width), K classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from objectives.classification import CLASS_METRICS, class_metrics
from objectives.dimensions import chosen, require_at_least, require_below
from objectives.labelled_texts import (
    PADDING,
    LabelledTexts,
    in_pieces,
    open_classes,
    open_numbers,
    padded,
)
from objectives.samples import Indices, in_order, samples_of_batch, training_order
from objectives.vocabulary import NUM_BYTES
from search.loading import MadeBatches
from search.metric import Goal, Metric
from search.objective import Split

if TYPE_CHECKING:
    from search.objective import Batch
    from search.results import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class TextParams:
    """The dimensions of the net.

    `vocabulary` counts sub-word pieces learned from the texts; 256 are the bytes themselves.
    `sequence_length` is how many pieces of a text are read; shorter ones are padded. `depth`,
    `heads` and `dropout` are used by `transformer` alone.
    """

    variant: Literal["embedding", "transformer"] = "embedding"
    vocabulary: int = 1024
    sequence_length: int = 32
    width: int = 64
    depth: int = 2
    heads: int = 4
    dropout: float = 0.1

    def __post_init__(self) -> None:
        """Raises ValueError on dimensions that make no net."""
        require_at_least(1, self, "sequence_length", "width", "depth", "heads")
        require_at_least(NUM_BYTES, self, "vocabulary", why="the bytes")
        require_below(1, self, "dropout")
        if self.variant == "transformer" and self.width % self.heads:
            msg = f"width {self.width} must be a multiple of heads ({self.heads})"
            raise ValueError(msg)


class _OfTexts:
    """How labelled texts become batches, whatever their labels are."""

    texts: LabelledTexts
    parameters: type = TextParams
    provenance: Mapping[str, str | int]

    def batch(self, params: Params, split: Split) -> Batch:
        """Zeros: `pieces`, int64, (B, T), and `targets`, (B,), int64 classes or fp32 numbers."""
        return _zeros(self.texts, params, split)

    def data(
        self, params: Params, split: Split, *, seed: int, num_tokens: int | None = None
    ) -> Iterator[Batch]:
        """Texts cut or padded to the trial's length; those to train on in random order."""
        return _batches(self.texts, params, split, seed=seed, num_tokens=num_tokens)

    def num_tokens(self, batch: Batch) -> int:
        """Texts in a batch: each has one target, so a text counts as a token does elsewhere."""
        return len(batch["targets"])

    def tokens_per_sample(self, params: Params) -> int:  # noqa: ARG002 - as the contract has it
        """One."""
        return 1


class TextClassifier(_OfTexts):
    """Learns to sort texts into classes."""

    metrics: tuple[Metric, ...] = CLASS_METRICS

    def __init__(
        self,
        file: str = "python-stdlib",
        text: str = "text",
        label: str = "label",
        held_out_samples: int = 1_000,
    ) -> None:
        """Opens the texts.

        Args:
            file: `python-stdlib`, lines of code to be told apart by their package; or the path of
                a CSV, TSV, JSON Lines or Parquet file.
            text: the column of texts in that file.
            label: its column of labels.
            held_out_samples: texts that every trial is judged on, a fifth of all at most.
        """
        self.texts = open_classes(file, text=text, label=label, held_out_samples=held_out_samples)
        self.num_classes = len(self.texts.classes)
        self.provenance = self.texts.provenance

    def model(self, params: Params) -> nn.Module:
        """A `TextNet` with an output for each class."""
        return TextNet(_text_params(params), num_outputs=self.num_classes)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy in nats a text."""
        return functional.cross_entropy(*self.scores(model, batch))

    def scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """What each text is given for each class, and its class."""
        return model(batch["pieces"]), batch["targets"]

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Over all held-out texts the share told right, and the mean negative log-likelihood."""
        return class_metrics(self.scores(model, batch) for batch in batches)


class TextRegressor(_OfTexts):
    """Learns to give each text its number."""

    metrics: tuple[Metric, ...] = (
        Metric(name="mean_squared_error", goal=Goal.MIN),
        Metric(name="mean_absolute_error", goal=Goal.MIN),
    )

    def __init__(
        self,
        file: str = "python-stdlib",
        text: str = "text",
        label: str = "label",
        held_out_samples: int = 1_000,
    ) -> None:
        """Opens the texts.

        Args:
            file: `python-stdlib`, lines of code and how deep each is indented; or the path of a
                CSV, TSV, JSON Lines or Parquet file.
            text: the column of texts in that file.
            label: its column of numbers.
            held_out_samples: texts that every trial is judged on, a fifth of all at most.
        """
        self.texts = open_numbers(file, text=text, label=label, held_out_samples=held_out_samples)
        self.provenance = self.texts.provenance
        numbers = self.texts.targets[Split.TRAIN]
        self.mean, self.spread = float(numbers.mean()), float(numbers.std()) or 1.0

    def model(self, params: Params) -> nn.Module:
        """A `TextNet` with one output."""
        return TextNet(_text_params(params), num_outputs=1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean squared error, of numbers less their mean and in units of their spread."""
        targets_B = (batch["targets"] - self.mean) / self.spread
        return functional.mse_loss(model(batch["pieces"])[:, 0], targets_B)

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Mean squared and absolute error over all held-out texts, in the unit of the numbers."""
        squares, sizes, num_texts = 0.0, 0.0, 0
        for batch in batches:
            errors_B = model(batch["pieces"])[:, 0] * self.spread + self.mean - batch["targets"]
            squares += errors_B.square().sum().item()
            sizes += errors_B.abs().sum().item()
            num_texts += len(errors_B)
        return {
            "mean_squared_error": squares / num_texts,
            "mean_absolute_error": sizes / num_texts,
        }


def _text_params(params: Params) -> TextParams:
    return chosen(TextParams, params)


def _zeros(texts: LabelledTexts, params: Params, split: Split) -> Batch:
    num_samples, length = samples_of_batch(params, split), _text_params(params).sequence_length
    if split is Split.HELD_OUT:
        num_samples = min(num_samples, len(texts.texts[split]))
    kind = torch.int64 if texts.classes else torch.float32
    return {
        "pieces": torch.zeros(num_samples, length, dtype=torch.int64),
        "targets": torch.zeros(num_samples, dtype=kind),
    }


def _batches(
    texts: LabelledTexts, params: Params, split: Split, *, seed: int, num_tokens: int | None
) -> Iterator[Batch]:
    chosen = _text_params(params)
    pieces = in_pieces(texts, chosen.vocabulary)
    all_samples = np.arange(len(texts.texts[split]))
    num_samples = samples_of_batch(params, split)
    if split is Split.HELD_OUT:
        order = in_order(all_samples, num_samples=num_samples)
    else:
        order = training_order(
            all_samples, num_samples=num_samples, num_tokens=num_tokens, seed=seed
        )

    def batch(indices: Indices) -> Batch:
        return {
            "pieces": padded(pieces[split.value], indices, chosen.sequence_length),
            "targets": torch.from_numpy(texts.targets[split][indices]),
        }

    return MadeBatches(batch, order)


class TextNet(nn.Module):
    """An embedding, an encoder or none, the mean over pieces, a linear map: (B, T) to (B, K)."""

    def __init__(self, params: TextParams, *, num_outputs: int) -> None:
        """Weights are drawn as torch does by default."""
        super().__init__()
        self.embedding = nn.Embedding(params.vocabulary + 1, params.width, padding_idx=PADDING)
        self.encoder = Encoder(params) if params.variant == "transformer" else None
        self.head = nn.Linear(params.width, num_outputs)

    def forward(self, pieces_BT: Tensor) -> Tensor:
        """What each text is given for each output, fp32."""
        is_piece_BT = pieces_BT != PADDING
        x_BTC = self.embedding(pieces_BT)
        if self.encoder is not None:
            x_BTC = self.encoder(x_BTC, is_piece_BT)
        count_B1 = is_piece_BT.sum(dim=1, keepdim=True).clamp(min=1)
        mean_BC = (x_BTC * is_piece_BT[..., None]).sum(dim=1) / count_B1
        outputs: Tensor = self.head(mean_BC.to(self.head.weight.dtype))
        return outputs.float()


class Encoder(nn.Module):
    """Attention between the pieces of a text, each layer with dropout, positions learned."""

    def __init__(self, params: TextParams) -> None:
        """Post-norm layers, as torch has by default; positions are drawn from N(0, 0.02)."""
        super().__init__()
        self.positions_TC = nn.Parameter(0.02 * torch.randn(params.sequence_length, params.width))
        layer = nn.TransformerEncoderLayer(
            params.width, params.heads, 4 * params.width, params.dropout, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, params.depth, enable_nested_tensor=False)

    def forward(self, x_BTC: Tensor, is_piece_BT: Tensor) -> Tensor:
        """What each piece becomes beside the others; padding is not looked at."""
        x_BTC = x_BTC + self.positions_TC
        return self.layers(x_BTC, src_key_padding_mask=~is_piece_BT)  # type: ignore[no-any-return]
