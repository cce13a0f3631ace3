"""Many texts in one array: how a corpus of bytes or of tokens is held and handed on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Texts:
    """Texts one after another: the values of all, 1-D, and where each one ends, rising."""

    values: Tokens
    ends: npt.NDArray[np.int64]

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> Self:
        """The texts of these bytes."""
        parts = list(texts)
        return cls(
            values=np.frombuffer(b"".join(parts), dtype=np.uint8),
            ends=np.cumsum([len(part) for part in parts], dtype=np.int64),
        )

    @classmethod
    def one(cls, values: Tokens) -> Self:
        """A single text."""
        return cls(values=values, ends=np.array([len(values)], dtype=np.int64))

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self.ends)

    def __getitem__(self, index: int) -> Tokens:
        """The values of one text."""
        first = self.ends[index - 1] if index else 0
        return self.values[first : self.ends[index]]

    def __iter__(self) -> Iterator[Tokens]:
        """The values of each text in order."""
        return map(self.__getitem__, range(len(self)))

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """How many values each text has."""
        return np.diff(self.ends, prepend=0)

    def save(self, folder: Path, name: str) -> None:
        """Writes `NAME.values.npy` and `NAME.ends.npy`."""
        for part in ("values", "ends"):
            np.save(folder / f"{name}.{part}.npy", getattr(self, part))

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """What `save` wrote, memory-mapped: nothing is read before it is used."""
        values, ends = (
            np.load(folder / f"{name}.{part}.npy", mmap_mode="r", allow_pickle=False)
            for part in ("values", "ends")
        )
        return cls(values=values, ends=ends)
