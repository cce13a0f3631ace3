"""Predicted against measured peak memory of trials of two processes, joined by gloo on this CPU.

    python -m benchmarks.memory_ranks [--output FILE]

Predicted is what a gate asks for one process; measured is the larger of what two warm processes
used, prepared as the ranks of a sweep's trial are, over three optimizer steps and an evaluation. In
the third step all memory of a step has been touched.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.measured_run import peak_bytes
from benchmarks.objectives_measured import multilayer_perceptron
from objectives.language_model import LanguageModel
from search.memory.device import device_here
from search.memory.machine import CpuMemory
from search.memory.measurement import overhead_bytes, prepare_process
from search.memory.prediction import predict
from search.memory.process import note_what_is_held
from search.objective import Objective
from search.results import Params
from search.trials.rank import train_a_little_together

_MIB = 2**20
_NUM_STEPS = 3
_RESULTS = Path(__file__).parent / "results" / "memory_ranks.md"
_OBJECTIVES: Mapping[str, Callable[[], Objective]] = {
    "language model": partial(LanguageModel, held_out_tokens=8_192),
    "multilayer perceptron": multilayer_perceptron,
}
_SIZES: Mapping[str, Params] = {
    "language model": {
        "width": 256,
        "depth": 3,
        "heads": 4,
        "sequence_length": 64,
        "batch_size": 8,
    },
    "multilayer perceptron": {"width": 1024, "depth": 6, "batch_size": 64},
}
_WAYS: Mapping[str, Params] = {
    "data parallel": {},
    "data parallel, gradients apart from buckets": {"gradient_as_bucket_view": False},
    "data parallel, accumulated": {"micro_batch_size": 2},
    "sharded": {"sharding": "full"},
    "sharded, accumulated": {"sharding": "full", "micro_batch_size": 2},
    "sharded, checkpointed": {"sharding": "full", "activation_checkpointing": True},
    "sharded, SGD": {"sharding": "full", "optimizer": "sgd"},
}


def _rows() -> Iterator[tuple[str, str, Params]]:
    for kind, sizes in _SIZES.items():
        for way, chosen in _WAYS.items():
            yield kind, way, {**sizes, "world_size": 2, **chosen}


def _measured() -> list[int]:
    """The larger peak of two processes for each row, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(  # noqa: S603 - our own file
                [sys.executable, "-W", "ignore", __file__, "--rank", str(rank), "--store", folder],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
            )
            for rank in range(2)
        ]
        answers = [json.loads(rank.communicate()[0].splitlines()[-1]) for rank in ranks]
    return [max(peaks) for peaks in zip(*answers, strict=True)]


def _measure_as(rank: int, store: Path) -> None:
    torch.set_num_threads(1)
    device = device_here()
    objectives = {kind: new() for kind, new in _OBJECTIVES.items()}
    prepare_process()
    address = f"file://{store / 'store'}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    train_a_little_together(device, 2)
    note_what_is_held()
    peaks = []
    for kind, way, params in _rows():
        peaks.append(peak_bytes(objectives[kind], params, device, num_steps=_NUM_STEPS))
        distributed.barrier()
        print(f"rank {rank}, {kind}, {way}: {peaks[-1]} bytes", file=sys.stderr, flush=True)
    print(json.dumps(peaks))
    distributed.destroy_process_group()


def _report() -> str:
    machine = CpuMemory(overhead_bytes=overhead_bytes(device_here()))
    objectives = {kind: new() for kind, new in _OBJECTIVES.items()}
    lines, errors = [], []
    for (kind, way, params), measured_bytes in zip(_rows(), _measured(), strict=True):
        predicted = predict(objectives[kind], params, machine)
        errors.append(100 * (predicted.expected_bytes / measured_bytes - 1))
        inside = predicted.low_bytes <= measured_bytes <= predicted.high_bytes
        lines.append(
            f"| {kind}, {way} | {predicted.expected_bytes / _MIB:.1f} "
            f"| {measured_bytes / _MIB:.1f} | {errors[-1]:+.2f} | {'yes' if inside else 'no'} |"
        )
    summary = (
        f"{len(errors)} configurations: errors from {min(errors):+.2f} % to {max(errors):+.2f} %."
    )
    head = "| configuration | predicted MiB | measured MiB | error % | inside |"
    title = "# Predicted and measured peak memory of one of two processes"
    return "\n".join(
        [title, "", _setting(), "", summary, "", head, "|---|---|---|---|---|", *lines]
    )


def _setting() -> str:
    return (
        f"`python -m benchmarks.memory_ranks` on {device_here().name} "
        f"({torch.backends.cpu.get_cpu_capability()}), {os.cpu_count()} cores, one thread a "
        f"process, gloo, Linux {platform.release()}, {' '.join(platform.libc_ver())}, "
        f"Python {platform.python_version()}, torch {torch.__version__}."
    )


def main() -> None:
    """Measures as one rank, or writes the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=_RESULTS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        _measure_as(arguments.rank, arguments.store)
        return
    report = _report()
    print(report)
    arguments.output.write_text(report + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
