"""The batches of a language model: windows of a corpus, each with the tokens one further on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from objectives.data import Corpus, Tokens
from search.errors import InputError

if TYPE_CHECKING:
    from search.objective import Batch


def training_windows(
    corpus: Corpus, *, context: int, num_samples: int, num_tokens: int | None, seed: int
) -> Iterator[Batch]:
    """Windows drawn at random: batches of `inputs` and `targets`, int64, (num_samples, context).

    They hold `num_tokens` targets in all (None: as many as the corpus has): full batches, then one
    with fewer rows, then one shorter window. The windows and their order depend on `seed` and
    `context`, not on `num_samples`.

    Raises:
        InputError: at once, when the corpus is shorter than one window.
    """
    num_targets = len(corpus.train) - 1
    if num_targets < context:
        msg = (
            f"{corpus.name}: {len(corpus.train)} tokens to train on are too few for a sequence "
            f"length of {context} (add text, or train on at most {num_targets} tokens at a time)"
        )
        raise InputError(msg)
    shapes = _shapes(num_targets if num_tokens is None else num_tokens, context, num_samples)
    generator = np.random.default_rng(seed)
    return (
        _batch(corpus.train, generator.integers(num_targets - context + 1, size=rows), length)
        for rows, length in shapes
    )


def held_out_windows(corpus: Corpus, *, context: int, num_samples: int) -> Iterator[Batch]:
    """What is held out in order, batches as above: each token but the first is a target once."""
    first = 0
    for rows, length in _shapes(len(corpus.held_out) - 1, context, num_samples):
        yield _batch(corpus.held_out, (first + np.arange(rows)) * context, length)
        first += rows


def with_bytes(batches: Iterable[Batch], piece_bytes: npt.NDArray[np.int64]) -> Iterator[Batch]:
    """The same with `num_bytes`, int64, (num_samples,): the bytes of the targets of each sample."""
    counts = torch.from_numpy(piece_bytes)
    for batch in batches:
        yield {**batch, "num_bytes": counts[batch["targets"]].sum(dim=1)}


def _shapes(num_tokens: int, context: int, num_samples: int) -> Iterator[tuple[int, int]]:
    """Rows and length of each batch: full ones, one with fewer rows, one shorter window."""
    num_windows, rest = divmod(num_tokens, context)
    num_batches, rows = divmod(num_windows, num_samples)
    yield from repeat((num_samples, context), num_batches)
    if rows:
        yield rows, context
    if rest:
        yield 1, rest


def _batch(tokens: Tokens, starts: npt.NDArray[np.int64], length: int) -> Batch:
    windows = tokens[starts[:, None] + np.arange(length + 1)].astype(np.int64)
    return {
        "inputs": torch.from_numpy(windows[:, :-1].copy()),
        "targets": torch.from_numpy(windows[:, 1:].copy()),
    }
