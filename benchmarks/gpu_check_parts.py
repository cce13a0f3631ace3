"""The parts of `gpu_check.py`: what each predicts, measures where a GPU is here, and says."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks import gpu_check_device as device
from benchmarks.allocator_replay import agreement, replay
from benchmarks.gpu_check_configurations import (
    SMALL_BYTES,
    Configuration,
    boundary_runs,
    configurations,
)
from benchmarks.gpu_check_runs import (
    Predicted,
    largest,
    largest_batch,
    predicted,
    predicted_to_fit,
)
from search.memory.allocator_settings import allocator_settings_of
from search.memory.contexts import published_context, record_context
from search.memory.cuda_workspaces import cublas_workspace_bytes, lt_workspace_bytes
from search.units import GIB, MIB

_SHARE_OF_RUNS = 0.7
_BOUNDARY_BYTES = 3 * GIB
_NONE = "-"


@dataclass(slots=True, kw_only=True)
class Part:
    """One part of the report: a table, what is to be said beside it, and the bare figures."""

    title: str
    header: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    failed: bool = False


@dataclass(slots=True, kw_only=True)
class Check:
    """What the parts share: the GPU, whether it is here, and what was found out so far."""

    architecture: tuple[int, int]
    total_bytes: int
    is_here: bool
    limit: int
    begun_at: float
    seconds: float
    context_bytes: int
    others_bytes: int = 0

    def is_late(self, share: float = 1.0) -> bool:
        """Whether so much of the time is over that no more should be begun."""
        return time.monotonic() > self.begun_at + share * self.seconds


def context(check: Check, part: Part) -> None:
    """(a) Measures the context and remembers it for this user."""
    part.header = ("CUDA context", "MiB")
    published = published_context(check.architecture)
    low, high = published.low_bytes / MIB, published.high_bytes / MIB
    part.rows.append((f"published, {low:.0f} to {high:.0f}", _mib(published.expected_bytes)))
    part.figures["published_bytes"] = published.expected_bytes
    if not check.is_here:
        return
    found = device.context_bytes()
    check.context_bytes, check.others_bytes = found.trained_bytes, found.others_bytes
    part.rows.append(("measured, before any kernel", _mib(found.bare_bytes)))
    part.rows.append(("measured, after training", _mib(found.trained_bytes)))
    part.rows.append(("held by other processes", _mib(found.others_bytes)))
    part.figures |= {"bare_bytes": found.bare_bytes, "trained_bytes": found.trained_bytes}
    driver = device.driver_version()
    if driver is None:
        part.notes.append("The driver does not tell its version, so nothing was remembered.")
        return
    record_context(
        torch.cuda.get_device_name(),
        driver=driver,
        torch_version=torch.__version__,
        num_bytes=found.trained_bytes,
    )


def workspaces(check: Check, part: Part) -> None:
    """(b) The workspaces of matrix products."""
    part.header = ("workspace", "predicted B", "measured B", "equal")
    names = ("cuBLAS, main thread", "cuBLASLt, main thread", "cuBLAS, backward thread")
    cublas, lt = cublas_workspace_bytes(check.architecture), lt_workspace_bytes()
    expected = (cublas, lt, cublas)
    part.figures["predicted_bytes"] = expected
    measured: tuple[int | None, ...] = (None,) * 3
    if check.is_here:
        found = device.workspaces()
        measured = (found.cublas_bytes, found.lt_bytes, found.backward_bytes)
        part.figures["measured_bytes"] = measured
    for name, left, right in zip(names, expected, measured, strict=True):
        equal = _NONE if right is None else "yes" if left == right else "no"
        shown = _NONE if right is None else f"{right:,}"
        part.rows.append((name, f"{left:,}", shown, equal))


_COLUMNS = ("allocated", "reserved", "device total")


def runs(check: Check, part: Part) -> None:
    """(c) Predicts and measures the 25 runs."""
    three = [f"{name} {what}" for name in _COLUMNS for what in ("predicted", "measured", "error %")]
    part.header = ("run (MiB)", *three)
    errors: dict[str, list[float]] = {name: [] for name in _COLUMNS}
    chosen = configurations(check.total_bytes, check.architecture)[: check.limit]
    part.figures["runs"] = []
    for index, configuration in enumerate(chosen):
        if check.is_late(_SHARE_OF_RUNS):
            part.notes.append(f"{len(chosen) - index} runs were left out: the time was over.")
            break
        _run(check, part, configuration, errors)
    for name, found in errors.items():
        if found:
            most = max(found, key=abs)
            median = statistics.median(map(abs, found))
            part.notes.append(f"{name}: median error {median:.2f} %, largest {most:+.2f} %.")


def _run(
    check: Check, part: Part, configuration: Configuration, errors: dict[str, list[float]]
) -> None:
    forecast = predicted(configuration, check.architecture)
    entry: dict[str, Any] = {"name": configuration.name, "predicted": _peaks(check, forecast)}
    part.figures["runs"].append(entry)
    measured: dict[str, int] = {}
    if check.is_here:
        try:
            found = device.measured(configuration, held_bytes=check.others_bytes)
        except Exception as error:  # noqa: BLE001 - reported; the other runs go on
            part.notes.append(f"{configuration.name}: {line_of(error)}")
            part.failed = True
        else:
            values = (found.allocated_bytes, found.reserved_bytes, found.device_bytes)
            measured = dict(zip(_COLUMNS, values, strict=True))
            entry |= {"measured": measured, "requested_measured_bytes": found.requested_bytes}
            part.notes += _remarks(configuration, found)
    cells = [_compared(entry["predicted"][name], measured.get(name)) for name in _COLUMNS]
    for name in measured:
        errors[name].append(_error_percent(entry["predicted"][name], measured[name]))
    part.rows.append((configuration.name, *(cell for three in cells for cell in three)))
    if forecast.above_bytes or forecast.below_bytes:
        below, above = -forecast.below_bytes / MIB, forecast.above_bytes / MIB
        part.notes.append(f"{configuration.name}: cuDNN may add {below:+.0f} to {above:+.0f} MiB.")


def _remarks(configuration: Configuration, found: device.Measured) -> Iterator[str]:
    if found.num_alloc_retries:
        yield f"{configuration.name}: the cache was emptied {found.num_alloc_retries} times."
    if found.num_skipped_steps:
        yield f"{configuration.name}: {found.num_skipped_steps} steps overflowed first."


def _peaks(check: Check, forecast: Predicted) -> dict[str, int]:
    reserved = forecast.reserved_bytes
    values = (forecast.allocated_bytes, reserved, reserved + check.context_bytes)
    return dict(zip(_COLUMNS, values, strict=True))


def _compared(expected: int, found: int | None) -> tuple[str, str, str]:
    if found is None:
        return _mib(expected), _NONE, _NONE
    return _mib(expected), _mib(found), f"{_error_percent(expected, found):+.2f}"


def _error_percent(expected: int, found: int) -> float:
    return 100 * (expected / found - 1)


def recorded_history(check: Check, part: Part) -> None:
    """(d) Replays what the allocator recorded, and compares it with what was traced."""
    part.header = ("run", "compared", "equal", "first difference")
    settings = allocator_settings_of()
    chosen = configurations(SMALL_BYTES, check.architecture)
    for configuration in (chosen[2], chosen[16], chosen[20])[: check.limit]:
        events = predicted(configuration, check.architecture).events
        if not check.is_here:
            count = sum(event.num_bytes > 0 for event in events)
            part.rows.append((configuration.name, f"{count:,} allocations traced", _NONE, _NONE))
            continue
        steps, samples, end_bytes = device.history(configuration)
        found = replay(steps, samples=samples, settings=settings)
        compared = f"simulated: {found.num_events:,} events, {found.num_samples:,} statistics"
        difference = found.difference
        if difference is None and found.statistics.allocated_bytes != end_bytes:
            simulated = found.statistics.allocated_bytes
            difference = f"at the end {end_bytes:,} B in blocks, simulated {simulated:,} B"
        part.rows.append((configuration.name, compared, *_verdict(difference)))
        agreed = agreement(events, steps)
        compared = f"traced: {agreed.num_equal:,} of {agreed.num_recorded:,} allocations in order"
        part.rows.append((configuration.name, compared, *_verdict(agreed.difference)))
        part.figures[configuration.name] = {
            "simulated": difference,
            "traced": agreed.difference,
            "num_events": found.num_events,
        }


def _verdict(difference: str | None) -> tuple[str, str]:
    return ("yes", "none") if difference is None else ("no", difference)


def boundary(check: Check, part: Part) -> None:
    """(e) The largest micro-batch within a fraction of the memory."""
    part.header = ("run", "limit MiB", "largest predicted", "largest measured", "probes that agree")
    fraction = min(0.5, _BOUNDARY_BYTES / check.total_bytes)
    for configuration in boundary_runs(check.architecture)[: check.limit]:
        if check.is_late():
            part.notes.append("The rest was left out: the time was over.")
            break
        _bounded(check, part, configuration, fraction)


def _bounded(check: Check, part: Part, configuration: Configuration, fraction: float) -> None:
    @functools.cache
    def expected(batch_size: int) -> bool:
        return predicted_to_fit(
            configuration.with_batch(batch_size),
            check.architecture,
            total_bytes=check.total_bytes,
            fraction=fraction,
        )

    most = largest_batch(expected)
    part.figures[configuration.name] = {"predicted": most}
    found, agreed = _NONE, _NONE
    if check.is_here:
        probes = _probed(configuration, fraction, 2 * most + 2)
        found = str(max((size for size, held in probes.items() if held), default=0))
        matches = [expected(size) == held for size, held in probes.items()]
        agreed = f"{sum(matches)} of {len(matches)}"
        part.figures[configuration.name]["measured"] = found
    limit = _mib(int(fraction * check.total_bytes))
    part.rows.append((configuration.name, limit, str(most), found, agreed))


def _probed(configuration: Configuration, fraction: float, above: int) -> dict[int, bool]:
    """Which batches of a bisection up to `above` really ran."""
    probes: dict[int, bool] = {}

    def holds(batch_size: int) -> bool:
        probes[batch_size] = device.fits(configuration.with_batch(batch_size))
        return probes[batch_size]

    torch.cuda.set_per_process_memory_fraction(fraction)
    try:
        largest(holds, 0, above)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return probes


PARTS: tuple[tuple[str, Callable[[Check, Part], None]], ...] = (
    ("Context", context),
    ("Workspaces", workspaces),
    ("Runs", runs),
    ("Recorded history", recorded_history),
    ("Largest micro-batch", boundary),
)


def line_of(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.1f}"
