"""Sub-word vocabularies of a corpus, each trained once and kept in the user's cache folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from objectives.kept_texts import kept_texts
from objectives.texts import Texts
from objectives.vocabulary_training import PIECES
from search.errors import InputError

NUM_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokenized:
    """Texts in the pieces of a vocabulary, and the bytes of each piece by its number."""

    pieces: Texts
    texts: Mapping[str, Texts]

    @property
    def piece_bytes(self) -> npt.NDArray[np.int64]:
        """How many bytes each piece stands for."""
        return self.pieces.lengths

    def decoded(self, tokens: npt.ArrayLike) -> bytes:
        """The bytes that these pieces stand for."""
        return b"".join(self.pieces[int(token)].tobytes() for token in np.asarray(tokens))


def tokenized(texts: Mapping[str, Texts], *, trained_on: Collection[str], size: int) -> Tokenized:
    """Texts in the `size` pieces that suit some of them best; 256 pieces are the bytes.

    Memory-mapped from the cache folder, where the same texts are found again in any process.

    Args:
        texts: texts of bytes by name; each name holds at least one byte.
        trained_on: the names of those that decide the pieces: never what is held out.
        size: pieces in the vocabulary, at least 256.

    Raises:
        InputError: when the texts do not give that many pieces.
        MachineError: when the process that does it fails.
    """
    if size < NUM_BYTES:
        msg = f"vocabulary must be at least {NUM_BYTES}, the bytes, found {size}"
        raise InputError(msg)
    if size == NUM_BYTES:
        bytes_themselves = Texts.of(bytes([byte]) for byte in range(NUM_BYTES))
        return Tokenized(pieces=bytes_themselves, texts=texts)
    return kept_texts(
        "vocabulary_training",
        {"size": size, "trained_on": sorted(trained_on)},
        texts,
        what=f"training a vocabulary of {size}",
        read=lambda folder: _loaded(folder, texts, size),
    )


def _loaded(folder: Path, texts: Mapping[str, Texts], size: int) -> Tokenized:
    pieces = Texts.load(folder, PIECES)
    if len(pieces) < size:
        msg = (
            f"vocabulary {size} is more than these texts give: with {len(pieces)} pieces each "
            f"of their words is one (choose at most {len(pieces)})"
        )
        raise InputError(msg)
    return Tokenized(pieces=pieces, texts={name: Texts.load(folder, name) for name in texts})
