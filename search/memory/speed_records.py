"""Measured beside estimated speed of trials, kept by device, so that later estimates follow."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from search.memory.catalogue import is_named
from search.memory.device import Device
from search.memory.files import append_json, cache_folder, read_json_lines, write_json
from search.memory.margins import setting_of
from search.memory.rates import Basis
from search.memory.residuals import Setting, known_settings

_ESTIMATING_CODE = ("rates.py", "speed.py", "work.py")
_FILE = "speeds.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """One trial: the tokens per second it reached, and those estimated without any correction."""

    measured_tokens_per_second: float
    estimated_tokens_per_second: float

    @property
    def ratio(self) -> float:
        """What `search.memory.speed.correction` takes the median of."""
        return self.measured_tokens_per_second / self.estimated_tokens_per_second


def speed_setting(device: Device, *, basis: Basis, cpus: int) -> Setting:
    """What speeds must share to correct each other's estimates.

    A CPU trains on `cpus` of its cores, and its rates are those of all threads torch uses here. An
    estimate by other code, or by rates of another basis, is another estimate.
    """
    threads = f", {cpus} of {torch.get_num_threads()} threads" if device.kind == "cpu" else ""
    setting = setting_of(device)
    return replace(setting, device=setting.device + threads, statistic=_statistic(basis))


def _statistic(basis: Basis) -> str:
    return f"tokens_per_second over {basis.value} rates, {_code_hash()}"


@cache
def _code_hash() -> str:
    files = (Path(__file__).parent / name for name in _ESTIMATING_CODE)
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:8]


def record_speed(
    setting: Setting, speed: MeasuredSpeed, *, trial: str, folder: Path | None = None
) -> None:
    """Keeps one more; of a trial that is recorded twice the first counts.

    Raises:
        OSError: when the folder cannot be written.
    """
    place = (folder or speeds_folder()) / setting.digest
    description = place / "setting.json"
    if not description.exists():
        write_json(description, asdict(setting))
    append_json(place / _FILE, {"trial": trial, **asdict(speed)})


def recorded_speeds(setting: Setting, folder: Path | None = None) -> dict[str, MeasuredSpeed]:
    """Those of one setting by trial, oldest first, without what is damaged."""
    found: dict[str, MeasuredSpeed] = {}
    for record in read_json_lines((folder or speeds_folder()) / setting.digest / _FILE):
        trial, speed = record.pop("trial", None), _speed(record)
        if isinstance(trial, str) and speed is not None:
            found.setdefault(trial, speed)
    return found


def recorded_ratios(
    device: Device, *, basis: Basis, cpus: int, folder: Path | None = None
) -> tuple[float, ...]:
    """Measured over estimated speeds of a device with this driver and build of torch.

    Of a GPU without a driver, one that is not here, those with any driver and any build of this
    version: it was trained on by a machine that shares the cache folder, or has left this one.
    """
    own = speed_setting(device, basis=basis, cpus=cpus)
    absent = device.kind == "cuda" and device.driver is None
    settings = _of_the_model(device, own, folder) if absent else (own,)
    return tuple(
        speed.ratio for each in settings for speed in recorded_speeds(each, folder).values()
    )


def _of_the_model(device: Device, own: Setting, folder: Path | None) -> Iterator[Setting]:
    for setting in known_settings(folder or speeds_folder()):
        if _version(setting) == _version(own) and is_named(device, setting.device):
            yield setting


def _version(setting: Setting) -> tuple[str, str, str]:
    release = setting.torch_version.partition("+")[0]
    return setting.kind, release, setting.statistic


def _speed(record: Mapping[str, Any]) -> MeasuredSpeed | None:
    try:
        speed = MeasuredSpeed(**record)
    except TypeError:
        return None
    values = (speed.measured_tokens_per_second, speed.estimated_tokens_per_second)
    sound = all(type(value) in (int, float) and 0 < value < math.inf for value in values)
    return speed if sound else None


def speeds_folder() -> Path:
    """Where the speeds of all settings are; deleting it forgets them."""
    return cache_folder() / "speeds"
