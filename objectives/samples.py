"""Samples that are drawn whole, such as images or labelled texts: which are judged on, which next.

Left out: what a sample is. It is known here by its index and its name alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from search.errors import InputError
from search.objective import Split
from search.training_params import micro_batch_size

if TYPE_CHECKING:
    from search.results import Params

Indices = npt.NDArray[np.int64]

_HELD_OUT_ONE_IN = 5
_LEAST_SAMPLES = 10
_EVALUATION_SAMPLES = 32


def split_by_name(
    place: str, names: Sequence[str], held_out_samples: int
) -> tuple[Indices, Indices]:
    """The indices to train on, and those to be judged on: `held_out_samples`, a fifth at most.

    Chosen by the hash of their names, so that samples of one name are on one side, and a sample
    stays where it was when others are added or put in another order.

    Raises:
        InputError: naming `place`, when there is too little to train and to be judged on.
    """
    if held_out_samples < 1:
        msg = f"held_out_samples must be at least 1, found {held_out_samples} (try 1_000)"
        raise InputError(msg)
    distinct = sorted(set(names), key=_hashed)
    if len(distinct) < _LEAST_SAMPLES:
        msg = (
            f"{place}: too few to be split, found {len(distinct)} different samples "
            f"({_LEAST_SAMPLES} are the least: add some)"
        )
        raise InputError(msg)
    chosen = set(distinct[: min(held_out_samples, len(distinct) // _HELD_OUT_ONE_IN)])
    held_out = np.array([name in chosen for name in names])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _hashed(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="surrogatepass")).digest()


def training_order(
    samples: Indices, *, num_samples: int, num_tokens: int | None, seed: int
) -> Iterator[Indices]:
    """The samples of one batch after another: all in random order, again in another, and so on.

    They are `num_tokens` in all (None: each sample once), `num_samples` at a time, the last ones
    fewer. Their order depends on `seed`, not on `num_samples`.
    """
    generator = np.random.default_rng(seed)
    remaining = len(samples) if num_tokens is None else num_tokens
    waiting = samples[:0]
    while remaining > 0:
        count = min(num_samples, remaining)
        while len(waiting) < count:
            waiting = np.concatenate([waiting, generator.permutation(samples)])
        yield waiting[:count]
        waiting = waiting[count:]
        remaining -= count


def in_order(samples: Indices, *, num_samples: int) -> Iterator[Indices]:
    """Each sample once, `num_samples` at a time, the last ones fewer."""
    for first in range(0, len(samples), num_samples):
        yield samples[first : first + num_samples]


def samples_of_batch(params: Params, split: Split) -> int:
    """A micro-batch to train on; to be judged on, as many for every trial."""
    return micro_batch_size(params) if split is Split.TRAIN else _EVALUATION_SAMPLES
