"""The order of the stages, one function a command. It computes nothing.

Longer than 200 lines: it is the one list of everything a person can ask for.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from search import home
from search.errors import InputError

if TYPE_CHECKING:
    from search.home import SweepHome
    from search.memory.device import Device
    from search.memory.feasibility import Verdict
    from search.metric import Metric
    from search.results import Params, Trial
    from search.sweep.file import LoadedSweep

console = Console()


def init(path: Path) -> None:
    """Writes the starter sweep file, never over another file."""
    from search.sweep.starter import STARTER

    if path.exists():
        msg = f"{path} exists already (give another name: paretune init NAME.yaml)"
        raise InputError(msg)
    path.write_text(STARTER, encoding="utf-8")
    console.print(f"wrote {path}; next: paretune plan {path}, then paretune sweep {path}")


def schema() -> None:
    """Prints the JSON Schema of sweep files."""
    from search.sweep.file import sweep_schema

    print_json(sweep_schema())


def print_json(value: object) -> None:
    """Prints plain JSON, whatever the width of the terminal."""
    console.print(json.dumps(value, indent=2), soft_wrap=True, highlight=False, markup=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What every stage of one sweep needs: the file, the device, and how memory is judged."""

    loaded: LoadedSweep
    device: Device
    budget_bytes: int
    num_slots: int
    fits: Callable[[Params], Verdict]
    params_of: Callable[[Any], Params]


def _prepare(path: Path) -> Stage:
    from search.memory.device import device_here
    from search.memory.feasibility import judge
    from search.memory.measurement import overhead_bytes
    from search.memory.prediction import Predictor
    from search.sweep.file import read_sweep
    from search.trials.placement import slots

    device = device_here()
    loaded = read_sweep(path, capacity_bytes=device.capacity_bytes)
    _refuse_absent_device(loaded, device)
    placed = slots(loaded.sweep, device)
    with console.status("measuring this machine's overhead"):
        overhead = overhead_bytes(device)
    predict = Predictor(
        loaded.objective, overhead_bytes=overhead, cache_dir=home.home() / "predictions"
    )
    return Stage(
        loaded=loaded,
        device=device,
        budget_bytes=placed.budget_bytes,
        num_slots=placed.num_slots,
        fits=lambda params: judge(params, predict, placed.budget_bytes),
        params_of=loaded.params_of,
    )
