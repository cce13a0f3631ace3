"""Others' estimates beside ours, on the same published rows.

    python -m benchmarks.peers --data DIR --python INTERPRETER [--answers DIR] [--output FILE]

INTERPRETER has the tools, in an environment of its own: torch 2.13.0, transformers 4.57.6, peft
0.21.2, vramcalc 0.1.2, torch-kitsune 0.7.0, vram-check 0.1.1, accelerate 1.15.0, and DeepSpeed
0.19.8 without its dependencies but for pydantic, einops, hjson, msgpack, ninja and py-cpuinfo.
MemTracker is torch's own. Every answer, ours too, is kept in the folder `--answers`, where a second
run goes on; after a change of the code begin with an empty one.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import published_gpumemnet, published_models
from search.errors import InputError
from search.memory.contexts import published_context
from search.units import MIB

Row = Mapping[str, Any]
Answer = int | str
"""Bytes, or why there are none."""

OURS = "paretune"
PEERS = ("vramcalc", "torch-kitsune", "vram-check", "accelerate", "DeepSpeed", "MemTracker")
_GROUPS = ("vramcalc", "litgpt-thunder")
_SAMPLED = ("gpumemnet_transformer", "gpumemnet_mlp")
_UNDER_PERCENT = -2.0
_RESULTS = Path(__file__).parent / "results"
_NO_ANSWER = "no answer in the time given"
_NOTES = {
    OURS: "The step itself, traced for the GPU of the row.",
    "vramcalc": "Formulas; its authors say they were adjusted on the 16 rows of its own table.",
    "torch-kitsune": "Parameters, gradients, moments, outputs of layers, 15 % on top. It feeds "
    "floating numbers, which models of tokens refuse: it then falls back to formulas.",
    "vram-check": "States, and activations as twice the weights for each sample.",
    "accelerate": "`estimate-memory`, its column for training with Adam. Knows no batch.",
    "DeepSpeed": "ZeRO-2 states on one GPU. Knows neither batch nor precision: 20 B a parameter.",
    "MemTracker": "Two steps on fake tensors of the CPU, since fake CUDA tensors need a GPU. "
    "There attention with dropout keeps T x T scores. It leaves out workspaces and rounding to "
    "blocks.",
}


def rows_of(folder: Path, *, sample: int, seed: int) -> list[Row]:
    """Whole models with the allocated peak, then as many sampled of each file of GPUMemNet.

    Raises:
        InputError: where a file is missing.
    """
    published = _read(folder / "published.json")["rows"]
    found = [row for row in published if row["group"] in _GROUPS]
    found = [row for row in found if published_models.covers(row)]
    for name in _SAMPLED:
        rows = [row for row in _read(folder / f"{name}.json") if _counts(row)]
        found += random.Random(seed).sample(rows, min(sample, len(rows)))  # noqa: S311 - no secret
    return found


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{file}: cannot be read ({error.strerror}; --data names its folder)"
        raise InputError(msg) from None


def _counts(row: Row) -> bool:
    marked = row.get("suspect_extra_load") or row.get("targeted_page")
    return row.get("status", "SUCCESSFUL") == "SUCCESSFUL" and not marked


def is_whole_device(row: Row) -> bool:
    """Whether its figure is the whole device's, not torch's allocated bytes."""
    return "max_gpu_mem_mib" in row


def measured_bytes(row: Row) -> int:
    """What was measured: of whole devices in MiB, else in GB of 1e9 bytes, as the scripts print."""
    if is_whole_device(row):
        return int(row["max_gpu_mem_mib"] * MIB)
    return round(row["value"] * 1e9)


def our_answer(row: Row) -> Answer:
    """Our prediction of what the row measured."""
    if is_whole_device(row):
        return published_gpumemnet.forecast(row).expected_bytes
    return published_models.predicted_allocated_bytes(row)


def peer_answers(
    name: str, rows: Sequence[Row], python: str, *, seconds: float
) -> Iterator[tuple[str, Answer]]:
    """A tool's answers by row, as they come, until the time is over."""
    command = [python, "-W", "ignore", "-m", "benchmarks.peer_estimates", name]
    with subprocess.Popen(  # noqa: S603 - the interpreter the user named
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[1],
    ) as process:
        alarm = threading.Timer(seconds, process.kill)
        alarm.start()
        asked, answers = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        try:
            asked.writelines(json.dumps(row) + "\n" for row in rows)
            asked.close()
            yield from map(parsed, answers)
        except BrokenPipeError:
            return
        finally:
            alarm.cancel()
            process.kill()


def parsed(line: str) -> tuple[str, Answer]:
    """A line of `peer_estimates`, or of a file of answers: the row's id and the answer."""
    entry = json.loads(line)
    return entry["id"], entry["bytes"] if "bytes" in entry else entry["reason"]


class Answers:
    """The answers of one tool, kept in a file as soon as they come."""

    def __init__(self, file: Path) -> None:
        """Reads those that are there."""
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self._known = dict(map(parsed, lines))

    def missing(self, rows: Iterable[Row]) -> list[Row]:
        """Rows without an answer."""
        return [row for row in rows if row["id"] not in self._known]

    def add(self, row_id: str, answer: Answer) -> None:
        """Keeps one."""
        self._known[row_id] = answer
        kept = {"id": row_id, "reason" if isinstance(answer, str) else "bytes": answer}
        with self._file.open("a", encoding="utf-8") as stream:
            print(json.dumps(kept), file=stream)

    def of(self, row: Row) -> Answer:
        """The answer for a row."""
        return self._known.get(row["id"], _NO_ANSWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How far a tool was off on the rows it has an answer for."""

    num_rows: int
    median_percent: float
    largest_percent: float
    under_share: float

    def __str__(self) -> str:
        """As cells of a table."""
        if not self.num_rows:
            return "0 | - | - | -"
        under = f"{100 * self.under_share:.0f}"
        return (
            f"{self.num_rows} | {self.median_percent:.2f} | {self.largest_percent:+.2f} | {under}"
        )


def figures(errors: Sequence[float]) -> Figures:
    """Of errors in percent; under are those below by more than 2 %."""
    if not errors:
        return Figures(num_rows=0, median_percent=0, largest_percent=0, under_share=0)
    return Figures(
        num_rows=len(errors),
        median_percent=statistics.median(map(abs, errors)),
        largest_percent=max(errors, key=abs),
        under_share=sum(error < _UNDER_PERCENT for error in errors) / len(errors),
    )


def error_percent(row: Row, answer: Answer, *, is_ours: bool = False) -> float | None:
    """How far an answer lies above the measurement; None where there is none.

    Others count no CUDA context: on whole devices they are given the same as we take.
    """
    if isinstance(answer, str):
        return None
    if is_whole_device(row) and not is_ours:
        answer += published_context(published_gpumemnet.ARCHITECTURE).expected_bytes
    return 100 * (answer / measured_bytes(row) - 1)


def report(rows: Sequence[Row], answers: Mapping[str, Answers], setting: str) -> str:
    """The whole file: figures by tool, errors by row, and why there are none."""
    errors = {
        name: {row["id"]: error_percent(row, known.of(row), is_ours=name == OURS) for row in rows}
        for name, known in answers.items()
    }
    lines = ["# Others' estimates beside ours", "", setting, ""]
    for title, chosen in _kinds(rows):
        lines += [f"## {title}", "", *_figures_table(chosen, errors), ""]
    lines += ["## What each is", "", *(f"- {name}: {_NOTES[name]}" for name in answers), ""]
    lines += ["## Errors by row, %", "", *_rows_table(rows, errors), ""]
    lines += ["## Why there is no answer", "", *_reasons(rows, answers)]
    return "\n".join(lines).rstrip() + "\n"


def _kinds(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    yield "Allocated by whole models", [row for row in rows if not is_whole_device(row)]
    yield "Whole device, GPUMemNet", [row for row in rows if is_whole_device(row)]


def _figures_table(
    rows: Sequence[Row], errors: Mapping[str, Mapping[str, float | None]]
) -> Iterator[str]:
    yield (
        f"| tool | rows of {len(rows)} | median error % | largest % | under by over 2 %, % of rows "
        "| ours on the same rows: median % | largest % |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, found in errors.items():
        known = [row["id"] for row in rows if found[row["id"]] is not None]
        theirs = figures([cast("float", found[row_id]) for row_id in known])
        paired = (errors[OURS][row_id] for row_id in known)
        ours = figures([error for error in paired if error is not None])
        same = f"{ours.median_percent:.2f} | {ours.largest_percent:+.2f}" if known else "- | -"
        yield f"| {name} | {theirs} | {same} |"


def _rows_table(
    rows: Sequence[Row], errors: Mapping[str, Mapping[str, float | None]]
) -> Iterator[str]:
    yield f"| row | measured GB | {' | '.join(errors)} |"
    yield "|---" * (2 + len(errors)) + "|"
    for row in rows:
        cells = (errors[name][row["id"]] for name in errors)
        shown = " | ".join("-" if cell is None else f"{cell:+.2f}" for cell in cells)
        yield f"| {row['id']} | {measured_bytes(row) / 1e9:.2f} | {shown} |"


def _reasons(rows: Sequence[Row], answers: Mapping[str, Answers]) -> Iterator[str]:
    for name, known in answers.items():
        found: dict[str, list[str]] = {}
        for row in rows:
            if isinstance(answer := known.of(row), str):
                found.setdefault(answer, []).append(row["id"])
        for reason, ids in found.items():
            yield f"- {name}, {len(ids)} rows ({ids[0]}...): {reason}"


def main() -> None:
    """Asks each tool, and writes the table."""
    options = _options()
    try:
        rows = rows_of(options.data, sample=options.sample // len(_SAMPLED), seed=options.seed)
    except InputError as error:
        sys.exit(str(error))
    folder = options.answers or Path(tempfile.mkdtemp(prefix="peers-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"answers are kept in {folder}", file=sys.stderr)
    answers = {name: Answers(folder / f"{name}.jsonl") for name in (OURS, *PEERS)}
    for name, known in answers.items():
        missing = known.missing(rows)
        if missing:
            for row_id, answer in _asked(name, missing, options):
                known.add(row_id, answer)
                print(name, row_id, answer, file=sys.stderr, flush=True)
    text = report(rows, answers, _setting(options, len(rows)))
    print(text)
    options.output.write_text(text, encoding="utf-8")


def _asked(
    name: str, rows: Sequence[Row], options: argparse.Namespace
) -> Iterable[tuple[str, Answer]]:
    if name == OURS:
        return ((row["id"], our_answer(row)) for row in rows)
    return peer_answers(name, rows, options.python, seconds=options.seconds)


def _setting(options: argparse.Namespace, num_rows: int) -> str:
    today = dt.datetime.now(tz=dt.UTC).date()
    return (
        f"`python -m benchmarks.peers --seed {options.seed} --sample {options.sample}`, {today}: "
        f"{num_rows} published rows. The tools ran on a CPU without a GPU, under Python "
        f"{platform.python_version()}, in the versions that `benchmarks/peers.py` names."
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of published.json")
    parser.add_argument("--python", default=sys.executable, help="the interpreter with the tools")
    parser.add_argument("--answers", type=Path, help="folder of answers; default: a new one")
    parser.add_argument("--output", type=Path, default=_RESULTS / "peers.md")
    parser.add_argument("--sample", type=int, default=20, help="rows of GPUMemNet")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="for each tool")
    return parser.parse_args()


if __name__ == "__main__":
    main()
