"""A run whose peak of memory is measured, from its model to its evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search.memory.device import Device
from search.memory.measurement import measure_peak, release_memory
from search.objective import Objective
from search.training import TrainingRun


def peak_bytes(
    objective: Objective, params: Mapping[str, Any], device: Device, *, num_steps: int
) -> int:
    """The measured peak of a run of so many steps and its evaluation, in a prepared process."""
    num_tokens = num_steps * params["batch_size"] * objective.tokens_per_sample(params)
    with measure_peak(device) as peak:
        run = TrainingRun(objective, params, num_tokens=num_tokens, device=device.torch_device)
        while not run.done:
            run.step()
        run.evaluate()
        del run
    release_memory(device)
    return peak.num_bytes
