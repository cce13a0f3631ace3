"""How far predicted memory lies from what was measured: here on this CPU, elsewhere on GPUs.

    python -m benchmarks.memory_accuracy [--data DIR] [--group NAME] [--limit N] [--seed S] [--json]

DIR holds published measurements; each row is rebuilt and run by its described step, on no GPU. The
group `cpu` is measured here and needs no DIR. Prints a table, or with --json the figures alone;
where everything was run, the table is also kept in `benchmarks/results/memory_accuracy.md`. With
--priors the errors of whole devices are kept as those from which a device starts that was never
measured (`search/memory/priors.py`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.accuracy_figures import figures_by_group
from benchmarks.accuracy_priors import write_priors
from benchmarks.accuracy_report import report
from benchmarks.accuracy_rows import CPU, Judged, LeftOut, Row, chosen, judged, rows_of
from search.errors import InputError

_RESULTS = Path(__file__).parent / "results" / "memory_accuracy.md"


def main() -> None:
    """Runs what was asked for."""
    options = _options()
    try:
        rows, left_out = _asked(options)
    except InputError as error:
        print(f"memory_accuracy: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    found = list(_judged(rows, options.jobs))
    if options.group in (None, CPU):
        found += _measured_here(options.limit, options.seed)
    figures = figures_by_group(found)
    if options.priors is not None:
        write_priors(options.priors, found)
    text = report(figures, found, left_out, command=_command(options))
    if options.json:
        print(json.dumps({"groups": {name: each.as_json() for name, each in figures.items()}}))
    else:
        print(text)
    whole = options.data is not None and options.group is None and options.limit is None
    file = options.output or (_RESULTS if whole and not options.json else None)
    if file is not None:
        file.write_text(text + "\n", encoding="utf-8")


def _command(options: argparse.Namespace) -> str:
    """How to get the same figures again."""
    words = ["python -m benchmarks.memory_accuracy"]
    words += ["--data DIR"] if options.data is not None else []
    words += [f"--group {options.group}"] if options.group is not None else []
    words += [f"--limit {options.limit} --seed {options.seed}"] if options.limit else []
    return " ".join(words)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory_accuracy", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="published measurements")
    parser.add_argument("--group", metavar="NAME", help="one group alone, such as gpumemnet_mlp")
    parser.add_argument("--limit", type=_positive, metavar="N", help="rows of each group")
    parser.add_argument("--seed", type=int, default=0, help="which rows a limit takes")
    parser.add_argument("--json", action="store_true", help="the figures alone, as JSON")
    parser.add_argument("--jobs", type=_positive, default=2, metavar="N", help="processes")
    parser.add_argument("--priors", type=Path, metavar="FILE", help="where to keep the errors")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to keep the table")
    return parser.parse_args()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, found {number}")  # noqa: EM102, TRY003
    return number


def _asked(options: argparse.Namespace) -> tuple[list[tuple[str, Row]], list[LeftOut]]:
    """The rows to run, and those left out with the reason."""
    if options.data is None:
        if options.group not in (None, CPU):
            msg = f"--group {options.group} needs --data DIR, the folder of its rows"
            raise InputError(msg)
        return [], []
    groups = rows_of(options.data)
    if options.group is not None and options.group not in (CPU, *groups):
        msg = f"{options.data}: no group '{options.group}' (there are {CPU}, {', '.join(groups)})"
        raise InputError(msg)
    rows, left_out = [], []
    for name, members in groups.items():
        if options.group in (None, name):
            kept, others = chosen(members, name, limit=options.limit, seed=options.seed)
            rows += [(name, row) for row in kept]
            left_out += others
    return rows, left_out


def _judged(rows: Sequence[tuple[str, Row]], jobs: int) -> Iterator[Judged]:
    """The rows beside their predictions, as they come; progress on the standard error."""
    if not rows:
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_one_thread) as pool:
        names, members = zip(*rows, strict=True)
        for number, found in enumerate(pool.map(judged, names, members), 1):
            _tell(f"{number}/{len(rows)}", found)
            yield found


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _tell(place: str, found: Judged) -> None:
    outcome = "ran out of memory" if found.ran_out else f"{found.error_percent:+.2f} %"
    print(f"{place} {found.group} {found.name}: {outcome}", file=sys.stderr, flush=True)


def _measured_here(limit: int | None, seed: int) -> list[Judged]:
    from benchmarks.memory_cpu import measure_rows

    print(f"{CPU}: predicting and measuring here", file=sys.stderr, flush=True)
    return [
        Judged(
            group=CPU,
            name=row.name,
            measured_bytes=row.measured_bytes,
            expected_bytes=row.predicted_bytes,
            low_bytes=row.predicted_bytes,
            high_bytes=row.predicted_bytes,
            kind="cpu",
        )
        for row in measure_rows(limit, seed)
    ]


if __name__ == "__main__":
    main()
