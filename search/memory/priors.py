"""Errors of predictions measured elsewhere: where a device starts that was never measured."""

from __future__ import annotations

import json
from pathlib import Path

from search.memory.residuals import Residual

_FILE = Path(__file__).parent / "priors.json"


def prior(kind: str) -> tuple[Residual, ...]:
    """The published or committed errors for a kind of device, `cuda` or `cpu`; may be empty.

    Source: for `cuda` the published rows of `benchmarks/results/memory_accuracy.md`, for `cpu`
    the configurations of `benchmarks/results/memory_cpu.md`.
    """
    rows = json.loads(_FILE.read_text(encoding="utf-8")).get(kind, [])
    return tuple(
        Residual(predicted_bytes=predicted, measured_bytes=measured) for predicted, measured in rows
    )
