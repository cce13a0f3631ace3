"""How fast and how exact event programs of the language model judge memory.

    python benchmarks/memory_program.py [--num-checks N] [--seed N] [--output FILE]

For each structure: the traces that its program takes, the time for a million (micro-batch, length,
learning-rate) points, also with each block rounded to 512 B, and the largest difference from direct
traces of points drawn at random. Processor times of all threads; times are compared side by side.
"""

from __future__ import annotations

import argparse
import functools
import platform
import time
from pathlib import Path

import numpy as np
import torch

from objectives.language_model import LanguageModel
from search.memory.program import Box, EventProgram, Point
from search.memory.program_fit import fit_program
from search.memory.trace import trace

_RESULTS = Path(__file__).parent / "results"
_NUM_POINTS = 1_000_000
_NUM_ROUNDED = 100_000
_BLOCK_BYTES = 512
_BOX = Box(micro_batch_sizes=range(2, 129), lengths=range(16, 2049))
_WAITING = Box(micro_batch_sizes=range(2, 129), lengths=range(16, 2049), num_waiting=range(1, 31))
_LARGE = {"width": 768, "depth": 12, "heads": 12}
_STRUCTURES = (
    (_BOX, {"width": 64, "depth": 2}),
    (_BOX, {"width": 64, "depth": 2, "precision": "bf16-mixed"}),
    (_WAITING, {"width": 64, "depth": 2, "dropout": 0.1, "activation_checkpointing": True}),
    (_BOX, {**_LARGE, "precision": "bf16-mixed"}),
)


def main() -> None:
    """Measures every structure and writes the table."""
    arguments = _arguments()
    torch.set_num_threads(1)
    objective = LanguageModel(held_out_tokens=2_000)
    generator = np.random.default_rng(arguments.seed)
    trace(objective, _params(_BOX, {}, Point(2, 16)))  # torch's own first-time costs
    rows = [
        _row(objective, box, params, generator, arguments.num_checks) for box, params in _STRUCTURES
    ]
    text = "\n".join([*_heading(arguments), *rows, ""])
    print(text)
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(text, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-checks", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=_RESULTS / "memory_program.md")
    return parser.parse_args()


def _heading(arguments: argparse.Namespace) -> list[str]:
    columns = (
        "structure", "traces", "a trace, ms", "events", "sums left", "a million points, s",
        "points a second", "rounded to 512 B, points a second", "checks", "largest difference, B",
    )  # fmt: skip
    setting = (
        f"`python benchmarks/memory_program.py` on {platform.machine()}, Python "
        f"{platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}; "
        f"{arguments.num_checks} checks a structure. Times are of the processor, all threads added."
    )
    held_to = (
        "Held to: a million (micro-batch, length, learning-rate) points in at most 2 s on 2 cores, "
        "within 0.1 % of direct traces; 1,000,000 points a second so and 2,000 with rounded blocks "
        "on one core. Points are drawn from micro-batches of 2 to 128 samples, lengths of 16 to "
        "2,048 and, where micro-batches are accumulated, 3 to 32 of them."
    )
    head = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return ["# Event programs of the language model", "", setting, "", held_to, "", *head]


def _row(objective, box, params, generator, num_checks) -> str:  # noqa: ANN001
    points: list[Point] = []
    traced = functools.partial(_traced, objective, box, params)

    def trace_at(point: Point):  # noqa: ANN202
        points.append(point)
        return traced(point)

    fit_seconds, program = _seconds(lambda: fit_program(trace_at, box))
    if not isinstance(program, EventProgram):
        return f"| {_described(params)} | none: {program.reason} |"
    drawn = _drawn(box, generator)
    seconds, _ = _seconds(lambda: program.peak_bytes(drawn))
    rounded_seconds, _ = _seconds(
        lambda: program.rounded_peak_bytes(drawn[:_NUM_ROUNDED], unit_bytes=_BLOCK_BYTES)
    )
    differences = [_difference(program, traced, row) for row in drawn[:num_checks]]
    cells = (
        _described(params),
        len(points),
        f"{1e3 * fit_seconds / len(points):.0f}",
        len(program.steps),
        program.num_sums,
        f"{seconds:.2f}",
        f"{_NUM_POINTS / seconds:,.0f}",
        f"{_NUM_ROUNDED / rounded_seconds:,.0f}",
        len(differences),
        max(differences),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _seconds(act):  # noqa: ANN001, ANN202
    before = time.process_time()
    result = act()
    return time.process_time() - before, result


def _drawn(box: Box, generator: np.random.Generator) -> np.ndarray:
    """A million points, each with a learning rate, which changes no memory and is left out."""
    columns = [generator.choice(np.array(axis), _NUM_POINTS) for axis in box.axes]
    return np.stack(columns, axis=1)


def _difference(program: EventProgram, traced, row) -> int:  # noqa: ANN001
    direct = traced(Point(*row.tolist()))
    return abs(int(program.peak_bytes(row[None])[0]) - direct.peak_bytes)


def _traced(objective, box, params, point):  # noqa: ANN001, ANN202
    return trace(objective, _params(box, params, point))


def _params(box: Box, params, point: Point):  # noqa: ANN001, ANN202
    num_micro_batches = 2 + point.num_waiting if box.num_waiting != range(1) else 1
    return {
        **params,
        "micro_batch_size": point.micro_batch_size,
        "batch_size": point.micro_batch_size * num_micro_batches,
        "sequence_length": point.length,
    }


def _described(params) -> str:  # noqa: ANN001
    return ", ".join(f"{name} {value}" for name, value in params.items())


if __name__ == "__main__":
    main()
