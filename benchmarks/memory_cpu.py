"""Predicted against measured peak memory on this CPU, and what tight resident memory costs.

    python -m benchmarks.memory_cpu [--threads N] [--num-configs N] [--seed N] [--output FILE]

Configurations of four kinds of models are drawn at random (`configurations_measured.py`).
Predicted is the traced peak plus the machine's one constant, measured is what a warm process,
prepared and released as a sweep's worker is, really used. Writes a table and a summary. `--levers`
measures each value of each dimension that changes how a step uses memory instead; `--speed` what
keeping the resident memory tight costs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.configurations_measured import (
    NUM_STEPS,
    OBJECTIVES,
    Configuration,
    configurations,
    levers,
)
from benchmarks.measured_run import peak_bytes
from objectives.language_model import LanguageModel
from search.memory.device import device_here
from search.memory.machine import CpuMemory
from search.memory.measurement import overhead_bytes, prepare_process
from search.memory.prediction import predict
from search.memory.process import keep_resident_memory_tight
from search.training import TrainingRun

_MIB = 2**20
_NUM_CONFIGURATIONS = 60
_RESULTS = Path(__file__).parent / "results"
_SPEED_CONFIGS = (
    {"width": 64, "depth": 2, "batch_size": 8, "sequence_length": 64},
    {"width": 64, "depth": 2, "batch_size": 32, "sequence_length": 128},
    {"width": 128, "depth": 4, "batch_size": 16, "sequence_length": 256},
    {"width": 256, "depth": 4, "batch_size": 16, "sequence_length": 256},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One configuration: what was predicted for it, and what it used."""

    name: str
    kind: str
    precision: str
    predicted_bytes: int
    low_bytes: int
    high_bytes: int
    measured_bytes: int

    @property
    def error_percent(self) -> float:
        """How far the prediction lies above the measurement."""
        return 100 * (self.predicted_bytes / self.measured_bytes - 1)

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the predicted interval."""
        return self.low_bytes <= self.measured_bytes <= self.high_bytes


def measure_rows(limit: int | None = None, seed: int = 0, *, threads: int = 1) -> list[Row]:
    """Draws, predicts and measures configurations: 60, or the first `limit` of them.

    They are measured one after another in a process of their own, whatever this one holds.
    """
    return list(_measured_rows(configurations(limit or _NUM_CONFIGURATIONS, seed), threads))


def _measured_rows(chosen: Iterable[Configuration], threads: int) -> Iterator[Row]:
    overhead = overhead_bytes(device_here())
    with _measuring(threads) as measured_bytes:
        for configuration in chosen:
            objective = OBJECTIVES[configuration.kind]()
            predicted = predict(objective, configuration.params, CpuMemory(overhead_bytes=overhead))
            yield Row(
                name=configuration.name,
                kind=configuration.kind,
                precision=str(configuration.params["precision"]),
                predicted_bytes=predicted.expected_bytes,
                low_bytes=predicted.low_bytes,
                high_bytes=predicted.high_bytes,
                measured_bytes=measured_bytes(configuration),
            )


@contextmanager
def _measuring(threads: int) -> Iterator[Callable[[Configuration], int]]:
    """A process that tells the peak of one configuration after another."""
    command = [sys.executable, "-W", "ignore", __file__, "--measure", "--threads", str(threads)]
    with subprocess.Popen(  # noqa: S603 - our own file
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        asked, answers = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)

        def measured_bytes(configuration: Configuration) -> int:
            print(json.dumps([configuration.kind, configuration.params]), file=asked, flush=True)
            return int(answers.readline())

        try:
            yield measured_bytes
        finally:
            asked.close()


def _measure_what_is_asked() -> None:
    """Reads configurations from the standard input, writes the peak of each to the output."""
    device = device_here()
    objectives = {kind: new() for kind, new in OBJECTIVES.items()}
    prepare_process()
    for line in sys.stdin:
        kind, params = json.loads(line)
        num_bytes = peak_bytes(objectives[kind], params, device, num_steps=NUM_STEPS)
        print(num_bytes, flush=True)


def main() -> None:
    """Runs what was asked for."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.measure:
        _measure_what_is_asked()
    elif arguments.time_steps:
        _time_steps(tight=arguments.time_steps == "tight")
    elif arguments.speed:
        _write(_speed_report(), arguments.output or _RESULTS / "memory_cpu_speed.md")
    elif arguments.levers:
        _write(_accuracy_report(levers(), 1), arguments.output or _RESULTS / "memory_levers.md")
    else:
        drawn = configurations(arguments.num_configs, arguments.seed)
        report = _accuracy_report(drawn, arguments.threads)
        _write(report, arguments.output or _RESULTS / "memory_cpu.md")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--num-configs", type=int, default=_NUM_CONFIGURATIONS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--levers", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--time-steps", choices=("tight", "default"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _write(report: str, file: Path) -> None:
    print(report)
    file.parent.mkdir(exist_ok=True)
    file.write_text(report + "\n", encoding="utf-8")


def _accuracy_report(chosen: Iterable[Configuration], threads: int) -> str:
    rows = []
    for row in _measured_rows(chosen, threads):
        rows.append(row)
        print(_line(row), file=sys.stderr, flush=True)
    constant = f"The machine's constant: {overhead_bytes(device_here()) / _MIB:.2f} MiB."
    by_group = [f"| {name} | {_figures(members)} |" for name, members in _groups(rows).items()]
    title = "# Predicted and measured peak memory on a CPU"
    head = "| what | configurations | median error % | largest % | lowest % | highest % | inside |"
    columns = "| configuration | predicted MiB | measured MiB | error % | interval MiB | inside |"
    lines = [title, "", _setting(), "", constant, "", head, "|---|---|---|---|---|---|---|"]
    lines += [f"| all | {_figures(rows)} |", *by_group, "", columns, "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_line, rows)])


def _groups(rows: list[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.kind, row.precision)):
        groups[f"{row.kind}, {row.precision}"].append(row)
    return groups


def _figures(rows: list[Row]) -> str:
    errors = [row.error_percent for row in rows]
    sizes = [abs(error) for error in errors]
    inside = sum(row.inside for row in rows)
    return (
        f"{len(rows)} | {statistics.median(sizes):.2f} | {max(sizes):.2f} "
        f"| {min(errors):+.2f} | {max(errors):+.2f} | {inside}"
    )


def _line(row: Row) -> str:
    return (
        f"| {row.name} | {row.predicted_bytes / _MIB:.1f} | {row.measured_bytes / _MIB:.1f} "
        f"| {row.error_percent:+.2f} | {row.low_bytes / _MIB:.1f} to {row.high_bytes / _MIB:.1f} "
        f"| {'yes' if row.inside else 'no'} |"
    )


def _setting() -> str:
    command = " ".join(["python -m benchmarks.memory_cpu", *sys.argv[1:]])
    return (
        f"`{command}` on {device_here().name} ({torch.backends.cpu.get_cpu_capability()}), "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} thread(s), Linux {platform.release()}, "
        f"{' '.join(platform.libc_ver())}, Python {platform.python_version()}, "
        f"torch {torch.__version__}."
    )


def _columns(params) -> str:  # noqa: ANN001
    return ", ".join(name.replace("_", " ") for name in params)


def _described(params) -> str:  # noqa: ANN001
    return " ".join(
        str(value) if not isinstance(value, bool) else ("checkpointed" if value else "plain")
        for value in params.values()
    )


def _speed_report() -> str:
    """Processor time of a step with and without the tight heap, processes taking turns."""
    times = {"tight": [], "default": []}
    for kind in ("default", "tight") * 3:
        command = [sys.executable, __file__, "--time-steps", kind, "--threads", "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        times[kind].append(json.loads(done.stdout))
    rows = [
        f"| {_columns(_SPEED_CONFIGS[0])} | default ms | tight ms | ratio |",
        "|---|---|---|---|",
    ]
    for index, params in enumerate(_SPEED_CONFIGS):
        default, tight = (min(run[index] for run in times[kind]) for kind in ("default", "tight"))
        rows.append(
            f"| {_described(params)} | {1e3 * default:.1f} | {1e3 * tight:.1f} "
            f"| {tight / default:.2f} |"
        )
    return "\n".join(["# What tight resident memory costs", "", _setting(), "", *rows])


def _time_steps(*, tight: bool) -> None:
    if tight:
        keep_resident_memory_tight()
    objective = LanguageModel()
    print(json.dumps([_best_step_seconds(objective, params) for params in _SPEED_CONFIGS]))


def _best_step_seconds(objective, params) -> float:  # noqa: ANN001
    run = TrainingRun(objective, params, num_tokens=10**9, device=torch.device("cpu"))
    times = []
    for _ in range(12):
        before = time.process_time()
        run.step()
        times.append(time.process_time() - before)
    return min(times[2:])


if __name__ == "__main__":
    main()
