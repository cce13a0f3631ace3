"""An encoder-decoder transformer that turns one text into another, judged in bits per byte.

Tensors carry their shape: B pairs, S positions of a source, T of a target, C channels (the width),
E pairs of channels, V entries of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from objectives.dimensions import chosen, require_at_least, require_below
from objectives.padding import sample_order
from objectives.pairs import open_pairs
from objectives.sides import IGNORED, NUM_MARKS, Sides
from objectives.vocabulary import NUM_BYTES, tokenized
from search.metric import Goal, Metric
from search.objective import MEMORY_NEUTRAL, Split
from search.training_params import TrainingParams, micro_batch_size

if TYPE_CHECKING:
    from search.objective import Batch
    from search.results import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class Seq2SeqParams:
    """The dimensions of the model and of its text.

    `sequence_length` is the most pieces of a source, and of a target with its end mark, that it
    trains on: longer ones are cut. `vocabulary` counts sub-word pieces and three marks.
    `bucketing` is the number of batches whose pairs are sorted by length together; 1 for none.
    """

    sequence_length: int = 16
    vocabulary: int = 1_000
    width: int = 64
    encoder_depth: int = 2
    decoder_depth: int = 2
    heads: int = 4
    dropout: float = 0.1
    shared_embedding: bool = False
    bucketing: int = field(default=1, metadata=MEMORY_NEUTRAL)  # the longest batch is as long

    def __post_init__(self) -> None:
        """Raises ValueError on dimensions that make no model."""
        depths = "encoder_depth", "decoder_depth"
        require_at_least(1, self, "sequence_length", "width", *depths, "heads", "bucketing")
        require_at_least(NUM_BYTES + NUM_MARKS, self, "vocabulary")
        require_below(1, self, "dropout")
        if self.width % self.heads or self.width % 2:
            msg = f"width {self.width} must be even and a multiple of heads ({self.heads})"
            raise ValueError(msg)


class Seq2Seq:
    """Learns to give the target of a source."""

    metrics: tuple[Metric, ...] = (
        Metric(name="bits_per_byte", goal=Goal.MIN),
        Metric(name="exact_match", goal=Goal.MAX),
    )
    parameters: type = Seq2SeqParams
    provenance: Mapping[str, str | int]

    def __init__(
        self,
        pairs: str = "language-names",
        held_out_pairs: int = 512,
        longest_bytes: int = 1_000,
    ) -> None:
        """Opens the pairs: a name, or the path of a tab-separated file.

        Args:
            pairs: `language-names` or a path.
            held_out_pairs: pairs that every trial is judged on.
            longest_bytes: pairs with more on a side are left out.
        """
        self.corpus = open_pairs(pairs, held_out_pairs=held_out_pairs, longest_bytes=longest_bytes)
        self.provenance = self.corpus.provenance
        self._sides: dict[int, Mapping[Split, Sides]] = {}

    def model(self, params: Params) -> nn.Module:
        """A `Translator` of the given dimensions."""
        return Translator(_model_params(params))

    def batch(self, params: Params, split: Split) -> Batch:
        """Zeros: `sources` (B, S), `inputs` and `targets` (B, T), int64, each as long as any is."""
        sides = self._cut_sides(params, split)
        if split is Split.HELD_OUT:
            shapes = sides.held_out_shapes()
        else:
            shapes = sides.training_shapes(micro_batch_size(params))
        return {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}

    def data(
        self, params: Params, split: Split, *, seed: int, num_tokens: int | None = None
    ) -> Iterator[Batch]:
        """Padded batches: in random order, the longest first; when held out, by falling length."""
        sides = self._cut_sides(params, split)
        if split is Split.HELD_OUT:
            return sides.held_out_batches()
        model = _model_params(params)
        order = sample_order(
            sides.target_lengths,
            first=sides.longest_pairs,
            batch_size=TrainingParams.of(params).batch_size,
            bucketing=model.bucketing,
            seed=seed,
        )
        if num_tokens is None:
            order = islice(order, len(sides.targets))
        return sides.training_batches(order, micro_batch_size(params), num_tokens)

    def num_tokens(self, batch: Batch) -> int:
        """Pieces and end marks predicted in a batch, without padding."""
        return int((batch["targets"] != IGNORED).sum().item())

    def tokens_per_sample(self, params: Params) -> int:
        """Pieces and end mark of the longest target that is trained on."""
        return int(self._cut_sides(params, Split.TRAIN).target_lengths.max())

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy in nats per piece, padding left out."""
        return functional.cross_entropy(*self.scores(model, batch), ignore_index=IGNORED)

    def scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and targets of all positions; bf16 logits would round the loss to 3 figures."""
        logits_BTV = model(batch["sources"], batch["inputs"])
        return logits_BTV.flatten(0, 1).float(), batch["targets"].flatten()

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Bits per target byte over all held-out pairs, and the share of targets got right.

        The end mark is predicted too and has no bytes of its own. A target counts as right when
        each of its pieces is the likeliest after those before it: just then would choosing the
        likeliest, one after another, spell it.
        """
        total_nats, total_bytes, num_right, num_pairs = 0.0, 0, 0, 0
        for batch in batches:
            logits_NV, targets_N = self.scores(model, batch)
            nats = functional.cross_entropy(
                logits_NV, targets_N, ignore_index=IGNORED, reduction="sum"
            )
            right_N = (logits_NV.argmax(dim=-1) == targets_N) | (targets_N == IGNORED)
            total_nats += nats.item()
            total_bytes += int(batch["target_bytes"].sum().item())
            num_right += int(right_N.view_as(batch["targets"]).all(dim=-1).sum().item())
            num_pairs += len(batch["targets"])
        return {
            "bits_per_byte": total_nats / total_bytes / math.log(2),
            "exact_match": num_right / num_pairs,
        }

    def _cut_sides(self, params: Params, split: Split) -> Sides:
        """The pairs of a split in pieces; what is held out is never cut."""
        model = _model_params(params)
        if model.vocabulary not in self._sides:
            self._sides[model.vocabulary] = self._in_pieces(model.vocabulary)
        sides = self._sides[model.vocabulary][split]
        return sides.cut(model.sequence_length) if split is Split.TRAIN else sides

    def _in_pieces(self, vocabulary: int) -> Mapping[Split, Sides]:
        splits = {Split.TRAIN: self.corpus.train, Split.HELD_OUT: self.corpus.held_out}
        texts = {
            f"{split}_{side}": getattr(pairs, side)
            for split, pairs in splits.items()
            for side in ("sources", "targets")
        }
        found = tokenized(
            texts, trained_on=["train_sources", "train_targets"], size=vocabulary - NUM_MARKS
        )
        return {
            split: Sides(
                sources=found.texts[f"{split}_sources"],
                targets=found.texts[f"{split}_targets"],
                target_bytes=pairs.targets.lengths,
                vocabulary=vocabulary,
            )
            for split, pairs in splits.items()
        }


def _model_params(params: Params) -> Seq2SeqParams:
    return chosen(Seq2SeqParams, params)


class Translator(nn.Module):
    """`nn.Transformer` from sources (B, S) and begun targets (B, T) to logits (B, T, V)."""

    def __init__(self, params: Seq2SeqParams) -> None:
        """Pre-norm layers with a feed-forward net four times as wide.

        With `shared_embedding`, one table serves sources, targets and the head.

        Source: Vaswani et al. 2017, arXiv 1706.03762, section 3; norms as in Xiong et al. 2020,
        arXiv 2002.04745.
        """
        super().__init__()
        self.padding = params.vocabulary - 1
        self.source_embedding = nn.Embedding(params.vocabulary, params.width)
        self.target_embedding = nn.Embedding(params.vocabulary, params.width)
        self.transformer = _transformer(params)
        self.head = nn.Linear(params.width, params.vocabulary, bias=False)
        if params.shared_embedding:
            self.target_embedding.weight = self.head.weight = self.source_embedding.weight
        for table in (self.source_embedding, self.target_embedding, self.head):
            nn.init.normal_(table.weight, std=params.width**-0.5)

    def forward(self, sources_BS: Tensor, inputs_BT: Tensor) -> Tensor:
        """Logits of the next piece of the target at each position.

        Targets need no mask for their padding: it comes last, where no piece may look.
        """
        is_padding_BS = sources_BS == self.padding
        y_BTC = self._placed(self.target_embedding(inputs_BT))
        later_TT = nn.Transformer.generate_square_subsequent_mask(
            inputs_BT.shape[1], device=y_BTC.device, dtype=y_BTC.dtype
        )
        y_BTC = self.transformer(
            self._placed(self.source_embedding(sources_BS)),
            y_BTC,
            tgt_mask=later_TT,
            tgt_is_causal=True,
            src_key_padding_mask=is_padding_BS,
            memory_key_padding_mask=is_padding_BS,
        )
        return self.head(y_BTC)  # type: ignore[no-any-return]

    def _placed(self, x_BTC: Tensor) -> Tensor:
        """Embeddings of unit variance with their positions added."""
        places_TC = positions(x_BTC.shape[1], x_BTC.shape[2], x_BTC.device).to(x_BTC.dtype)
        return x_BTC * math.sqrt(x_BTC.shape[2]) + places_TC


def _transformer(params: Seq2SeqParams) -> nn.Transformer:
    """Its encoder is made apart: by default it warns that pre-norm has no nested tensors."""
    width, heads, dropout = params.width, params.heads, params.dropout
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, dropout, batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(
        layer, params.encoder_depth, nn.LayerNorm(width), enable_nested_tensor=False
    )
    return nn.Transformer(
        width,
        heads,
        num_decoder_layers=params.decoder_depth,
        dim_feedforward=4 * width,
        dropout=dropout,
        custom_encoder=encoder,
        batch_first=True,
        norm_first=True,
    )


def positions(length: int, width: int, device: torch.device) -> Tensor:
    """Sines, then cosines of each position at falling frequencies, fp32, (length, width).

    Source: Vaswani et al. 2017, section 3.5; there sines and cosines alternate.
    """
    pairs_E = torch.arange(0, width, 2, device=device, dtype=torch.float32)
    positions_T = torch.arange(length, device=device, dtype=torch.float32)
    angles_TE = torch.outer(positions_T, 10_000.0 ** (-pairs_E / width))
    return torch.cat([angles_TE.sin(), angles_TE.cos()], dim=1)
