"""Where a sweep keeps its state: `.paretune/NAME/` in the working folder, or in PARETUNE_HOME."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from search.errors import InputError, MachineError
from search.metric import Goal, Metric

_MANIFEST = "manifest.json"
_PACKAGES = ("paretune", "torch", "ray", "optuna", "mlflow")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def home() -> Path:
    """The folder that holds one folder for each sweep."""
    return Path(os.environ.get("PARETUNE_HOME", ".paretune")).absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What stays the same however often a sweep is resumed.

    Enough to show, pick and export its results without loading its objective. Of `objective` and
    `command` one is empty; `num_tokens` is 0 where each trial ends by itself.
    """

    sweep_id: str
    created_at: str
    tracking_uri: str
    objective: str
    data: Mapping[str, Any]
    dimensions: tuple[str, ...]
    objectives: tuple[Metric, ...]
    metrics: tuple[Metric, ...]
    num_trials: int
    num_tokens: int
    budget_bytes: int
    cpus: int
    versions: Mapping[str, str]
    provenance: Mapping[str, str | int]
    command: str = ""
    compression: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The manifest whose fields these are."""
        return cls(
            **{
                **record,
                "dimensions": tuple(record["dimensions"]),
                "objectives": _metrics(record["objectives"]),
                "metrics": _metrics(record["metrics"]),
            }
        )


def _metrics(records: list[dict[str, Any]]) -> tuple[Metric, ...]:
    return tuple(Metric(**{**record, "goal": Goal(record["goal"])}) for record in records)


def installed_versions() -> dict[str, str]:
    """Python and the packages that decide what is measured, each with its version here."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}


def new_sweep_id() -> str:
    """An identifier no other sweep has."""
    return uuid.uuid4().hex[:12]


def now() -> str:
    """The time, to the second, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class SweepHome:
    """The folder of one sweep and the files in it."""

    folder: Path

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.folder.name

    @property
    def sweep_file(self) -> Path:
        """The sweep file as it was when the sweep started."""
        return self.folder / "sweep.yaml"

    @property
    def manifest_file(self) -> Path:
        """What the sweep is; written last, so a folder with it is a sweep."""
        return self.folder / _MANIFEST

    @property
    def stop_request(self) -> Path:
        """Its existence asks the running sweep to stop."""
        return self.folder / "stop-requested"

    def manifest(self) -> Manifest:
        """What `create_home` wrote. Raises InputError on a folder that holds no sweep."""
        try:
            return Manifest.from_json(json.loads(self.manifest_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError) as error:
            msg = (
                f"{self.folder} holds no sweep that this version can read ({error}): "
                "use the version that wrote it, or move the folder away"
            )
            raise InputError(msg) from error

    def request_stop(self) -> None:
        """Asks the process that runs the sweep to stop. Raises MachineError when it cannot."""
        with self._writing():
            self.stop_request.touch()

    def discard(self) -> None:
        """Removes a sweep in which nothing was tried yet."""
        shutil.rmtree(self.folder)

    def save_pick(self, label: str, pick: Mapping[str, Any]) -> None:
        """Keeps a pick under a label, over an earlier one of that label."""
        require_label(label)
        with self._writing():
            self._picks.mkdir(exist_ok=True)
            write_atomically(self._picks / f"{label}.json", json.dumps(pick, indent=2))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            msg = f"{self.folder} cannot be written: {error.strerror}"
            raise MachineError(msg) from error

    def load_pick(self, label: str) -> dict[str, Any]:
        """The pick kept under a label. Raises InputError naming the labels there are."""
        file = self._picks / f"{require_label(label)}.json"
        if file.is_file():
            return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
        known = sorted(path.stem for path in self._picks.glob("*.json"))
        if not known:
            msg = f"{self.name}: nothing was picked yet (run: paretune pick {self.name})"
        else:
            msg = f"{self.name}: no pick is called {label!r} (there are: {', '.join(known)})"
        raise InputError(msg)

    @property
    def _picks(self) -> Path:
        return self.folder / "picks"


def require_label(label: str) -> str:
    """The label itself. Raises InputError on one that cannot name a file."""
    if not _LABEL.fullmatch(label):
        msg = f"--as {label!r}: a label is made of at most 100 letters, digits, '.', '_' and '-'"
        raise InputError(msg)
    return label


def write_atomically(file: Path, text: str) -> None:
    """Writes a file so that a reader or a crash meets either the old text or the new."""
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


def write_for_user(file: Path, text: str) -> None:
    """Writes a file that a person named. Raises InputError when it cannot be written."""
    try:
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        write_atomically(file, text)
    except OSError as error:
        msg = f"{file} cannot be written: {error.strerror} (name another file)"
        raise InputError(msg) from error


def create_home(name: str, *, sweep_text: str, manifest: Manifest) -> SweepHome:
    """The new folder of a sweep, with its sweep file and its manifest.

    Raises:
        InputError: when a sweep of that name exists.
        MachineError: when the folder cannot be written.
    """
    refuse_existing(name)
    sweep = SweepHome(home() / name)
    try:
        sweep.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(sweep.sweep_file, sweep_text)
        write_atomically(sweep.manifest_file, json.dumps(asdict(manifest), indent=2))
    except OSError as error:
        msg = f"{sweep.folder} cannot be written ({error.strerror}): set PARETUNE_HOME elsewhere"
        raise MachineError(msg) from error
    return sweep


def refuse_existing(name: str) -> None:
    """Raises InputError when a sweep of that name exists already."""
    folder = home() / name
    if (folder / _MANIFEST).exists():
        msg = (
            f"a sweep called {name!r} exists already in {folder}: go on with it by "
            f"'paretune sweep --resume {name}', or give the new one another name"
        )
        raise InputError(msg)


def open_home(name: str) -> SweepHome:
    """The folder of an existing sweep. Raises InputError naming the sweeps there are."""
    sweep = SweepHome(home() / name)
    if name in names():
        return sweep
    known = ", ".join(names()) or "none yet"
    msg = f"there is no sweep called {name!r} in {home()} (there are: {known})"
    raise InputError(msg)


def names() -> list[str]:
    """The names of all sweeps here, sorted."""
    return sorted(path.parent.name for path in home().glob(f"*/{_MANIFEST}"))
