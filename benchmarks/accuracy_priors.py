"""The errors that were found, as the prior of devices that were never measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy_rows import CPU, GPUMEMNET, Judged


def write_priors(file: Path, judged: Sequence[Judged]) -> None:
    """Keeps predicted and measured bytes, by kind of device, in the form of `priors.json`.

    Of a GPU those of the whole device count, as only they are compared when a sweep runs. Runs that
    ran out of memory are left out, and a kind of which nothing was run stays as it was.
    """
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for kind, groups in (("cuda", GPUMEMNET), ("cpu", (CPU,))):
        pairs = [
            [row.expected_bytes, row.measured_bytes]
            for row in judged
            if row.group in groups and not row.ran_out
        ]
        content[kind] = pairs or content.get(kind, [])
    file.write_text(_text(content), encoding="utf-8")


def _text(content: dict[str, list[list[int]]]) -> str:
    """One pair a line."""
    parts = []
    for kind, pairs in sorted(content.items()):
        lines = ",\n".join(f"    {json.dumps(pair)}" for pair in pairs)
        parts.append(f'  "{kind}": [\n{lines}\n  ]' if pairs else f'  "{kind}": []')
    return "{\n" + ",\n".join(parts) + "\n}\n"
