"""Windows that hold whole documents, several short ones in each, and what keeps these apart.

Tensors: B samples, T positions.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from objectives.texts import Texts
from search.errors import InputError

if TYPE_CHECKING:
    from search.objective import Batch

IGNORED = -100
"""Marks a position without a target, by torch's default. Source: `nn.CrossEntropyLoss`."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """Parts of documents by window: where each begins, and how many targets it has.

    `firsts` are the numbers of each window's first part, and one beyond the last window.
    """

    starts: Numbers
    lengths: Numbers
    firsts: Numbers

    def __len__(self) -> int:
        """How many windows there are."""
        return len(self.firsts) - 1

    def parts(self, window: int) -> Iterator[tuple[int, int]]:
        """Start and number of targets of each part of a window."""
        for part in range(int(self.firsts[window]), int(self.firsts[window + 1])):
            yield int(self.starts[part]), int(self.lengths[part])


def packed(documents: Texts, context: int) -> Packed:
    """The documents in windows of at most `context` targets.

    Only a document that is longer is cut. What is left of each goes, the longest first, into the
    window with the least room that has enough.

    Source: Ding et al. 2024, arXiv 2404.10830, algorithm 1 (best-fit packing).
    """
    begins = documents.ends - documents.lengths
    num_full, rest = np.divmod(np.maximum(documents.lengths - 1, 0), context)
    whole = np.repeat(np.arange(len(documents)), num_full)
    turn = np.arange(len(whole)) - np.repeat(np.cumsum(num_full) - num_full, num_full)
    left = np.flatnonzero(rest)
    starts = np.concatenate([begins[whole] + turn * context, (begins + num_full * context)[left]])
    lengths = np.concatenate([np.full(len(whole), context), rest[left]])
    windows = np.concatenate([np.arange(len(whole)), len(whole) + _best_fit(rest[left], context)])
    order = np.argsort(windows, kind="stable")
    num_windows = int(windows.max(initial=-1)) + 1
    return Packed(
        starts=starts[order],
        lengths=lengths[order],
        firsts=np.searchsorted(windows[order], np.arange(num_windows + 1)),
    )


def _best_fit(lengths: Numbers, capacity: int) -> Numbers:
    """The number of the window that each part goes to."""
    windows = np.zeros(len(lengths), dtype=np.int64)
    room: list[tuple[int, int]] = []
    num_windows = 0
    for part in np.argsort(-lengths, kind="stable"):
        length = int(lengths[part])
        place = bisect_left(room, (length, 0))
        if place < len(room):
            free, window = room.pop(place)
        else:
            free, window = capacity, num_windows
            num_windows += 1
        windows[part] = window
        if free > length:
            insort(room, (free - length, window))
    return windows


def packed_windows(
    documents: Texts, *, context: int, num_samples: int, num_tokens: int | None, seed: int
) -> Iterator[Batch]:
    """Batches of `inputs`, `targets` and `documents`, int64, (B, T), every window once a round.

    `documents` number the parts of a window, so that attention can keep them apart. Positions
    without a target are marked `IGNORED`. They hold `num_tokens` targets in all (None: as many as
    there are): the last window is cut. The order depends on `seed`, not on `num_samples`.

    Raises:
        InputError: at once, when no document has a target.
    """
    windows = packed(documents, context)
    if not len(windows):
        msg = "no document has two tokens (add text)"
        raise InputError(msg)
    total = int(windows.lengths.sum()) if num_tokens is None else num_tokens
    return _batches(documents, windows, context, num_samples, total, np.random.default_rng(seed))


def _batches(  # noqa: PLR0917 - what packed_windows was given
    documents: Texts,
    windows: Packed,
    context: int,
    num_samples: int,
    num_tokens: int,
    generator: np.random.Generator,
) -> Iterator[Batch]:
    rows: list[Numbers] = []
    while num_tokens:
        for window in generator.permutation(len(windows)):
            row = _row(documents, windows, int(window), context, num_tokens)
            rows.append(row)
            num_tokens -= int((row[1] != IGNORED).sum())
            if len(rows) == num_samples or not num_tokens:
                yield _batch(rows)
                rows = []
            if not num_tokens:
                return


def _row(
    documents: Texts, windows: Packed, window: int, context: int, most_targets: int
) -> Numbers:
    """Inputs, targets and numbers of the documents of one window, (3, T)."""
    row = np.stack([np.full(context, value) for value in (0, IGNORED, -1)])
    at = 0
    for number, (start, length) in enumerate(windows.parts(window)):
        part = documents.values[start : start + length + 1].astype(np.int64)
        row[:, at : at + length] = np.stack([part[:-1], part[1:], np.full(length, number)])
        at += length
    row[1, most_targets:] = IGNORED
    return row


def _batch(rows: list[Numbers]) -> Batch:
    names = ("inputs", "targets", "documents")
    arrays = np.stack(rows, axis=1)
    return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}


def earlier_of_same(documents_BT: Tensor) -> Tensor:
    """Whether a position may see another: (B, 1, T, T), true for those of its document so far."""
    same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
    return same_BTT.tril_()[:, None]


def positions_in(documents_BT: Tensor) -> Tensor:
    """How far each position is from the first of its document."""
    places_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    begins_BT = functional.pad(documents_BT.diff(dim=1) != 0, (1, 0))
    return places_T - (begins_BT * places_T).cummax(dim=1).values
