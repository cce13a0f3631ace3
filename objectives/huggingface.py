"""Models of Hugging Face's transformers, trained whole or with low-rank adapters.

From a local folder with weights and tokenizer, or from a config alone, with random weights and
sub-word pieces learned from the texts. Nothing is downloaded.

Tensors carry their shape: B samples, T positions, V tokens of the vocabulary, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from objectives.classification import CLASS_METRICS, class_metrics
from objectives.cleaning import Cleaning, Duplicates
from objectives.data import open_corpus
from objectives.dimensions import chosen
from objectives.labelled_texts import LabelledTexts, open_classes
from objectives.packing import IGNORED, earlier_of_same, packed_windows, positions_in
from objectives.padded_windows import PaddedWindows
from objectives.pretrained import Task, require_packable
from objectives.pretrained_objective import PretrainedObjective
from objectives.pretrained_params import CausalParams, TransformersParams
from objectives.samples import samples_of_batch
from objectives.token_texts import CorpusTokens, LabelledTokens
from objectives.windows import training_windows
from search.metric import Goal, Metric
from search.objective import Split
from search.training_params import TrainingParams, micro_batch_size

if TYPE_CHECKING:
    from search.objective import Batch
    from search.results import Params

_EVALUATION_SAMPLES = 4


class CausalLanguageModel(PretrainedObjective):
    """Learns to predict the next token of a corpus."""

    metrics: tuple[Metric, ...] = (Metric(name="bits_per_byte", goal=Goal.MIN),)
    parameters: type = CausalParams
    provenance: Mapping[str, str | int]
    task = Task.CAUSAL_LM

    def __init__(
        self,
        model: str | None = None,
        config: Mapping[str, Any] | str | None = None,
        corpus: str = "python-stdlib",
        held_out_tokens: int = 65_536,
        evaluation_context: int = 256,
        *,
        clean: bool = False,
        duplicates: Duplicates = "keep",
        similarity: float = 0.7,
    ) -> None:
        """Opens model and corpus.

        Args:
            model: a folder with weights and tokenizer, as `save_pretrained` writes it.
            config: values of a config, `model_type` among them, or the path of a `config.json`.
            corpus: `python-stdlib`, or the path of a text file, a folder, a `.bin` or `.npy` array.
            held_out_tokens: bytes that every trial is judged on.
            evaluation_context: tokens of one window of them, for every trial the same.
            clean: whether documents lose what carries no text, see `objectives.cleaning`.
            duplicates: which documents stay: `keep` all, `exact` or `near` none that repeats.
            similarity: share of what two documents have in common from which they are near.
        """
        self._open(model, config)
        self.evaluation_context = evaluation_context
        self._require_positions("evaluation_context", evaluation_context, TransformersParams())
        corpus_read = open_corpus(
            corpus,
            held_out_tokens=held_out_tokens,
            cleaning=Cleaning(clean=clean, duplicates=duplicates, similarity=similarity),
        )
        self.texts = CorpusTokens(corpus_read, self.tokens)
        self.provenance = {**corpus_read.provenance, **self.source.provenance}

    def model(self, params: Params) -> nn.Module:
        """The model, with adapters where it has a rank for them."""
        chosen = _causal(params)
        if chosen.samples == "packed":
            require_packable(self._config(chosen))
        return self._new_model(params, chosen)

    def batch(self, params: Params, split: Split) -> Batch:
        """Zeros, int64: `inputs` and `targets`, (B, T).

        Besides `documents`, (B, T), where they are packed; held out `num_bytes`, (B,).
        """
        if split is Split.HELD_OUT:
            shape = (_EVALUATION_SAMPLES, self.evaluation_context)
            shapes = {"inputs": shape, "targets": shape, "num_bytes": shape[:1]}
        else:
            shape = (micro_batch_size(params), self.tokens_per_sample(params))
            packed = _causal(params).samples == "packed"
            names = ("inputs", "targets", *(["documents"] if packed else []))
            shapes = dict.fromkeys(names, shape)
        return {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}

    def data(
        self, params: Params, split: Split, *, seed: int, num_tokens: int | None = None
    ) -> Iterator[Batch]:
        """Samples in random order to train on; held out one window after another."""
        chosen = _causal(params)
        tokens = self.texts.of(chosen.vocabulary)
        if split is Split.HELD_OUT:
            return tokens.held_out(self.evaluation_context, _EVALUATION_SAMPLES)
        self._require_positions("sequence_length", chosen.sequence_length, chosen)
        return tokens.numbered(self._samples(params, chosen, seed=seed, num_tokens=num_tokens))

    def _samples(
        self, params: Params, chosen: CausalParams, *, seed: int, num_tokens: int | None
    ) -> Iterator[Batch]:
        tokens = self.texts.of(chosen.vocabulary)
        asked: dict[str, Any] = {
            "num_samples": micro_batch_size(params),
            "num_tokens": num_tokens,
            "seed": seed,
        }
        if chosen.samples == "padded":
            batch_size = TrainingParams.of(params).batch_size
            return self._padded(chosen).batches(
                batch_size=batch_size, bucketing=chosen.bucketing, **asked
            )
        if chosen.samples == "packed":
            return packed_windows(tokens.documents, context=chosen.sequence_length, **asked)
        return training_windows(tokens.corpus, context=chosen.sequence_length, **asked)

    def _padded(self, chosen: CausalParams) -> PaddedWindows:
        return PaddedWindows.of(self.texts.of(chosen.vocabulary).documents, chosen.sequence_length)

    def num_tokens(self, batch: Batch) -> int:
        """Tokens predicted in a batch."""
        return int((batch["targets"] != IGNORED).sum().item())

    def tokens_per_sample(self, params: Params) -> int:
        """Tokens predicted in the longest sample."""
        chosen = _causal(params)
        padded = chosen.samples == "padded"
        return self._padded(chosen).longest if padded else chosen.sequence_length

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy in nats per token."""
        beside = _of_documents(model, batch["documents"]) if "documents" in batch else {}
        logits_BTV = model(input_ids=batch["inputs"], **beside).logits
        return functional.cross_entropy(
            logits_BTV.flatten(0, 1).float(),  # bf16 would round the loss to 3 figures
            batch["targets"].flatten(),
            ignore_index=IGNORED,
        )

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Bits per byte over all held-out bytes, each window from an empty context."""
        total_nats, total_bytes = 0.0, 0
        for batch in batches:
            total_nats += self.loss(model, batch).item() * self.num_tokens(batch)
            total_bytes += int(batch["num_bytes"].sum().item())
        return {"bits_per_byte": total_nats / total_bytes / math.log(2)}


class SequenceClassifier(PretrainedObjective):
    """Learns to sort texts into classes."""

    metrics: tuple[Metric, ...] = CLASS_METRICS
    parameters: type = TransformersParams
    provenance: Mapping[str, str | int]
    task = Task.SEQ_CLS

    def __init__(
        self,
        model: str | None = None,
        config: Mapping[str, Any] | str | None = None,
        file: str = "python-stdlib",
        *,
        text: str = "text",
        label: str = "label",
        held_out_samples: int = 1_000,
    ) -> None:
        """Opens model and texts.

        Args:
            model: a folder with weights and tokenizer, as `save_pretrained` writes it.
            config: values of a config, `model_type` among them, or the path of a `config.json`.
            file: `python-stdlib`, lines of code to be told apart by their package; or the path of
                a CSV, TSV, JSON Lines or Parquet file.
            text: the column of texts in that file.
            label: its column of labels.
            held_out_samples: texts that every trial is judged on, a fifth of all at most.
        """
        self._open(model, config)
        texts = open_classes(file, text=text, label=label, held_out_samples=held_out_samples)
        self.texts: LabelledTexts = texts
        self.num_classes = len(texts.classes)
        self.pieces = LabelledTokens(texts, self.tokens)
        self.provenance = {**texts.provenance, **self.source.provenance}

    def model(self, params: Params) -> nn.Module:
        """The model with an output for each class, and adapters where it has a rank for them."""
        names = dict(enumerate(self.texts.classes))
        return self._new_model(
            params,
            chosen(TransformersParams, params),
            id2label=names,
            label2id={name: index for index, name in names.items()},
            problem_type="single_label_classification",
        )

    def batch(self, params: Params, split: Split) -> Batch:
        """Zeros, int64: `tokens` and `mask`, (B, T), as long as any; and `targets`, (B,)."""
        found = chosen(TransformersParams, params)
        num_samples = samples_of_batch(params, split)
        if split is Split.HELD_OUT:
            num_samples = min(num_samples, len(self.texts.texts[split]))
        longest = self.pieces.longest(split, found.vocabulary, found.sequence_length)
        shapes = {
            "tokens": (num_samples, longest),
            "mask": (num_samples, longest),
            "targets": (num_samples,),
        }
        return {name: torch.zeros(shape, dtype=torch.int64) for name, shape in shapes.items()}

    def data(
        self, params: Params, split: Split, *, seed: int, num_tokens: int | None = None
    ) -> Iterator[Batch]:
        """Texts padded to the longest of their batch, the longest of all first."""
        found = chosen(TransformersParams, params)
        self._require_positions("sequence_length", found.sequence_length, found)
        return self.pieces.batches(
            split,
            vocabulary=found.vocabulary,
            most_tokens=found.sequence_length,
            num_samples=samples_of_batch(params, split),
            batch_size=TrainingParams.of(params).batch_size,
            bucketing=found.bucketing,
            num_texts=num_tokens,
            seed=seed,
        )

    def num_tokens(self, batch: Batch) -> int:
        """Texts in a batch: each has one target, so a text counts as a token does elsewhere."""
        return len(batch["targets"])

    def tokens_per_sample(self, params: Params) -> int:  # noqa: ARG002 - as the contract has it
        """One."""
        return 1

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean cross-entropy in nats a text."""
        return functional.cross_entropy(*_class_scores(model, batch))

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> dict[str, float]:
        """Over all held-out texts the share told right, and the mean negative log-likelihood."""
        return class_metrics(_class_scores(model, batch) for batch in batches)


def _causal(params: Params) -> CausalParams:
    return chosen(CausalParams, params)


def _class_scores(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """What each text is given for each class, and its class."""
    logits_BK = model(input_ids=batch["tokens"], attention_mask=batch["mask"]).logits
    return logits_BK.float(), batch["targets"]


def _of_documents(model: Any, documents_BT: Tensor) -> dict[str, Tensor]:
    """Where each position stands in its document, and which ones it sees: (B, T), (B, 1, T, T).

    `eager` adds the mask to its scores, `sdpa` takes true for what is seen.
    """
    seen_B1TT = earlier_of_same(documents_BT)
    if model.config._attn_implementation == "eager":  # noqa: SLF001 - transformers has no public name for it
        dtype = next(model.parameters()).dtype
        hidden_B1TT = torch.zeros(seen_B1TT.shape, dtype=dtype, device=seen_B1TT.device)
        seen_B1TT = hidden_B1TT.masked_fill_(~seen_B1TT, torch.finfo(dtype).min)
    return {"attention_mask": seen_B1TT, "position_ids": positions_in(documents_BT)}
