"""Documents that say the same as an earlier one: to the letter, or nearly.

Near-duplicates are found by MinHash over shingles with banding: two documents are compared where
they agree in a whole band of their signatures, and the later one goes when the share of shingles
they have in common, as their signatures estimate it, is high.

Source: Broder 1997, "On the resemblance and containment of documents"; Leskovec, Rajaraman and
Ullman, "Mining of massive datasets", sections 3.3 and 3.4.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

NUM_HASHES = 128
_NUM_BANDS = 32
"""Of 4 hashes each: a pair that shares 70 % of its shingles meets in a band with probability
1 - (1 - 0.7^4)^32 = 0.9998, one that shares 20 % with 0.05."""
_SHINGLE_WORDS = 5
_WORDS = re.compile(rb"[0-9A-Za-z_\x80-\xff]+|[^\s0-9A-Za-z_\x80-\xff]")
_HASHED_AT_ONCE = 4096
_SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicated:
    """The documents that are left, and the names of those that repeat an earlier one."""

    kept: Mapping[str, bytes]
    repeated: tuple[str, ...]
    nearly_repeated: tuple[str, ...]


def without_duplicates(documents: Mapping[str, bytes], *, near: float | None) -> Deduplicated:
    """Each document that repeats none before it, in their order.

    Args:
        documents: their text by name.
        near: share of shingles in common from which a document repeats another, above 0 to 1;
            None where only those are left out that agree to the byte.
    """
    first: dict[bytes, str] = {}
    for name, text in documents.items():
        first.setdefault(hashlib.sha256(text).digest(), name)
    unique = set(first.values())
    close = _nearly_repeated({name: documents[name] for name in documents if name in unique}, near)
    return Deduplicated(
        kept={name: text for name, text in documents.items() if name in unique - close},
        repeated=tuple(name for name in documents if name not in unique),
        nearly_repeated=tuple(name for name in documents if name in close),
    )


def _nearly_repeated(documents: Mapping[str, bytes], near: float | None) -> set[str]:
    if near is None:
        return set()
    names = list(documents)
    signatures = np.array([signature(shingles(text)) for text in documents.values()])
    gone: set[int] = set()
    buckets: list[dict[bytes, list[int]]] = [defaultdict(list) for _ in range(_NUM_BANDS)]
    for index, bands in enumerate(signatures.reshape(len(names), _NUM_BANDS, -1)):
        keys = [band.tobytes() for band in bands]
        met = sorted(
            {each for found, key in zip(buckets, keys, strict=True) for each in found[key]}
        )
        if met and (signatures[met] == signatures[index]).mean(axis=1).max() >= near:
            gone.add(index)
            continue
        for found, key in zip(buckets, keys, strict=True):
            found[key].append(index)
    return {names[index] for index in gone}


def shingles(text: bytes) -> Hashes:
    """A hash of every run of five words or signs in a row, each once; of fewer, of all there are.

    Space between words is no matter.
    """
    words = np.array([_word_hash(word) for word in _WORDS.findall(text)] or [0], dtype=np.uint64)
    count = max(1, len(words) - _SHINGLE_WORDS + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(min(_SHINGLE_WORDS, len(words))):
        hashes = _mixed(hashes ^ words[offset : offset + count])
    return np.unique(hashes)


@functools.lru_cache(maxsize=2**18)
def _word_hash(word: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little")


def signature(hashes: Hashes) -> Hashes:
    """The least of the shingles under each of 128 orders, (128,).

    The share of places in which two agree estimates the share of shingles in common, with a
    standard error of at most 0.044, the root of 0.25 / 128.
    """
    least = np.full(NUM_HASHES, np.iinfo(np.uint64).max, dtype=np.uint64)
    for first in range(0, len(hashes), _HASHED_AT_ONCE):
        part = hashes[first : first + _HASHED_AT_ONCE]
        np.minimum(least, _mixed(part[None] ^ _ORDERS[:, None]).min(axis=1), out=least)
    return least


def _mixed(hashes: Hashes) -> Hashes:
    """A permutation of 64-bit numbers in which each bit hangs on all.

    Source: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 16
    (mix64 of SplitMix64).
    """
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


_ORDERS: Hashes = np.random.default_rng(_SEED).integers(2**64, size=NUM_HASHES, dtype=np.uint64)
