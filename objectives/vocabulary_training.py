"""A sub-word vocabulary by byte-pair encoding, in a process of its own.

Bytes are taken as the first 256 characters, so that any file can be cut into pieces and put
together again to the byte, whatever its encoding. Run as a program by `objectives.kept_texts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from objectives.kept_texts import Job, main
from objectives.texts import Texts, Tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PIECES = "pieces"
"""What the texts of the vocabulary itself are called."""

_WORDS = "\n[ \t]*| ?[A-Za-z_\x80-\xff]+| ?[0-9]+| ?[^\\sA-Za-z0-9_\x80-\xff]+|\\s"
"""No piece reaches across two words, a word and a number, or a line and the next; a line's
indentation is one word. All bytes from 128 count as letters, of which UTF-8 makes those that ASCII
has not. Source: GPT-2's pattern (openai/gpt-2, src/encoder.py), simplified for bytes."""
_CHUNK_BYTES = 2**16
_ENCODED_AT_ONCE = 64
_TRAINED_BYTES = 2**26
"""Longer corpora are learned from evenly spread chunks, this many bytes in all."""


def trained(chunks: Iterable[str], size: int) -> Tokenizer:
    """A tokenizer of at most `size` pieces; the first 256 are the bytes.

    Fewer where every word is one piece already. The same texts give the same pieces.

    Source: Sennrich et al. 2016, arXiv 1508.07909, algorithm 1, by the `tokenizers` library.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_WORDS), "isolated")
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=1,
        initial_alphabet=[chr(byte) for byte in range(256)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(chunks, trainer)
    return tokenizer


def pieces(tokenizer: Tokenizer) -> list[bytes]:
    """The bytes of each piece, by its number."""
    numbers = tokenizer.get_vocab()
    return [piece.encode("latin-1") for piece in sorted(numbers, key=numbers.__getitem__)]


def encoded(tokenizer: Tokenizer, texts: Texts) -> Texts:
    """The same texts in pieces."""
    dtype = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
    chunks = ((index, chunk) for index, text in enumerate(texts) for chunk in chunks_of(text))
    lengths, parts = np.zeros(len(texts), dtype=np.int64), []
    while group := list(islice(chunks, _ENCODED_AT_ONCE)):
        found = tokenizer.encode_batch_fast([chunk for _, chunk in group])
        for (index, _), each in zip(group, found, strict=True):
            lengths[index] += len(each.ids)
            parts.append(np.array(each.ids, dtype=dtype))
    return Texts(values=np.concatenate(parts), ends=np.cumsum(lengths))


def chunks_of(text: Tokens) -> Iterator[str]:
    """A text in characters that stand for its bytes, cut before line ends where it is long."""
    first = 0
    while first < len(text):
        piece = text[first : first + _CHUNK_BYTES].astype(np.uint8).tobytes()
        if first + len(piece) < len(text):
            piece = piece[: max(piece.rfind(b"\n"), 0) or len(piece)]
        yield piece.decode("latin-1")
        first += len(piece)


def _spread(texts: Iterable[Texts]) -> Iterator[str]:
    """Every chunk, or of a long corpus each n-th."""
    parts = list(texts)
    every = -(-sum(len(part.values) for part in parts) // _TRAINED_BYTES)
    chunks = (chunk for part in parts for text in part for chunk in chunks_of(text))
    return (chunk for index, chunk in enumerate(chunks) if index % every == 0)


def train(folder: Path, job: Job, given: Mapping[str, Texts]) -> None:
    """Writes the pieces, and all texts in them, to the folder."""
    tokenizer = trained(_spread(given[name] for name in job["trained_on"]), job["size"])
    Texts.of(pieces(tokenizer)).save(folder, PIECES)
    for name, texts in given.items():
        encoded(tokenizer, texts).save(folder, name)


if __name__ == "__main__":
    main(train)
