"""Predicted memory beside measured memory, and where a device's are kept from sweep to sweep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from search.memory.files import append_json, cache_folder, read_json, read_json_lines, write_json
from search.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """One run: what was predicted for it and what it took, or ran out of.

    Where `censored`, the run ran out of memory: `measured_bytes` is what it could have had, and it
    needed more than that.
    """

    predicted_bytes: int
    measured_bytes: int
    censored: bool = False

    @property
    def error_bytes(self) -> int:
        """Above 0 where more was needed than predicted; a lower bound where `censored`."""
        return self.measured_bytes - self.predicted_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorScale:
    """How large an ordinary error is at a size: a part that is always there, a part that grows.

    Errors divided by it can be compared between sizes: 60 MiB of kernels that CUDA loaded late are
    much at 2 GiB and nothing at 40 GiB, one percent of fragmentation is the other way round.
    Only the ratio of the two parts shapes a margin, and no margin that was calibrated hangs on
    their being right: that they are chosen before any error is seen is what the guarantee asks.

    Source: locally weighted conformal prediction, Lei, G'Sell, Rinaldo, Tibshirani and Wasserman,
    Distribution-Free Predictive Inference for Regression (2018), section 5.2.
    """

    constant_bytes: int
    share: float

    def at(self, predicted_bytes: float) -> float:
        """Bytes of an ordinary error of a prediction."""
        return self.constant_bytes + self.share * predicted_bytes

    def score(self, residual: Residual) -> float:
        """The error in ordinary errors: above 0 where more was needed than predicted."""
        return residual.error_bytes / self.at(residual.predicted_bytes)


SCALES: Mapping[str, ErrorScale] = MappingProxyType(
    {
        "cuda": ErrorScale(constant_bytes=64 * MIB, share=0.01),
        "cpu": ErrorScale(constant_bytes=MIB, share=0.01),
    }
)
"""By kind of device.

Constant on CUDA: three segments of the caching allocator's large pool, 20 MiB each, which one
block more or less adds or saves (`kLargeBuffer`, c10/core/AllocatorConfig.h), and two of its small
pool. On a CPU: one arena of Python's own allocator (`ARENA_BITS`, CPython's
Objects/obmalloc.c). The share: a segment of 10 MiB and more is rounded up to 2 MiB, by 1 MiB on
average, which is one percent of blocks of 100 MiB.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What errors must share to say anything of each other.

    `driver` is the GPU's driver, on a CPU the kernel's release. `statistic` is what was compared:
    `device_total`, `reserved` or `allocated`.
    """

    device: str
    kind: str
    driver: str
    torch_version: str
    statistic: str = "device_total"

    @property
    def digest(self) -> str:
        """A short name for a folder, equal for equal settings."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class ResidualStore:
    """The residuals of one setting, a JSON record a line, in the user's cache folder.

    Several processes may add at once. What is damaged is passed over: all of it can be had again.
    """

    def __init__(self, setting: Setting, folder: Path | None = None) -> None:
        """Creates nothing.

        Args:
            setting: whose residuals.
            folder: holds all settings; default: `calibration` in the cache folder.
        """
        self._setting = setting
        self._folder = (folder or calibration_folder()) / setting.digest

    @property
    def file(self) -> Path:
        """Where they are; deleting it forgets them."""
        return self._folder / "residuals.jsonl"

    def add(self, residual: Residual, *, trial: str) -> None:
        """Keeps one more; of a trial that is added twice the first counts.

        Raises:
            OSError: when the folder cannot be written.
        """
        description = self._folder / "setting.json"
        if not description.exists():
            write_json(description, asdict(self._setting))
        append_json(self.file, {"trial": trial, **asdict(residual)})

    def read(self) -> tuple[Residual, ...]:
        """All of them, oldest first."""
        found: dict[str, Residual] = {}
        for record in read_json_lines(self.file):
            trial, residual = record.pop("trial", None), _residual(record)
            if isinstance(trial, str) and residual:
                found.setdefault(trial, residual)
        return tuple(found.values())


def _residual(record: Mapping[str, Any]) -> Residual | None:
    try:
        residual = Residual(**record)
    except TypeError:
        return None
    sizes = (residual.predicted_bytes, residual.measured_bytes)
    return residual if all(type(size) is int and size >= 0 for size in sizes) else None


def calibration_folder() -> Path:
    """Where the residuals of all settings are."""
    return cache_folder() / "calibration"


def known_settings(folder: Path | None = None) -> tuple[Setting, ...]:
    """The settings of which something was measured, by device and version."""
    found = []
    for file in (folder or calibration_folder()).glob("*/setting.json"):
        try:
            found.append(Setting(**read_json(file)))
        except TypeError:
            continue
    return tuple(sorted(found, key=lambda setting: tuple(asdict(setting).values())))
