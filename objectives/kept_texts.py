"""Texts made of other texts by another process, once, and kept in the user's cache folder.

By another process, since its memory would else count as that of the trial which first asks.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from objectives.texts import Texts
from search.errors import MachineError

_JOB = "job.json"
_GIVEN = "given"
"""File and folder names between the two processes."""
_SOURCES = Path(__file__).parent

_Found = TypeVar("_Found")
Job = Mapping[str, Any]


def cache_folder() -> Path:
    """Where they are kept, beside what else can be computed again.

    Source: `search.memory.files.cache_folder`, which is not to be imported here.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "paretune" / "vocabularies"


def kept_texts(
    module: str,
    job: Job,
    texts: Mapping[str, Texts],
    *,
    what: str,
    read: Callable[[Path], _Found],
) -> _Found:
    """What a module of this package makes of some texts, read from the folder it wrote to.

    The same job on the same texts is found again in any process.

    Args:
        module: its name; run as a program it does the job that `main` hands it.
        job: what to do, as JSON, all that the result hangs on beside the texts.
        texts: texts of bytes by name.
        what: what is done, for the message when it fails.
        read: makes something of the folder; what it maps into memory stays.

    Raises:
        MachineError: when the process that does it fails.
    """
    folder = cache_folder() / _name(module, job, texts)
    if folder.is_dir():
        return read(folder)
    with suppress(OSError):
        folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder.parent if os.access(folder.parent, os.W_OK) else None
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=place))
    try:
        _do(partial, module, job, texts, what)
        found = read(partial)  # stays mapped, whatever becomes of the folder
        if place is not None:
            with suppress(OSError):  # another process was faster
                partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return found


def _name(module: str, job: Job, texts: Mapping[str, Texts]) -> str:
    """A name for the content, what is made of it, and the code that does so."""
    digest = hashlib.sha256((_SOURCES / f"{module}.py").read_bytes())
    digest.update(json.dumps([job, version("tokenizers")], sort_keys=True).encode())
    for name, part in sorted(texts.items()):
        digest.update(f"{name} {part.values.dtype} {len(part)} {len(part.values)}".encode())
        for array in (part.values, part.ends):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def _do(folder: Path, module: str, job: Job, texts: Mapping[str, Texts], what: str) -> None:
    given = folder / _GIVEN
    given.mkdir()
    for name, part in texts.items():
        part.save(given, name)
    (folder / _JOB).write_text(json.dumps({**job, "texts": sorted(texts)}), encoding="utf-8")
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", f"objectives.{module}", str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        msg = f"{what} failed:\n{done.stderr.strip()}"
        raise MachineError(msg)
    shutil.rmtree(given)


def main(do: Callable[[Path, Job, Mapping[str, Texts]], None]) -> None:
    """The other process: does the job in the folder it is given, which `do` writes to."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # the limit of a trial is not ours
    folder = Path(sys.argv[1])
    job = json.loads((folder / _JOB).read_text(encoding="utf-8"))
    do(folder, job, {name: Texts.load(folder / _GIVEN, name) for name in job["texts"]})
