"""Predicted against measured peak memory of the language model on this CPU.

    python benchmarks/memory_cpu.py [--threads N] [--num-configs N] [--seed N] [--output FILE]

Each configuration is drawn at random; predicted is its traced peak plus the machine's one constant,
measured is what a warm process, prepared and released as a sweep's worker is, really used. Writes a
table and a summary; `--speed` measures what keeping the resident memory tight costs instead.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from objectives.language_model import LanguageModel
from search.memory.device import device_here
from search.memory.measurement import measure_peak, overhead_bytes, prepare_process, release_memory
from search.memory.prediction import predict
from search.memory.process import keep_resident_memory_tight
from search.training import TrainingRun

_MIB = 2**20
_LEAST_BYTES, _MOST_BYTES = 100 * 10**6, 2 * 10**9
_RESULTS = Path(__file__).parent / "results"
_SPACE = {
    "width": (64, 128, 192, 256, 384, 512),
    "depth": (1, 2, 4, 6),
    "heads": (2, 4, 8),
    "dropout": (0.0, 0.0, 0.1),
    "sequence_length": (64, 96, 128, 256, 384, 512),
    "precision": ("32-true", "bf16-mixed"),
    "activation_checkpointing": (False, True),
    "optimizer": ("adamw", "adamw", "sgd"),
}
_MOST_FLOPS = 2.5e11
"""Of one step, so that the whole table takes minutes."""
_SPEED_CONFIGS = (
    {"width": 64, "depth": 2, "batch_size": 8, "sequence_length": 64},
    {"width": 64, "depth": 2, "batch_size": 32, "sequence_length": 128},
    {"width": 128, "depth": 4, "batch_size": 16, "sequence_length": 256},
    {"width": 256, "depth": 4, "batch_size": 16, "sequence_length": 256},
)


def main() -> None:
    """Runs what was asked for."""
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.time_steps:
        _time_steps(tight=arguments.time_steps == "tight")
    elif arguments.speed:
        _write(_speed_report(), arguments.output or _RESULTS / "memory_cpu_speed.md")
    else:
        _write(_accuracy_report(arguments), arguments.output or _RESULTS / "memory_cpu.md")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--num-configs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--time-steps", choices=("tight", "default"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _write(report: str, file: Path) -> None:
    print(report)
    file.parent.mkdir(exist_ok=True)
    file.write_text(report + "\n", encoding="utf-8")


def _accuracy_report(arguments: argparse.Namespace) -> str:
    device, objective = device_here(), LanguageModel()
    overhead = overhead_bytes(device)
    drawn = _configurations(arguments, objective, overhead)
    prepare_process()
    rows, errors = [], []
    for params, predicted in drawn:
        measured = _measured_bytes(objective, params, device)
        errors.append(100 * (predicted.expected_bytes / measured - 1))
        inside = predicted.low_bytes <= measured <= predicted.high_bytes
        rows.append(
            f"| {_described(params)} | {predicted.expected_bytes / _MIB:.1f} "
            f"| {measured / _MIB:.1f} | {errors[-1]:+.2f} "
            f"| {predicted.low_bytes / _MIB:.1f} to {predicted.high_bytes / _MIB:.1f} "
            f"| {'yes' if inside else 'no'} |"
        )
        print(rows[-1], file=sys.stderr, flush=True)
    sizes = [abs(error) for error in errors]
    summary = (
        f"{len(rows)} configurations: median error {statistics.median(sizes):.2f} %, "
        f"largest {max(sizes):.2f} %; predicted too low by up to {max(0, -min(errors)):.2f} %, "
        f"too high by up to {max(0, *errors):.2f} %. "
        f"The machine's constant: {overhead / _MIB:.2f} MiB."
    )
    figures = "predicted MiB | measured MiB | error % | interval MiB | inside"
    head = [f"| {_columns(drawn[0][0])} | {figures} |"]
    head.append("|---|---|---|---|---|---|")
    title = "# Predicted and measured peak memory on a CPU"
    return "\n".join([title, "", _setting(), "", summary, "", *head, *rows])


def _setting() -> str:
    command = " ".join(["python", "benchmarks/memory_cpu.py", *sys.argv[1:]])
    return (
        f"`{command}` on {device_here().name}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} thread(s), Linux {platform.release()}, "
        f"{' '.join(platform.libc_ver())}, Python {platform.python_version()}, "
        f"torch {torch.__version__}."
    )


def _configurations(arguments, objective, overhead):  # noqa: ANN001, ANN202
    """Random ones with a predicted peak from 100 MB to 2 GB, half bf16, half checkpointed.

    A peak is drawn first, evenly on a log scale; the batch size is what comes nearest to it.
    """
    generator, drawn = random.Random(arguments.seed), []  # noqa: S311 - no secret
    while len(drawn) < arguments.num_configs:
        params = {name: generator.choice(values) for name, values in _SPACE.items()}
        params["precision"] = _SPACE["precision"][len(drawn) % 2]
        params["activation_checkpointing"] = bool(len(drawn) // 2 % 2)
        wanted = math.exp(generator.uniform(math.log(_LEAST_BYTES), math.log(_MOST_BYTES)))
        two, four = (
            predict(objective, {**params, "batch_size": size}, overhead_bytes=overhead)
            for size in (2, 4)
        )
        for_one = (four.expected_bytes - two.expected_bytes) / 2
        params["batch_size"] = max(1, round(2 + (wanted - two.expected_bytes) / for_one))
        tokens = params["batch_size"] * params["sequence_length"]
        if 72 * params["depth"] * params["width"] ** 2 * tokens > _MOST_FLOPS:
            continue
        predicted = predict(objective, params, overhead_bytes=overhead)
        if _LEAST_BYTES <= predicted.expected_bytes <= _MOST_BYTES:
            drawn.append((params, predicted))
    return drawn


def _measured_bytes(objective, params, device) -> int:  # noqa: ANN001
    num_tokens = 2 * params["batch_size"] * params["sequence_length"]
    with measure_peak(device) as peak:
        run = TrainingRun(objective, params, num_tokens=num_tokens, device=device.torch_device)
        while not run.done:
            run.step()
        run.evaluate()
        del run
    release_memory(device)
    return peak.num_bytes


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
