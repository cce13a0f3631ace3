"""Whether this GPU needs the memory that is predicted for it: one command, some minutes.

    python -m benchmarks.gpu_check [--output FILE] [--json]
    python -m benchmarks.gpu_check --predict-only --architecture 8.0 --memory "24 GiB"

Needs torch and NumPy alone. Measured are the context, the workspaces of cuBLAS, 25 runs, a recorded
history of the allocator against the simulated one, and the largest micro-batches. The second form
needs no GPU: it prints what would be compared. A part that fails is reported, and the others go on.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import gpu_check_device as device
from benchmarks.gpu_check_parts import PARTS, Check, Part, line_of
from search.errors import InputError
from search.memory.contexts import published_context
from search.units import GIB, parse_bytes

_RESULTS = Path(__file__).parent / "results"
_SECONDS = 270.0
_NO_GPU = "no CUDA GPU is here: run it on one, or with --predict-only --architecture 8.0"


def checked(check: Check) -> Iterator[Part]:
    """The parts one after another, each as soon as it is done."""
    for title, fill in PARTS:
        part = Part(title=title)
        try:
            fill(check, part)
        except Exception as error:  # noqa: BLE001 - reported; the other parts go on
            part.failed = True
            part.notes.append(f"This part failed: {line_of(error)}")
        yield part


def markdown(part: Part) -> str:
    """The part as a table with its notes below."""
    lines = [f"## {part.title}", ""]
    if part.rows:
        lines += [_table_row(part.header), _table_row(["---"] * len(part.header))]
        lines += [*map(_table_row, part.rows), ""]
    return "\n".join([*lines, *(f"- {note}" for note in part.notes)]).rstrip() + "\n"


def _table_row(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> int:
    """Checks what was asked for; gives the exit code, 1 where a part failed, 3 without a GPU."""
    options = _options(arguments)
    if options.hold_context:
        device.hold_context()
        return 0
    if not options.predict_only and not torch.cuda.is_available():
        print(_NO_GPU, file=sys.stderr)
        return 3
    check = _check(options)
    parts = []
    heading = f"# Predicted and measured memory of a GPU\n\n{_setting(check)}\n"
    texts = [heading]
    say = functools.partial(print, file=sys.stderr if options.json else sys.stdout, flush=True)
    say(heading)
    for part in checked(check):
        parts.append(part)
        texts.append(markdown(part))
        say(texts[-1])
    if options.json:
        print(json.dumps({part.title: {**part.figures, "notes": part.notes} for part in parts}))
    if (file := options.output or _default_file(check)) is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(texts), encoding="utf-8")
    return int(any(part.failed for part in parts))


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/gpu_check_GPU.md")
    parser.add_argument("--json", action="store_true", help="figures on standard output")
    parser.add_argument("--predict-only", action="store_true", help="without a GPU")
    parser.add_argument("--architecture", type=_architecture, default=(8, 0), help="such as 8.0")
    parser.add_argument("--memory", type=_memory, default=24 * GIB, help='such as "24 GiB"')
    parser.add_argument("--limit", type=int, default=99, help="runs in each part, at most")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="begin nothing after them")
    parser.add_argument(device.HOLD_CONTEXT, action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _architecture(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\.(\d)", text)
    if match is None:
        msg = f"must be a compute capability such as 8.0, found {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(match[1]), int(match[2])


def _memory(text: str) -> int:
    try:
        return parse_bytes(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _check(options: argparse.Namespace) -> Check:
    is_here = not options.predict_only
    architecture = device.architecture_here() if is_here else options.architecture
    memory = torch.cuda.get_device_properties().total_memory if is_here else options.memory
    return Check(
        architecture=architecture,
        total_bytes=memory,
        is_here=is_here,
        limit=options.limit,
        begun_at=time.monotonic(),
        seconds=options.seconds,
        context_bytes=published_context(architecture).expected_bytes,
    )


def _setting(check: Check) -> str:
    name, software = "No GPU: predictions alone", f"torch {torch.__version__}"
    if check.is_here:
        name = torch.cuda.get_device_name()
        software += f", CUDA {torch.version.cuda}, driver {device.driver_version()}"
    capability = ".".join(map(str, check.architecture))
    return (
        f"{name}; compute capability {capability}, {check.total_bytes / GIB:.1f} GiB; {software}, "
        f"Python {platform.python_version()}."
    )


def _default_file(check: Check) -> Path | None:
    if not check.is_here:
        return None
    name = re.sub(r"\W+", "_", torch.cuda.get_device_name()).strip("_").lower()
    return _RESULTS / f"gpu_check_{name}.md"


if __name__ == "__main__":
    sys.exit(main())
