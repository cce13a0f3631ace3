"""Sub-word vocabularies of a corpus, each trained once and kept in the user's cache folder.

The work is done by another process (`objectives.vocabulary_training`): its memory would else count
as that of the trial which first asks for a vocabulary.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from objectives.texts import Texts
from objectives.vocabulary_training import GIVEN, JOB, PIECES
from search.errors import InputError, MachineError

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
    folder = cache_folder() / _name(texts, trained_on, size)
    if not folder.is_dir():
        return _made(folder, texts, trained_on, size)
    return _loaded(folder, texts, size)


def cache_folder() -> Path:
    """Where vocabularies are kept, beside what else can be computed again.

    Source: `search.memory.files.cache_folder`, which is not to be imported here.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "paretune" / "vocabularies"


def _name(texts: Mapping[str, Texts], trained_on: Collection[str], size: int) -> str:
    """A name for the content, what is made of it, and the code that does so."""
    digest = hashlib.sha256(Path(__file__).with_name("vocabulary_training.py").read_bytes())
    digest.update(json.dumps([sorted(trained_on), size, version("tokenizers")]).encode())
    for name, part in sorted(texts.items()):
        digest.update(f"{name} {part.values.dtype} {len(part)} {len(part.values)}".encode())
        for array in (part.values, part.ends):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def _made(
    folder: Path, texts: Mapping[str, Texts], trained_on: Collection[str], size: int
) -> Tokenized:
    """Trains and encodes in a folder of its own, which takes its place when it is whole."""
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder.parent if os.access(folder.parent, os.W_OK) else None
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=place))
    try:
        _do(partial, texts, trained_on, size)
        found = _loaded(partial, texts, size)  # stays mapped, whatever becomes of the folder
        if place is not None:
            with suppress(OSError):  # another process was faster
                partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return found


def _do(folder: Path, texts: Mapping[str, Texts], trained_on: Collection[str], size: int) -> None:
    given = folder / GIVEN
    given.mkdir()
    for name, part in texts.items():
        part.save(given, name)
    job = {"size": size, "trained_on": sorted(trained_on), "texts": sorted(texts)}
    (folder / JOB).write_text(json.dumps(job), encoding="utf-8")
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "objectives.vocabulary_training", str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        msg = f"training a vocabulary of {size} failed:\n{done.stderr.strip()}"
        raise MachineError(msg)
    shutil.rmtree(given)


def _loaded(folder: Path, texts: Mapping[str, Texts], size: int) -> Tokenized:
    pieces = Texts.load(folder, PIECES)
    if len(pieces) < size:
        msg = (
            f"vocabulary {size} is more than these texts give: with {len(pieces)} pieces each "
            f"of their words is one (choose at most {len(pieces)})"
        )
        raise InputError(msg)
    return Tokenized(pieces=pieces, texts={name: Texts.load(folder, name) for name in texts})
