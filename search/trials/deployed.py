"""What follows the training of a trial with compression: the smaller model, and how it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from search.compression.compress import compress
from search.compression.params import (
    LATENCY,
    SERVING_MEMORY,
    SERVING_THROUGHPUT,
    CompressionParams,
    after,
    of_one_sample,
)
from search.compression.serving import held_out_batch, latency, model_call
from search.compression.stored import load_model
from search.objective import Split
from search.results import ParamValue

if TYPE_CHECKING:
    from search.memory.measurement import Peak
    from search.objective import Batch
    from search.training import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What was measured of a compressed model, and how."""

    metrics: Mapping[str, float]
    details: Mapping[str, ParamValue]


def compress_run(run: TrainingRun) -> dict[str, ParamValue]:
    """Compresses the model of a trained run in place; what was done.

    What only training needs is dropped before.
    """
    run.let_go()
    batch = _training_batch(run)
    with run.serving():
        return compress(
            run.model,
            CompressionParams.of(run.params),
            lambda: run.objective.loss(run.model, batch).detach(),
        )


def _training_batch(run: TrainingRun) -> Batch:
    """One sample: what a model computes must stay the same on it where it should."""
    tokens = run.objective.tokens_per_sample(run.params)
    params = of_one_sample(run.params)
    data = run.objective.data(params, Split.TRAIN, seed=run.training.seed, num_tokens=tokens)
    return run.on_device(next(iter(data)))


def measure_deployed(run: TrainingRun, file: Path, *, peak: Peak, num_samples: int) -> Deployed:
    """Loads a compressed model into a run that has none, and measures how it serves and judges.

    Args:
        run: is evaluated with that model.
        file: the model.
        peak: of memory, which counts from before the model is loaded: that of its weights and of
            one call on `num_samples` is read from it.
        num_samples: what is served at once.
    """
    batch = held_out_batch(run.objective, run.params, num_samples)
    run.model = load_model(run.objective, run.params, file, run.device)
    with run.serving():
        call = model_call(run.objective, run.model, run.on_device(batch))
        call()
        serving_bytes = peak.num_bytes
        found = latency(call, run.device)
        del call
    values = run.evaluate()
    metrics = {
        **{after(name): float(value) for name, value in values.items()},
        SERVING_MEMORY.name: float(serving_bytes),
        LATENCY.name: found.seconds,
        SERVING_THROUGHPUT.name: run.objective.num_tokens(batch) / found.seconds,
    }
    details = {"latency_spread": found.spread, "num_timed_calls": found.num_calls}
    return Deployed(metrics=metrics, details=details)
