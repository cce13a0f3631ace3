"""Tables for the terminal: what there is, how it stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from search.results import Outcome, Trial
from search.units import format_bytes

if TYPE_CHECKING:
    from search.memory.contexts import MeasuredContext
    from search.memory.device import Device
    from search.memory.nvml import GpuHere


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one sweep stands."""

    name: str
    created_at: str
    running: bool
    num_trials: int
    counts: Counter[Outcome]
    num_unfinished: int
    exhausted: bool
    """Whether every point of its space was tried."""

    @property
    def num_done(self) -> int:
        """Trials that were trained to an end, well or badly: those the sweep asks for."""
        return sum(count for outcome, count in self.counts.items() if outcome.is_trained)

    @property
    def state(self) -> str:
        """`running`, `finished`, or `interrupted` when it can be resumed."""
        if self.running:
            return "running"
        over = self.num_done >= self.num_trials or self.exhausted
        return "finished" if over and not self.num_unfinished else "interrupted"

    @property
    def line(self) -> str:
        """How it stands, in one line."""
        counts = [
            f"{self.counts[outcome]} {word}"
            for outcome, word in _COUNTED.items()
            if self.counts[outcome] or outcome in _SHOWN_ALWAYS
        ]
        return f"{self.state}, {self.num_done} of {self.num_trials} trials: {', '.join(counts)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "name": self.name,
            "created_at": self.created_at,
            "state": self.state,
            "trials": self.num_trials,
            "done": self.num_done,
            "counts": {outcome.value: self.counts[outcome] for outcome in Outcome},
        }


def standing(
    *,
    name: str,
    created_at: str,
    running: bool,
    num_trials: int,
    trials: Iterable[Trial],
    num_unfinished: int,
    exhausted: bool,
) -> Standing:
    """The standing of a sweep from what its ledger holds, refusals among `trials`."""
    return Standing(
        name=name,
        created_at=created_at,
        running=running,
        num_trials=num_trials,
        counts=Counter(trial.outcome for trial in trials),
        num_unfinished=num_unfinished,
        exhausted=exhausted,
    )


def standings_table(standings: Iterable[Standing]) -> Table:
    """One row a sweep."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("sweep", "state", "trials", "pruned", "failed", "started"):
        table.add_column(head, no_wrap=True)
    for row in standings:
        num_pruned = row.counts[Outcome.PRUNED_BY_MEMORY]
        num_failed = row.counts.total() - num_pruned - row.counts[Outcome.COMPLETED]
        trials = f"{row.num_done}/{row.num_trials}"
        table.add_row(row.name, row.state, trials, str(num_pruned), str(num_failed), row.created_at)
    return table


_COUNTED = {
    outcome: outcome.value.replace("_", " ")
    for outcome in (
        Outcome.COMPLETED,
        Outcome.PRUNED_BY_MEMORY,
        Outcome.OUT_OF_MEMORY,
        Outcome.DIVERGED,
        Outcome.TIMED_OUT,
        Outcome.FAILED,
    )
}
_SHOWN_ALWAYS = (Outcome.COMPLETED, Outcome.PRUNED_BY_MEMORY, Outcome.OUT_OF_MEMORY)


def devices_text(devices: Iterable[Device]) -> str:
    """One line a GPU. A size with `~` is the nominal one, of which the driver keeps a part.

    As text, as a table of hundreds of rows takes rich a second.
    """
    rows = [("GPU", "capability", "memory", "", "bandwidth"), *map(_device_row, devices)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join(lines)


def _device_row(device: Device) -> tuple[str, str, str, str, str]:
    return (
        device.name,
        _capability(device.architecture),
        f"{_mark(device)}{format_bytes(device.capacity_bytes)}",
        device.memory_type or "",
        _bandwidth(device.bandwidth_bytes_per_second),
    )


def _mark(device: Device) -> str:
    sure = device.capacity is None or device.capacity.low_bytes == device.capacity_bytes
    return "" if sure else "~"


def _capability(architecture: tuple[int, int] | None) -> str:
    return ".".join(map(str, architecture or ()))


def _bandwidth(bytes_per_second: float | None) -> str:
    return "" if bytes_per_second is None else f"{bytes_per_second / 1e9:,.0f} GB/s"


def gpu_here_line(gpu: GpuHere) -> str:
    """What the driver tells of a GPU of this machine."""
    total, held = format_bytes(gpu.total_bytes), format_bytes(gpu.held_bytes)
    capability = _capability(gpu.architecture)
    return f"here: {gpu.name} ({capability}), {total}, {held} held by others, driver {gpu.driver}"


def measured_line(measured: MeasuredContext) -> str:
    """What was measured on a GPU of this machine."""
    found = measured.estimate
    low, high = format_bytes(found.low_bytes), format_bytes(found.high_bytes)
    count, kept = len(measured.sizes_bytes), measured.workspaces
    workspaces = f"workspaces {format_bytes(kept.num_bytes)}, " if kept else ""
    return (
        f"measured: {measured.device_name}, context {format_bytes(found.expected_bytes)} "
        f"({low} to {high} in {count} measurement{'' if count == 1 else 's'}), "
        f"{workspaces}driver {measured.driver}, torch {measured.torch_version}"
    )
