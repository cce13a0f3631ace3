"""A decoder-only transformer over bytes or sub-word pieces, judged in bits per byte.

Tensors carry their shape: B samples, T positions, C channels (the width), H heads, D channels of a
head, E pairs of them, V pieces of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from objectives.chunked_loss import chunked_cross_entropy
from objectives.cleaning import Cleaning, Duplicates
from objectives.data import NUM_BYTES, Corpus, open_corpus
from objectives.dimensions import chosen, require_at_least, require_below
from objectives.packing import IGNORED, earlier_of_same, packed_windows
from objectives.texts import Texts
from objectives.vocabulary import Tokenized, tokenized
from objectives.windows import held_out_windows, training_windows, with_bytes
from search.errors import InputError
from search.metric import Goal, Metric
from search.objective import Split
from search.training_params import micro_batch_size

if TYPE_CHECKING:
    from search.objective import Batch
    from search.results import Params


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageModelParams:
    """The dimensions of the model and of its text.

    `vocabulary` is the number of sub-word pieces, learned from what is trained on; 256 are the
    bytes. `sequence_length` is what it trains on, in pieces. `loss_chunks` above 1 never hold the
    logits of all positions at once. With `packing`, windows hold whole documents, and attention
    keeps them apart.
    """

    sequence_length: int = 128
    vocabulary: int = NUM_BYTES
    width: int = 64
    depth: int = 2
    heads: int = 4
    dropout: float = 0.0
    loss_chunks: int = 1
    packing: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError on dimensions that make no model."""
        require_at_least(1, self, "sequence_length", "width", "depth", "heads", "loss_chunks")
        require_at_least(NUM_BYTES, self, "vocabulary", why="the bytes")
        require_below(1, self, "dropout")
        if self.width % (2 * self.heads):
            msg = f"width {self.width} must be a multiple of twice heads ({self.heads})"
            raise ValueError(msg)


class LanguageModel:
    """Learns to predict the next piece of a corpus."""

    metrics: tuple[Metric, ...] = (Metric(name="bits_per_byte", goal=Goal.MIN),)
    parameters: type = LanguageModelParams
    provenance: Mapping[str, str | int]

    def __init__(
        self,
        corpus: str = "python-stdlib",
        held_out_tokens: int = 65_536,
        evaluation_context: int = 256,
        *,
        clean: bool = False,
        duplicates: Duplicates = "keep",
        similarity: float = 0.7,
    ) -> None:
        """Opens the corpus: a name, or the path of a text file, a folder, a `.bin` or `.npy` array.

        Args:
            corpus: `python-stdlib` or a path.
            held_out_tokens: bytes that every trial is judged on.
            evaluation_context: positions of one window of them, for every trial the same.
            clean: whether documents lose what carries no text, see `objectives.cleaning`.
            duplicates: which documents stay: `keep` all, `exact` or `near` none that repeats.
            similarity: share of what two documents have in common from which they are near.
        """
        self._in_pieces: dict[int, Tokenized] = {}
        self.corpus: Corpus = open_corpus(
            corpus,
            held_out_tokens=held_out_tokens,
            cleaning=Cleaning(clean=clean, duplicates=duplicates, similarity=similarity),
        )
        self.evaluation_context = evaluation_context
        self.provenance = self.corpus.provenance

    def model(self, params: Params) -> nn.Module:
        """A `Decoder` of the given width, depth, heads and dropout."""
        return Decoder(_model_params(params))

    def batch(self, params: Params, split: Split) -> Batch:
        """Zeros, int64: `inputs` and `targets`, (B, T).

        Besides `documents`, (B, T), where they are packed; of held-out pieces `num_bytes`, (B,).
        """
        model = _model_params(params)
        shape = (micro_batch_size(params), model.sequence_length)
        if split is Split.HELD_OUT:
            shape = (_EVALUATION_SAMPLES, self.evaluation_context)
        names = ["inputs", "targets"]
        if split is Split.TRAIN and model.packing:
            names.append("documents")
        batch = {name: torch.zeros(shape, dtype=torch.int64) for name in names}
        if split is Split.HELD_OUT and model.vocabulary != NUM_BYTES:
            batch["num_bytes"] = torch.zeros(shape[:1], dtype=torch.int64)
        return batch

    def data(
        self, params: Params, split: Split, *, seed: int, num_tokens: int | None = None
    ) -> Iterator[Batch]:
        """Windows of the corpus: drawn at random for training, one after another when held out."""
        model = _model_params(params)
        if split is Split.HELD_OUT:
            return self._held_out(model.vocabulary)
        if model.packing:
            return packed_windows(
                self._documents(model.vocabulary),
                context=model.sequence_length,
                num_samples=micro_batch_size(params),
                num_tokens=num_tokens,
                seed=seed,
            )
        return training_windows(
            self._corpus(model.vocabulary),
            context=model.sequence_length,
            num_samples=micro_batch_size(params),
            num_tokens=num_tokens,
            seed=seed,
        )

    def _held_out(self, vocabulary: int) -> Iterator[Batch]:
        windows = held_out_windows(
            self._corpus(vocabulary),
            context=self.evaluation_context,
            num_samples=_EVALUATION_SAMPLES,
        )
        if vocabulary == NUM_BYTES:
            return windows
        return with_bytes(windows, self._tokenized(vocabulary).piece_bytes)

    def _corpus(self, vocabulary: int) -> Corpus:
        """The corpus in pieces."""
        if vocabulary == NUM_BYTES:
            return self.corpus
        train, held_out = self._documents(vocabulary), self._tokenized(vocabulary).texts["held_out"]
        return replace(
            self.corpus, train=train.values, held_out=held_out.values, train_ends=train.ends
        )

    def _documents(self, vocabulary: int) -> Texts:
        """What is trained on, document by document, in pieces."""
        return self._tokenized(vocabulary).texts["train"]

    def _tokenized(self, vocabulary: int) -> Tokenized:
        if vocabulary not in self._in_pieces:
            self._in_pieces[vocabulary] = tokenized(
                self.corpus.texts, trained_on=["train"], size=vocabulary
            )
        return self._in_pieces[vocabulary]

    def num_tokens(self, batch: Batch) -> int:
        """Pieces predicted in a batch."""
        if "documents" in batch:  # a window of whole documents may have some room left
            return int((batch["targets"] != IGNORED).sum().item())
        return batch["targets"].numel()

    def tokens_per_sample(self, params: Params) -> int:
        """Pieces in one training window."""
        return _model_params(params).sequence_length

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy in nats per piece."""
        if isinstance(model, Decoder) and model.loss_chunks > 1:
            numbered = _numbered(batch)
            loss: Tensor = model(batch["inputs"], batch["targets"], **numbered)
            return loss * _positions_per_target(batch["targets"]) if numbered else loss
        return functional.cross_entropy(*self.scores(model, batch), ignore_index=IGNORED)

    def scores(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits and targets of all positions; bf16 logits would round the loss to 3 figures."""
        if isinstance(model, Decoder) and model.loss_chunks > 1:
            msg = "loss_chunks: must be 1 to learn from a teacher, which takes all logits at once"
            raise InputError(msg)
        logits_BTV = model(batch["inputs"], **_numbered(batch))
        return logits_BTV.flatten(0, 1).float(), batch["targets"].flatten()

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Bits per byte over all held-out bytes, each window from an empty context."""
        total_nats, total_bytes = 0.0, 0
        for batch in batches:
            total_nats += self.loss(model, batch).item() * self.num_tokens(batch)
            total_bytes += _num_bytes(batch)
        return {"bits_per_byte": total_nats / total_bytes / math.log(2)}


_EVALUATION_SAMPLES = 4


def _numbered(batch: Batch) -> dict[str, Tensor]:
    """What a `Decoder` is told of the documents of a batch, where they are packed."""
    return {"documents_BT": batch["documents"]} if "documents" in batch else {}


def _positions_per_target(targets_BT: Tensor) -> Tensor:
    """What makes a mean over all positions one over those with a target."""
    return targets_BT.numel() / (targets_BT != IGNORED).sum()


def _num_bytes(batch: Batch) -> int:
    """Bytes predicted in a batch: one for each piece where nothing else is said."""
    if "num_bytes" in batch:
        return int(batch["num_bytes"].sum().item())
    return batch["targets"].numel()


def _model_params(params: Params) -> LanguageModelParams:
    return chosen(LanguageModelParams, params)


class Decoder(nn.Module):
    """Pre-norm transformer with rotary positions, from pieces (B, T) to logits or their loss."""

    def __init__(self, params: LanguageModelParams) -> None:
        """Weights of every linear map are drawn from N(0, 0.02), as in GPT-2."""
        super().__init__()
        self.head_width = params.width // params.heads
        self.loss_chunks = params.loss_chunks
        self.embedding = nn.Embedding(params.vocabulary, params.width)
        self.blocks = nn.ModuleList(Block(params) for _ in range(params.depth))
        self.norm = nn.LayerNorm(params.width)
        self.head = nn.Linear(params.width, params.vocabulary, bias=False)
        self.apply(_initialize)

    def forward(
        self,
        pieces_BT: Tensor,
        targets_BT: Tensor | None = None,
        *,
        documents_BT: Tensor | None = None,
    ) -> Tensor:
        """Logits of the next piece at each position, (B, T, V); with targets their mean loss.

        A position sees those before it, of its own document where documents are numbered.
        """
        x_BTC = self.embedding(pieces_BT)
        turns = rotary_turns(pieces_BT.shape[1], self.head_width, x_BTC.device)
        seen_B1TT = None if documents_BT is None else earlier_of_same(documents_BT)
        for block in self.blocks:
            x_BTC = block(x_BTC, *turns, seen_B1TT)
        x_BTC = self.norm(x_BTC)
        if targets_BT is None:
            return self.head(x_BTC)  # type: ignore[no-any-return]
        return chunked_cross_entropy(
            x_BTC.flatten(0, 1), self.head, targets_BT.flatten(), num_chunks=self.loss_chunks
        )


class Block(nn.Module):
    """Attention, then a feed-forward net four times as wide, each on a normalized residual."""

    def __init__(self, params: LanguageModelParams) -> None:
        """Two norms, one attention, one feed-forward net."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(params.width)
        self.attention = Attention(params)
        self.feed_forward_norm = nn.LayerNorm(params.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(params.width, 4 * params.width),
            nn.GELU(),
            nn.Linear(4 * params.width, params.width),
            nn.Dropout(params.dropout),
        )

    def forward(
        self, x_BTC: Tensor, cosine_TE: Tensor, sine_TE: Tensor, seen_B1TT: Tensor | None = None
    ) -> Tensor:
        """The residual stream after this block."""
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), cosine_TE, sine_TE, seen_B1TT)
        return x_BTC + self.feed_forward(self.feed_forward_norm(x_BTC))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Causal self-attention with rotary positions, through torch's fused kernel."""

    def __init__(self, params: LanguageModelParams) -> None:
        """One linear map for queries, keys and values, one for the result."""
        super().__init__()
        self.heads = params.heads
        self.dropout = params.dropout
        self.queries_keys_values = nn.Linear(params.width, 3 * params.width)
        self.output = nn.Linear(params.width, params.width)

    def forward(
        self, x_BTC: Tensor, cosine_TE: Tensor, sine_TE: Tensor, seen_B1TT: Tensor | None = None
    ) -> Tensor:
        """What each position gathers from those it sees: by default itself and all before it."""
        B, T, C = x_BTC.shape
        qkv = self.queries_keys_values(x_BTC).view(B, T, 3, self.heads, C // self.heads)
        q_BHTD, k_BHTD, v_BHTD = qkv.permute(2, 0, 3, 1, 4)
        gathered_BHTD = functional.scaled_dot_product_attention(
            rotated(q_BHTD, cosine_TE, sine_TE),
            rotated(k_BHTD, cosine_TE, sine_TE),
            v_BHTD,
            attn_mask=seen_B1TT,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=seen_B1TT is None,
        )
        output: Tensor = self.output(gathered_BHTD.transpose(1, 2).reshape(B, T, C))
        return functional.dropout(output, self.dropout, self.training)


def rotary_turns(length: int, head_width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle of each position and pair of channels, fp32, (T, E).

    Source: Su et al. 2021, arXiv 2104.09864, section 3.2.2.
    """
    pairs_E = torch.arange(0, head_width, 2, device=device, dtype=torch.float32)
    positions_T = torch.arange(length, device=device, dtype=torch.float32)
    angles_TE = torch.outer(positions_T, 10_000.0 ** (-pairs_E / head_width))
    return angles_TE.cos(), angles_TE.sin()


def rotated(x_BHTD: Tensor, cosine_TE: Tensor, sine_TE: Tensor) -> Tensor:
    """Queries or keys, each pair of channels turned by its angle.

    Source: the same, equation 34; the pairs are taken from the two halves of D.
    """
    cosine_TE, sine_TE = cosine_TE.to(x_BHTD.dtype), sine_TE.to(x_BHTD.dtype)
    first, second = x_BHTD.chunk(2, dim=-1)
    return torch.cat(
        [first * cosine_TE - second * sine_TE, first * sine_TE + second * cosine_TE], dim=-1
    )


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
