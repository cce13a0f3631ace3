"""Texts with a label or a number each: lines of Python's own library, and the user's tables."""

from __future__ import annotations

import hashlib
import platform
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from objectives.data import PYTHON_STDLIB, library_sources
from objectives.samples import Indices, split_by_name
from objectives.tables import read_table
from objectives.texts import Texts
from objectives.vocabulary import tokenized
from search.errors import InputError
from search.objective import Split

PADDING = 0
"""What follows the end of a text; its pieces are numbered from 1."""

_NO_CODE = frozenset({"pydoc_data"})
"""Holds the pages of `help()`."""
_LEAST_CHARACTERS = 10
"""Shorter lines are brackets and single words."""
_LINES_OF_A_PACKAGE = 1_000
_LINES_WITH_DEPTH = 12_000
_SPACES_OF_A_BLOCK = 4
_DEEPEST = 6
"""Lines further in, or between two depths, continue the line before."""

_Lines = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledTexts:
    """Texts in bytes and what belongs to each: an index of `classes`, or a number where none are.

    Numbers are fp32, indices int64.
    """

    classes: tuple[str, ...]
    texts: Mapping[Split, Texts]
    targets: Mapping[Split, npt.NDArray[Any]]
    provenance: Mapping[str, str | int]


def open_classes(file: str, *, text: str, label: str, held_out_samples: int) -> LabelledTexts:
    """Texts of several classes.

    Args:
        file: `python-stdlib`, lines to be told apart by the package they come from; or the path of
            a CSV, TSV, JSON Lines or Parquet file.
        text: its column of texts.
        label: its column of labels: words or whole numbers.
        held_out_samples: texts to be judged on, see `split_by_name`.

    Raises:
        InputError: when the file cannot be read so, or holds too little.
    """
    if file == PYTHON_STDLIB:
        texts, labels = _code_by_package()
    else:
        table = read_table(Path(file).expanduser(), (text, label))
        texts, labels = table.texts(text), table.labels(label)
    classes, indices = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        msg = f"{file}: column {label!r} must hold at least 2 labels, found {len(classes)}"
        raise InputError(msg)
    names = tuple(map(str, classes))
    return _split(file, texts, indices.astype(np.int64), names, held_out_samples)


def open_numbers(file: str, *, text: str, label: str, held_out_samples: int) -> LabelledTexts:
    """As `open_classes`, with a column of numbers; of `python-stdlib`, how deep lines are indented.

    Raises:
        InputError: when the file cannot be read so, or holds too little.
    """
    if file == PYTHON_STDLIB:
        texts, numbers = _code_by_depth()
    else:
        table = read_table(Path(file).expanduser(), (text, label))
        texts, numbers = table.texts(text), table.numbers(label)
    return _split(file, texts, np.array(numbers, dtype=np.float32), (), held_out_samples)


def _split(
    file: str,
    texts: Sequence[str],
    targets: npt.NDArray[Any],
    classes: tuple[str, ...],
    held_out_samples: int,
) -> LabelledTexts:
    train, held_out = split_by_name(file, texts, held_out_samples)
    chosen: dict[Split, Indices] = {Split.TRAIN: train, Split.HELD_OUT: held_out}
    encoded = [text.encode(errors="surrogatepass") for text in texts]
    digest = hashlib.sha256(b"\0".join(encoded))
    digest.update(targets.data)
    python = {"python": platform.python_version()} if file == PYTHON_STDLIB else {}
    return LabelledTexts(
        classes=classes,
        texts={split: Texts.of(encoded[at] for at in each) for split, each in chosen.items()},
        targets={split: targets[each] for split, each in chosen.items()},
        provenance={
            "file": file,
            **python,
            "num_classes": len(classes),
            "train_samples": len(train),
            "held_out_samples": len(held_out),
            "sha256": digest.hexdigest(),
        },
    )


def _code_by_package() -> tuple[list[str], list[str]]:
    """1,000 different lines of each package that has as many, and the names of the packages.

    Lines that two packages have are left out: nobody could tell where they come from.
    """
    packages: dict[str, set[str]] = defaultdict(set)
    for package, line in _lines_of_packages():
        packages[line.strip()].add(package)
    lines: dict[str, list[str]] = defaultdict(list)
    for line, found in packages.items():
        if len(found) == 1:
            lines[next(iter(found))].append(line)
    chosen = {
        package: _some(its_lines, _LINES_OF_A_PACKAGE)
        for package, its_lines in sorted(lines.items())
        if len(its_lines) >= _LINES_OF_A_PACKAGE
    }
    pairs = [(line, package) for package, its_lines in chosen.items() for line in its_lines]
    return [line for line, _ in pairs], [package for _, package in pairs]


def _code_by_depth() -> tuple[list[str], list[float]]:
    """12,000 different lines, and how many blocks deep each is indented, on average."""
    depths: dict[str, list[int]] = defaultdict(list)
    for _, line in _lines_of_packages():
        depth, rest = divmod(len(line) - len(line.lstrip(" ")), _SPACES_OF_A_BLOCK)
        if not rest and depth <= _DEEPEST:
            depths[line.strip()].append(depth)
    chosen = _some(list(depths), _LINES_WITH_DEPTH)
    return chosen, [float(np.mean(depths[line])) for line in chosen]


def _lines_of_packages() -> _Lines:
    """The package and the text of each line that is long enough."""
    for name, source in library_sources().items():
        package, _, module = name.partition("/")
        if module and package not in _NO_CODE:
            for line in source.decode(errors="replace").splitlines():
                if len(line.strip()) >= _LEAST_CHARACTERS:
                    yield package, line.expandtabs(_SPACES_OF_A_BLOCK)


def _some(lines: Sequence[str], count: int) -> list[str]:
    """The first of them in the order of their hashes: the same ones whatever else there is."""
    return sorted(lines, key=lambda line: hashlib.sha256(line.encode()).digest())[:count]


@lru_cache(maxsize=8)
def in_pieces(texts: LabelledTexts, vocabulary: int) -> Mapping[str, Texts]:
    """The texts of each split in sub-word pieces, learned from those to train on."""
    parts = {split.value: each for split, each in texts.texts.items()}
    return tokenized(parts, trained_on={Split.TRAIN.value}, size=vocabulary).texts


def padded(pieces: Texts, indices: Indices, length: int) -> Tensor:
    """The first `length` pieces of some texts, numbered from 1, then zeros: int64, (B, length)."""
    padded_BT = np.full((len(indices), length), PADDING, dtype=np.int64)
    for row, index in enumerate(indices):
        text = pieces[index][:length]
        padded_BT[row, : len(text)] = text.astype(np.int64) + 1
    return torch.from_numpy(padded_BT)
