"""Pairs of texts in pieces, and the padded batches they make.

The arrays of a batch are int64: `sources` (B, S), padded with the last entry of the vocabulary;
`inputs` (B, T), each target after its begin mark, padded alike; `targets` (B, T), each with its
end mark, filled up with `IGNORED`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from objectives.padding import Lengths, padded
from objectives.texts import Texts

if TYPE_CHECKING:
    from search.objective import Batch

NUM_MARKS = 3
"""Entries of the vocabulary that are no text: a target's begin and end, and padding. They come
last."""
IGNORED = -100
"""Marks a position without a target, by torch's default. Source: `nn.CrossEntropyLoss`."""
_EVALUATION_PAIRS = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sides:
    """Sources and targets in pieces, of at most `longest` of them, and their batches."""

    sources: Texts
    targets: Texts
    target_bytes: Lengths
    vocabulary: int
    longest: int | None = None

    def cut(self, longest: int) -> Sides:
        """The same pairs, no side longer."""
        return replace(self, longest=longest)

    @property
    def source_lengths(self) -> Lengths:
        """Pieces of each source."""
        return np.minimum(self.sources.lengths, self._most)

    @property
    def target_lengths(self) -> Lengths:
        """Pieces of each target and its end mark."""
        return np.minimum(self.targets.lengths + 1, self._most)

    @property
    def _most(self) -> int:
        return np.iinfo(np.int64).max if self.longest is None else self.longest

    @property
    def longest_pairs(self) -> tuple[int, int]:
        """The numbers of a pair with the longest target, and of one with the longest source."""
        return int(self.target_lengths.argmax()), int(self.source_lengths.argmax())

    def training_shapes(self, num_pairs: int) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor in a training batch of that many pairs, as long as any is."""
        source, target = int(self.source_lengths.max()), int(self.target_lengths.max())
        targets = (num_pairs, target)
        return {"sources": (num_pairs, source), "inputs": targets, "targets": targets}

    def held_out_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor in a held-out batch, as long as any is."""
        num_pairs = min(_EVALUATION_PAIRS, len(self.targets))
        return {**self.training_shapes(num_pairs), "target_bytes": (num_pairs,)}

    def training_batches(
        self, order: Iterable[int], num_pairs: int, num_tokens: int | None
    ) -> Iterator[Batch]:
        """Batches of that many pairs, until `num_tokens` are reached: the last target is cut."""
        lengths, left = self.target_lengths, math.inf if num_tokens is None else num_tokens
        rows: list[tuple[int, int]] = []
        for index in order:
            if left <= 0:
                break
            rows.append((index, int(min(lengths[index], left))))
            left -= rows[-1][1]
            if len(rows) == num_pairs:
                yield self._batch(rows)
                rows = []
        if rows:
            yield self._batch(rows)

    def held_out_batches(self) -> Iterator[Batch]:
        """Every pair once, by falling length, with the bytes of each target."""
        lengths = self.target_lengths
        order = np.lexsort((-self.source_lengths, -lengths))
        for first in range(0, len(order), _EVALUATION_PAIRS):
            chosen = order[first : first + _EVALUATION_PAIRS]
            counts = torch.from_numpy(self.target_bytes[chosen])
            rows = [(int(index), int(lengths[index])) for index in chosen]
            yield {**self._batch(rows), "target_bytes": counts}

    def _batch(self, rows: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
        """Pairs by number, each with the length of its target."""
        begin, end, padding = range(self.vocabulary - NUM_MARKS, self.vocabulary)
        sources = [self.sources[index][: self._most].astype(np.int64) for index, _ in rows]
        targets = [np.append(self.targets[index], end)[:length] for index, length in rows]
        inputs = [np.append(begin, target[:-1]) for target in targets]
        return {
            "sources": torch.from_numpy(padded(sources, padding)),
            "inputs": torch.from_numpy(padded(inputs, padding)),
            "targets": torch.from_numpy(padded(targets, IGNORED)),
        }
