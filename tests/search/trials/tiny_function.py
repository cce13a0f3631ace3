"""Functions whose params decide how a trial ends. Imported by workers too."""

import random
import sys
import threading
import time
from contextlib import suppress

import torch


def train(params, report):  # noqa: C901 - one case an ending
    """Holds `size` MiB a unit of width, reports three times, and ends as told."""
    held = [torch.ones(params.get("size", 0) * params.get("width", 1) * 2**18)]
    for step in range(3):
        report(loss=3.0 - step, tokens=100 * (step + 1), held=len(held))
    match params.get("ending", "completed"):
        case "error":
            msg = "the user's own mistake"
            raise ValueError(msg)
        case "exit":
            sys.exit(3)
        case "nan":
            report(loss=float("nan"))
        case "nothing":
            return None
        case "leak":
            _LEAKED.append(torch.ones(48 * 2**18))
        case "endless":
            while True:
                time.sleep(0.001)
        case "swallows":
            while True:
                _swallow(report)
        case "stuck":
            threading.Event().wait(3)
    return {"accuracy": 1 - 1 / params.get("width", 2), "drawn": random.random()}  # noqa: S311


def _swallow(report):
    with suppress(Exception):
        report(accuracy=1)


_LEAKED = []
