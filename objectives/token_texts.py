"""The texts of an objective in the tokens of its model.

Of a folder's model these are its tokenizer's; where there is no folder, sub-word pieces learned
from what is trained on, numbered after two marks: padding and the begin of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from objectives.data import Corpus
from objectives.labelled_texts import LabelledTexts, in_pieces
from objectives.packing import IGNORED
from objectives.padding import Lengths, padded, sample_order
from objectives.texts import Texts
from objectives.token_source import BEGIN, NUM_MARKS, TokenSource
from objectives.tokenizer_encoding import encoded_by
from objectives.vocabulary import tokenized
from objectives.windows import held_out_windows
from search.objective import Split

if TYPE_CHECKING:
    from search.objective import Batch

_TRAIN, _HELD_OUT = Split.TRAIN.value, Split.HELD_OUT.value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenCorpus:
    """A corpus in tokens. `first_number` is that of the first piece of a learned vocabulary."""

    corpus: Corpus
    documents: Texts
    held_out_bytes: npt.NDArray[np.int64]
    first_number: int

    def numbered(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Batches of pieces in the numbers of the model's vocabulary."""
        for batch in batches:
            targets = batch["targets"]
            is_target = targets != IGNORED
            yield {
                **batch,
                "inputs": batch["inputs"] + self.first_number,
                "targets": torch.where(is_target, targets + self.first_number, targets),
            }

    def held_out(self, context: int, num_samples: int) -> Iterator[Batch]:
        """What is held out in order, with `num_bytes`, (num_samples,), those of the targets."""
        sizes = replace(self.corpus, held_out=self.held_out_bytes)
        windows, counts = (
            held_out_windows(each, context=context, num_samples=num_samples)
            for each in (self.corpus, sizes)
        )
        for batch, count in zip(self.numbered(windows), counts, strict=True):
            yield {**batch, "num_bytes": count["targets"].sum(dim=1)}


class CorpusTokens:
    """A corpus of bytes in the tokens of a source, cut up when it is first asked for."""

    def __init__(self, corpus: Corpus, source: TokenSource) -> None:
        """Cuts nothing yet."""
        self._corpus = corpus
        self._source = source
        self._known: dict[int, TokenCorpus] = {}

    def of(self, vocabulary: int | None) -> TokenCorpus:
        """The corpus in tokens; `vocabulary` is for those that are learned."""
        size = self._source.require(vocabulary)
        if size not in self._known:
            self._known[size] = self._cut(size)
        return self._known[size]

    def _cut(self, size: int) -> TokenCorpus:
        texts = self._corpus.texts
        if self._source.tokenizer is None:
            pieces = tokenized(texts, trained_on=[_TRAIN], size=size)
            found: Mapping[str, Texts] = pieces.texts
            num_bytes = pieces.piece_bytes[found[_HELD_OUT].values]
        else:
            encoded = encoded_by(self._source.tokenizer, texts, framed=True, counted=[_HELD_OUT])
            found, num_bytes = encoded.texts, encoded.num_bytes[_HELD_OUT]
        documents = found[_TRAIN]
        cut = replace(
            self._corpus,
            train=documents.values,
            held_out=found[_HELD_OUT].values,
            train_ends=documents.ends,
        )
        return TokenCorpus(
            corpus=cut,
            documents=documents,
            held_out_bytes=num_bytes,
            first_number=NUM_MARKS if self._source.tokenizer is None else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Texts in tokens, and what stands before and after each; pieces begin at `first_number`."""

    texts: Texts
    before: Lengths
    after: Lengths
    first_number: int

    def lengths(self, most_tokens: int) -> Lengths:
        """Of each text, cut so that it is not longer."""
        whole = self.texts.lengths + len(self.before) + len(self.after)
        return np.minimum(whole, most_tokens)

    def row(self, index: int, most_tokens: int) -> Lengths:
        """A text between its marks; what is cut off is text."""
        room = max(0, most_tokens - len(self.before) - len(self.after))
        text = self.texts[index][:room].astype(np.int64) + self.first_number
        return np.concatenate([self.before, text, self.after])[:most_tokens]


class LabelledTokens:
    """Labelled texts in the tokens of a source, and their batches."""

    def __init__(self, texts: LabelledTexts, source: TokenSource) -> None:
        """Cuts nothing yet."""
        self._texts = texts
        self._source = source
        self._known: dict[int, Mapping[Split, _Rows]] = {}

    def longest(self, split: Split, vocabulary: int | None, most_tokens: int) -> int:
        """Tokens of the longest text, cut to `most_tokens`."""
        return int(self._rows(vocabulary)[split].lengths(most_tokens).max())

    def batches(
        self,
        split: Split,
        *,
        vocabulary: int | None,
        most_tokens: int,
        num_samples: int,
        batch_size: int,
        bucketing: int,
        num_texts: int | None,
        seed: int,
    ) -> Iterator[Batch]:
        """Batches of `tokens` and `mask`, int64, (B, T), and `targets`, (B,), the longest first.

        Those to train on as `sample_order` has them, `num_texts` in all (None: each once); those
        held out by falling length.
        """
        rows, targets = self._rows(vocabulary)[split], self._texts.targets[split]
        lengths = rows.lengths(most_tokens)
        order: Iterator[int] = iter(np.argsort(-lengths, kind="stable").tolist())
        if split is Split.TRAIN:
            first = [int(lengths.argmax())]
            endless = sample_order(
                lengths, first=first, batch_size=batch_size, bucketing=bucketing, seed=seed
            )
            order = islice(endless, len(targets) if num_texts is None else num_texts)
        while indices := list(islice(order, num_samples)):
            chosen = [rows.row(index, most_tokens) for index in indices]
            marks = [np.ones_like(row) for row in chosen]
            yield {
                "tokens": torch.from_numpy(padded(chosen, self._source.padding)),
                "mask": torch.from_numpy(padded(marks, 0)),
                "targets": torch.from_numpy(targets[indices]),
            }

    def _rows(self, vocabulary: int | None) -> Mapping[Split, _Rows]:
        size = self._source.require(vocabulary)
        if size not in self._known:
            self._known[size] = self._cut(size)
        return self._known[size]

    def _cut(self, size: int) -> Mapping[Split, _Rows]:
        before: tuple[int, ...] = (BEGIN,)
        after: tuple[int, ...] = ()
        first_number = NUM_MARKS
        if self._source.tokenizer is None:
            found = in_pieces(self._texts, size)
        else:
            named = {split.value: texts for split, texts in self._texts.texts.items()}
            encoded = encoded_by(self._source.tokenizer, named, framed=False)
            found, before, after, first_number = encoded.texts, encoded.before, encoded.after, 0
        return {
            split: _Rows(
                texts=found[split.value],
                before=np.array(before, dtype=np.int64),
                after=np.array(after, dtype=np.int64),
                first_number=first_number,
            )
            for split in Split
        }
