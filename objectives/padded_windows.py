"""Documents one by one, each padded to the longest of its batch; only long ones are cut.

Tensors: B samples, T positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from objectives.packing import IGNORED
from objectives.padding import Lengths, padded, sample_order
from objectives.texts import Texts
from search.errors import InputError

if TYPE_CHECKING:
    from search.objective import Batch


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedWindows:
    """Windows of at most `context` targets, each within one document, and their batches."""

    documents: Texts
    starts: Lengths
    lengths: Lengths

    @classmethod
    def of(cls, documents: Texts, context: int) -> PaddedWindows:
        """A document longer than a window is cut into full ones and a rest.

        Raises:
            InputError: when no document has a target.
        """
        targets = np.maximum(documents.lengths - 1, 0)
        counts = -(-targets // context)
        documents_of = np.repeat(np.arange(len(documents)), counts)
        turns = np.arange(len(documents_of)) - np.repeat(np.cumsum(counts) - counts, counts)
        begins = documents.ends - documents.lengths
        if not len(documents_of):
            msg = "no document has two tokens (add text)"
            raise InputError(msg)
        return cls(
            documents=documents,
            starts=begins[documents_of] + turns * context,
            lengths=np.minimum(targets[documents_of] - turns * context, context),
        )

    @property
    def longest(self) -> int:
        """Targets of the longest one."""
        return int(self.lengths.max())

    def batches(
        self,
        *,
        num_samples: int,
        batch_size: int,
        bucketing: int,
        num_tokens: int | None,
        seed: int,
    ) -> Iterator[Batch]:
        """Batches of `inputs` and `targets`, int64, (B, T), the longest window first.

        They hold `num_tokens` targets in all (None: as many as there are): the last window is cut.
        Positions without a target are marked `IGNORED`; what precedes them sees none of them where
        attention is causal. See `sample_order` for `batch_size`, `bucketing` and `seed`.
        """
        order = sample_order(
            self.lengths,
            first=[int(self.lengths.argmax())],
            batch_size=batch_size,
            bucketing=bucketing,
            seed=seed,
        )
        if num_tokens is None:
            order = islice(order, len(self.lengths))
        left = math.inf if num_tokens is None else num_tokens
        rows: list[npt.NDArray[np.int64]] = []
        for window in order:
            if left <= 0:
                break
            length = int(min(self.lengths[window], left))
            start = int(self.starts[window])
            rows.append(self.documents.values[start : start + length + 1].astype(np.int64))
            left -= length
            if len(rows) == num_samples:
                yield _batch(rows)
                rows = []
        if rows:
            yield _batch(rows)


def _batch(rows: list[npt.NDArray[np.int64]]) -> Batch:
    return {
        "inputs": torch.from_numpy(padded([row[:-1] for row in rows], 0)),
        "targets": torch.from_numpy(padded([row[1:] for row in rows], IGNORED)),
    }
