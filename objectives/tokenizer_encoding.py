"""Texts in the tokens of a tokenizer that comes with a model, in a process of its own.

Each byte of a text belongs to one of its tokens, whatever the tokenizer leaves out or puts in: to
the first that ends at it or after it. Run as a program by `objectives.kept_texts`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from objectives.kept_texts import Job, kept_texts, main
from objectives.texts import Texts, Tokens
from objectives.vocabulary_training import chunks_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Numbers = npt.NDArray[np.int64]

_AROUND = "around.json"
_PROBE = "a"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_FIRST_STRAY, _LAST_STRAY = 0xDC80, 0xDCFF
"""What Python reads bytes as that are no UTF-8. Source: PEP 383."""
_WIDER_FROM = (0x80, 0x800, 0x1_0000)
"""Code points from which UTF-8 takes a byte more. Source: RFC 3629, section 3."""
_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Encoded:
    """Texts in tokens, and what the tokenizer puts before and after a text.

    `num_bytes` are those of each token, for the names that were asked.
    """

    texts: Mapping[str, Texts]
    num_bytes: Mapping[str, Numbers]
    before: tuple[int, ...]
    after: tuple[int, ...]


def encoded_by(
    tokenizer: str, texts: Mapping[str, Texts], *, framed: bool, counted: Sequence[str] = ()
) -> Encoded:
    """Texts of bytes in the tokens of a tokenizer, from the cache where they are known.

    Args:
        tokenizer: the content of its `tokenizer.json`.
        texts: texts of bytes by name; what is not UTF-8 is read as replacement characters.
        framed: whether each text has what the tokenizer puts around it, of no bytes.
        counted: names of texts of whose tokens the bytes are counted.

    Raises:
        MachineError: when the process that does it fails.
    """

    def read(folder: Path) -> Encoded:
        around = json.loads((folder / _AROUND).read_text(encoding="utf-8"))
        counts = {name: np.load(folder / f"{name}.bytes.npy", mmap_mode="r") for name in counted}
        return Encoded(
            texts={name: Texts.load(folder, name) for name in texts},
            num_bytes=counts,
            before=tuple(around["before"]),
            after=tuple(around["after"]),
        )

    job = {"tokenizer": tokenizer, "framed": framed, "counted": sorted(counted)}
    return kept_texts("tokenizer_encoding", job, texts, what="cutting texts into tokens", read=read)


def encode(folder: Path, job: Job, given: Mapping[str, Texts]) -> None:
    """Writes all texts in tokens, what is put around each, and the bytes of those counted."""
    tokenizer = opened(job["tokenizer"])
    frame = around(tokenizer)
    (folder / _AROUND).write_text(json.dumps(frame), encoding="utf-8")
    for name, texts in given.items():
        tokens, num_bytes = encoded(tokenizer, texts, frame if job["framed"] else None)
        tokens.save(folder, name)
        if name in job["counted"]:
            np.save(folder / f"{name}.bytes.npy", num_bytes)


def opened(text: str) -> Tokenizer:
    """A tokenizer from its `tokenizer.json`, which neither cuts nor pads."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def around(tokenizer: Tokenizer) -> dict[str, list[int]]:
    """The tokens that it puts before and after a text."""
    found = tokenizer.encode(_PROBE)
    is_text = [not special for special in found.special_tokens_mask]
    first = is_text.index(True) if any(is_text) else len(is_text)
    last = len(is_text) - is_text[::-1].index(True) if any(is_text) else len(is_text)
    return {"before": found.ids[:first], "after": found.ids[last:]}


def encoded(
    tokenizer: Tokenizer, texts: Texts, frame: Mapping[str, list[int]] | None = None
) -> tuple[Texts, Numbers]:
    """The same texts in tokens, and how many bytes each token stands for: none of a frame's."""
    found = [_framed(*_encoded_text(tokenizer, text), frame) for text in texts]
    dtype = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
    values, num_bytes = (np.concatenate([_NONE, *parts]) for parts in zip(*found, strict=True))
    ends = np.cumsum([len(tokens) for tokens, _ in found])
    return Texts(values=values.astype(dtype), ends=ends), num_bytes


def _encoded_text(tokenizer: Tokenizer, text: Tokens) -> tuple[Numbers, Numbers]:
    read = [_characters(chunk.encode("latin-1")) for chunk in chunks_of(text)]
    found = tokenizer.encode_batch([characters for characters, _ in read], add_special_tokens=False)
    ends: list[Numbers] = [_NONE]
    before = 0
    for each, (_, widths) in zip(found, read, strict=True):
        reached = before + np.concatenate([_NONE, [0], np.cumsum(widths)])
        ends.append(reached[[end for _, end in each.offsets]])
        before = int(reached[-1])
    tokens = np.concatenate([_NONE, *(np.array(each.ids, dtype=np.int64) for each in found)])
    return tokens, _bytes_of_tokens(np.concatenate(ends), before)


def _framed(
    tokens: Numbers, num_bytes: Numbers, frame: Mapping[str, list[int]] | None
) -> tuple[Numbers, Numbers]:
    if frame is None:
        return tokens, num_bytes
    before, after = (np.array(frame[side], dtype=np.int64) for side in ("before", "after"))
    counts = np.pad(num_bytes, (len(before), len(after)))
    return np.concatenate([before, tokens, after]), counts


def _characters(text: bytes) -> tuple[str, Numbers]:
    """A text as a tokenizer takes it, and the bytes that each of its characters stands for."""
    escaped = text.decode("utf-8", errors="surrogateescape")
    points = np.frombuffer(escaped.encode("utf-32-le", errors="surrogatepass"), dtype="<u4")
    is_stray = (points >= _FIRST_STRAY) & (points <= _LAST_STRAY)
    widths = np.ones(len(points), dtype=np.int64)
    for least in _WIDER_FROM:
        widths += (points >= least) & ~is_stray
    replaced = np.where(is_stray, ord(_REPLACEMENT), points).astype("<u4")
    return replaced.tobytes().decode("utf-32-le"), widths


def _bytes_of_tokens(ends: Numbers, total: int) -> Numbers:
    """How far each token gets beyond those before it; what is left goes to the last one."""
    reached = np.maximum.accumulate(ends)
    reached[-1:] = total
    return np.diff(reached, prepend=0)


if __name__ == "__main__":
    main(encode)
