"""The order of samples of differing length, and batches that are padded to their longest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int64]


def sample_order(
    lengths: Lengths,
    *,
    first: Sequence[int],
    batch_size: int,
    bucketing: int,
    seed: int,
) -> Iterator[int]:
    """Numbers of samples without end, each once before any comes again.

    The longest come first: what does not fit fails at the first step and not in the last hour.
    With `bucketing` of 2 or more, the samples of that many batches are sorted by length, and the
    batches made of them come in random order: a batch then needs little padding.

    Args:
        lengths: of each sample, what it is sorted by.
        first: samples to begin with, the longest in each way.
        batch_size: samples of one optimizer step; how it is cut into micro-batches is no matter.
        bucketing: batches sorted together; 1 for none.
        seed: decides the order.
    """
    generator = np.random.default_rng(seed)
    drawn = _drawn(len(lengths), first, generator)
    if bucketing == 1:
        yield from drawn
    yield from islice(drawn, batch_size)
    while True:
        pool = np.array(list(islice(drawn, batch_size * bucketing)))
        batches = pool[np.argsort(lengths[pool], kind="stable")].reshape(bucketing, batch_size)
        yield from map(int, generator.permutation(batches).ravel())


def _drawn(num_samples: int, first: Sequence[int], generator: np.random.Generator) -> Iterator[int]:
    front = dict.fromkeys(first)
    yield from front
    yield from (each for each in map(int, generator.permutation(num_samples)) if each not in front)
    while True:
        yield from map(int, generator.permutation(num_samples))


def padded(rows: Sequence[npt.NDArray[np.int64]], padding: int) -> npt.NDArray[np.int64]:
    """Rows of differing length side by side, filled up at their ends: (num_rows, longest)."""
    filled = np.full((len(rows), max(map(len, rows))), padding, dtype=np.int64)
    for row, values in zip(filled, rows, strict=True):
        row[: len(values)] = values
    return filled
