"""Real text that needs no download, and the files of the user. A token is a byte."""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from objectives.cleaning import Cleaning
from objectives.texts import Texts
from search.errors import InputError
from search.objective import Split

PYTHON_STDLIB = "python-stdlib"
NUM_BYTES = 256

_NOT_LIBRARY = frozenset(
    {
        *("test", "tests", "__pycache__", "site-packages", "dist-packages", "sitecustomize.py"),
        *("ensurepip", "lib-dynload", "distutils", "lib2to3", "idlelib", "tkinter", "turtledemo"),
        "encodings",
    }
)
"""Beside the library, shipped apart by some systems, its tests, tables that repeat each other."""
_MADE_AT_BUILD = ("config-", "_sysconfigdata")
"""Differ between two builds of one version of Python."""
_HELD_OUT_ONE_IN = 10
_SNIFFED_BYTES = 8192
"""A NUL among them makes a file binary. Source: git, `buffer_is_binary` in xdiff-interface.c."""
_HASHED_BYTES = 1024**3
_CHECKED_TOKENS = 2**22
_SPREAD_TOKENS = 2**14

_AS_IT_IS = Cleaning()

Tokens = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Corpus:
    """Tokens to train on and tokens to be judged on, both 1-D, values 0 to 255.

    `provenance` is what the record needs to find the same data again: a hash, counts, sizes.
    `train_ends` tell where each document of `train` ends; None where it is one.
    """

    name: str
    train: Tokens
    held_out: Tokens
    provenance: Mapping[str, str | int]
    train_ends: npt.NDArray[np.int64] | None = None

    @property
    def texts(self) -> dict[str, Texts]:
        """By split: what is trained on, document by document; what is held out, as one text."""
        train, ends = Texts.one(self.train), self.train_ends
        return {
            Split.TRAIN.value: train if ends is None else replace(train, ends=ends),
            Split.HELD_OUT.value: Texts.one(self.held_out),
        }


def open_corpus(corpus: str, *, held_out_tokens: int, cleaning: Cleaning = _AS_IT_IS) -> Corpus:
    """The corpus of that name or path, split the same way whenever it is opened.

    `python-stdlib` is the library of the running Python, without tests, tools and what differs
    between machines. It and a folder are split by file: a tenth of the files, chosen by the hash of
    their relative path, is held out. A single file or array is too little for that: its last tenth
    is held out, `held_out_tokens` at most. Text is read into memory, arrays are memory-mapped.

    Args:
        corpus: `python-stdlib`, or the path of a text file, of a folder of text files (binary and
            hidden ones are left out), of a `.bin` of bytes, or of a `.npy` of integers below 256.
        held_out_tokens: bytes to be judged on, fewer where fewer are held out.
        cleaning: what is done to the documents before they are split.

    Raises:
        InputError: when there is nothing there to train and to be judged on.
    """
    if held_out_tokens < 2:
        msg = f"held_out_tokens must be at least 2, found {held_out_tokens} (try 65_536)"
        raise InputError(msg)
    path = Path(corpus).expanduser()
    try:
        if corpus == PYTHON_STDLIB:
            return _standard_library(held_out_tokens, cleaning)
        if path.is_dir():
            return _folder(path, held_out_tokens, cleaning)
        if not cleaning.does_nothing:
            msg = f"{path}: has no documents to clean or to compare (name a folder of text files)"
            raise InputError(msg)
        return _single_file(path, held_out_tokens)
    except OSError as error:
        msg = f"{error.filename or path}: cannot be read: {error.strerror} (check its permissions)"
        raise InputError(msg) from error


def _standard_library(held_out_tokens: int, cleaning: Cleaning) -> Corpus:
    texts, cleaned = cleaning.applied(_not_empty(library_sources()))
    found = {"python": platform.python_version(), **cleaned}
    return _split_by_file(PYTHON_STDLIB, _library(), texts, held_out_tokens, found)


def library_sources() -> dict[str, bytes]:
    """The sources of Python's own library by relative path, what `python-stdlib` consists of."""
    root = _library()
    names = [name for name in _file_names(root, skip=_is_not_library) if name.endswith(".py")]
    return {name: (root / name).read_bytes() for name in names}


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _is_not_library(name: str) -> bool:
    return name in _NOT_LIBRARY or name.startswith(_MADE_AT_BUILD)


def _folder(root: Path, held_out_tokens: int, cleaning: Cleaning) -> Corpus:
    read = {name: _text(root / name) for name in _file_names(root, skip=_is_hidden)}
    texts = {name: text for name, text in read.items() if text is not None}
    skipped = {"num_binary_files": len(read) - len(texts)}
    kept, cleaned = cleaning.applied(_not_empty(texts))
    return _split_by_file(str(root), root, kept, held_out_tokens, {**skipped, **cleaned})


def _not_empty(texts: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path: text for path, text in texts.items() if text}


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _text(path: Path) -> bytes | None:
    with path.open("rb") as file:
        head = file.read(_SNIFFED_BYTES)
        return None if b"\0" in head else head + file.read()


def _file_names(root: Path, *, skip: Callable[[str], bool]) -> list[str]:
    """Relative paths of the regular files below a folder, written with `/`, sorted."""
    found: list[str] = []
    for folder, subfolders, names in os.walk(root, onerror=_raise):
        subfolders[:] = [name for name in subfolders if not skip(name)]
        paths = [Path(folder, name) for name in names if not skip(name)]
        found += [path.relative_to(root).as_posix() for path in paths if path.is_file()]
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _split_by_file(
    name: str,
    root: Path,
    texts: Mapping[str, bytes],
    held_out_tokens: int,
    provenance: Mapping[str, str | int],
) -> Corpus:
    texts = _not_empty(texts)
    if not texts:
        msg = f"{root}: no text was found in this folder (name one that holds text files)"
        raise InputError(msg)
    everything = _joined(texts.values())
    found = {**provenance, "num_files": len(texts)}
    if len(texts) == 1:
        return _split_tail(name, everything, held_out_tokens, found)
    by_hash = sorted(texts, key=lambda path: hashlib.sha256(path.encode()).digest())
    chosen = by_hash[: max(1, len(texts) // _HELD_OUT_ONE_IN)]
    held_out = _joined(texts.pop(path) for path in chosen)[:held_out_tokens]
    train = Texts.of(texts.values())
    corpus = _corpus(name, train.values, held_out, found | _hashed(everything))
    return replace(corpus, train_ends=train.ends)


def _joined(texts: Iterable[bytes]) -> Tokens:
    return np.frombuffer(b"".join(texts), dtype=np.uint8)


def _single_file(path: Path, held_out_tokens: int) -> Corpus:
    if not path.exists():
        msg = (
            f"{path}: there is no such file or folder in {Path.cwd()} "
            f"(correct the path, or use {PYTHON_STDLIB}, which every Python carries)"
        )
        raise InputError(msg)
    if not path.is_file():
        msg = f"{path}: is neither a file nor a folder (name a text file, a folder, .bin or .npy)"
        raise InputError(msg)
    if path.stat().st_size == 0:
        msg = f"{path}: is empty (name a file with text in it)"
        raise InputError(msg)
    return _split_tail(str(path), _opened(path), held_out_tokens, {"num_files": 1})


def _opened(path: Path) -> Tokens:
    if path.suffix == ".npy":
        return _array(path)
    if path.suffix == ".bin":
        return np.memmap(path, dtype=np.uint8, mode="r")
    text = _text(path)
    if text is None:
        msg = f"{path}: is binary, not text (if its bytes are the tokens, name it .bin)"
        raise InputError(msg)
    return _joined([text])


def _array(path: Path) -> Tokens:
    try:
        array: Tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        msg = f"{path}: is no NumPy array ({error}) (write it with numpy.save)"
        raise InputError(msg) from error
    if array.ndim != 1 or array.dtype.kind not in "iu":
        msg = (
            f"{path}: must be a 1-D array of integers, found {array.dtype} of shape "
            f"{array.shape} (save tokens.ravel().astype('uint8'))"
        )
        raise InputError(msg)
    _require_bytes(path, array)
    return array


def _require_bytes(path: Path, array: Tokens) -> None:
    """Looks at the first values and some of the rest: reading all of them could take minutes."""
    head, spread = array[:_CHECKED_TOKENS], array[:: max(1, len(array) // _SPREAD_TOKENS)]
    for part in (head, spread):
        if part.size and not 0 <= part.min() <= part.max() < NUM_BYTES:
            msg = (
                f"{path}: a token is a byte, 0 to 255, found {part.min()} to {part.max()} "
                "(the vocabulary is bytes: save the text itself)"
            )
            raise InputError(msg)


def _split_tail(
    name: str, tokens: Tokens, held_out_tokens: int, provenance: Mapping[str, str | int]
) -> Corpus:
    cut = len(tokens) - min(held_out_tokens, len(tokens) // _HELD_OUT_ONE_IN)
    return _corpus(name, tokens[:cut], tokens[cut:], {**provenance, **_hashed(tokens)})


def _corpus(
    name: str, train: Tokens, held_out: Tokens, provenance: Mapping[str, str | int]
) -> Corpus:
    if min(len(train), len(held_out)) < 2:
        msg = (
            f"{name}: too small to be split, found {len(train)} bytes to train on and "
            f"{len(held_out)} to hold out (2 of each are the least: add text)"
        )
        raise InputError(msg)
    sizes = {"train_bytes": len(train), "held_out_bytes": len(held_out)}
    return Corpus(
        name=name,
        train=train,
        held_out=held_out,
        provenance={"corpus": name, **provenance, **sizes},
    )


def _hashed(tokens: Tokens) -> dict[str, str | int]:
    """The hash of the tokens in the order they were read; of a large array, of its first GiB."""
    head = tokens[: _HASHED_BYTES // tokens.itemsize]
    name = "sha256" if len(head) == len(tokens) else "sha256_first_gib"
    return {name: hashlib.sha256(np.ascontiguousarray(head).data).hexdigest()}
