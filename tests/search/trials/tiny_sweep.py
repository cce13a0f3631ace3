"""Sweeps, predictions and trials to test with."""

from typing import Any

from search.memory.feasibility import DoesNotFit, Fits, Verdict
from search.results import Outcome, Params, PredictedMemory, Trial
from search.sweep.sweep import Sweep
from search.units import MIB

BUDGET_BYTES = 512 * MIB


def tiny_sweep(**changes: Any) -> Sweep:
    return Sweep.model_validate(
        {
            "name": "tiny",
            "objective": "tiny_objective:TinyModel",
            "space": {"width": [1, 2, 4, 8], "batch_size": [8, 16]},
            "trial": {"tokens": 64},
            "objectives": {"bits_per_byte": "min", "tokens_per_second": "max"},
            "trials": 6,
            "memory": {"budget": BUDGET_BYTES},
            **changes,
        }
    )


def predicted(num_bytes: int) -> PredictedMemory:
    return PredictedMemory(
        expected_bytes=num_bytes, low_bytes=num_bytes, high_bytes=num_bytes, phase="forward"
    )


def fits_up_to(width: float, budget_bytes: int = BUDGET_BYTES):
    """A judge for which a configuration of this width just fits."""

    def fits(params: Params) -> Verdict:
        needed = int(int(params["width"]) * budget_bytes // width)
        if needed <= budget_bytes:
            return Fits(params=params, predicted=predicted(needed))
        return DoesNotFit(
            params=params,
            predicted=predicted(needed),
            budget_bytes=budget_bytes,
            excess_bytes=needed - budget_bytes,
            reason=f"needs {needed}",
        )

    return fits


def trial(number: int, params: Params, outcome: Outcome = Outcome.COMPLETED, **changes) -> Trial:
    metrics = {"bits_per_byte": 1.0, "tokens_per_second": 100.0, "peak_memory": BUDGET_BYTES / 2}
    return Trial(
        number=number,
        params=params,
        outcome=outcome,
        **{"metrics": metrics if outcome is Outcome.COMPLETED else {}, **changes},
    )
