"""One attempt at a trial in this process, as a generator: progress while it trains, then its end.

Whatever happens in a trial is data here: nothing but GeneratorExit is raised.
"""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from search.compression.params import MODEL_SIZE, teacher_of
from search.errors import SearchError
from search.metric import DERIVED_METRICS, ENERGY_PER_TOKEN, PEAK_MEMORY, TOKENS_PER_SECOND
from search.results import Outcome, Params, ParamValue, Trial
from search.trials.steps import Steps

if TYPE_CHECKING:
    from search.compression.params import Deployment
    from search.memory.device import Device
    from search.memory.energy import EnergyMeter
    from search.objective import Objective
    from search.training import TrainingRun

CHUNK_SECONDS = 1.0
"""How often a running trial reports, and how soon it can be stopped."""
_OVERFLOWS_IN_A_ROW = 10
"""A gradient scaler that starts at 2**16 has come down to 2**6 by then.

Source: `torch.amp.GradScaler`, `init_scale` 65536, `backoff_factor` 0.5.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a running trial stands."""

    tokens_seen: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What one attempt is to do. `alone` tells that no other trial has the device meanwhile."""

    number: int
    params: Params
    num_tokens: int
    budget_bytes: int
    time_limit_seconds: float | None
    objectives: tuple[str, ...]
    alone: bool = False


@dataclass(slots=True, kw_only=True)
class _Record:
    """What is measured while a trial runs, filled in as it goes."""

    steps: Steps = field(default_factory=Steps)
    metrics: dict[str, float] = field(default_factory=dict)
    details: dict[str, ParamValue] = field(default_factory=dict)
    overflows_in_a_row: int = 0

    def note_energy(self, meter: EnergyMeter | None, run: TrainingRun) -> None:
        """Joules a token from the first step on, where the device tells."""
        joules = meter.joules() if meter else None
        if joules:
            self.metrics[ENERGY_PER_TOKEN.name] = joules / run.tokens_seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainee:
    """What is trained, and on what; a `deployment` where its model is compressed afterwards."""

    objective: Objective
    device: Device
    deployment: Deployment | None


class _EndedError(Exception):
    """A trial that ends before its time for a known reason."""

    def __init__(self, outcome: Outcome, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


Attempt = Generator[Progress, None, Trial]


def attempt(
    task: Task, *, objective: Objective, device: Device, deployment: Deployment | None = None
) -> Attempt:
    """Trains and judges one configuration; yields about once a second, returns the trial.

    The budget is enforced and the peak measured from the first weight to the last batch judged,
    and where there is a deployment to the end of what is measured of the compressed model.
    """
    from search.memory.measurement import release_memory

    started_at, clock = time.time(), time.perf_counter()
    record = _Record()
    trainee = _Trainee(objective=objective, device=device, deployment=deployment)
    ending = yield from _ending(task, trainee, record)
    record.details["held_bytes"] = release_memory(device)
    record.metrics.update(_speed(record))
    return Trial(
        number=task.number,
        params=task.params,
        outcome=ending[0],
        message=ending[1],
        metrics=record.metrics,
        started_at=started_at,
        duration_seconds=time.perf_counter() - clock,
        curve=record.steps.curve(),
        details={**record.details, **place()},
    )


def _ending(
    task: Task, trainee: _Trainee, record: _Record
) -> Generator[Progress, None, tuple[Outcome, str]]:
    """How the training ended and why, as text alone: an exception would keep its frames alive."""
    from search.memory.measurement import is_out_of_memory

    try:
        yield from _measured(task, trainee, record)
    except _EndedError as ended:
        return ended.outcome, str(ended)
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - a trial may even call sys.exit
        traceback.clear_frames(error.__traceback__)
        if is_out_of_memory(error):
            return Outcome.OUT_OF_MEMORY, f"{type(error).__name__}: {error}"
        if isinstance(error, SearchError):
            return Outcome.FAILED, str(error)
        return Outcome.FAILED, "".join(traceback.format_exception(error))
    return Outcome.COMPLETED, ""


def _measured(task: Task, trainee: _Trainee, record: _Record) -> Iterator[Progress]:
    """Trains, and where there is a deployment measures the compressed model after it.

    Nothing of the training is left by then: the peak is the larger of the two.
    """
    if trainee.deployment is None:
        yield from _trained_within(task, trainee, record)
    else:
        with TemporaryDirectory(prefix="paretune-") as folder:
            file = Path(folder) / "model.pt"
            run = yield from _trained_within(task, trainee, record, compressed_file=file)
            _deploy(run, file, task, trainee, record)
    _require_objectives(task, record)


def _trained_within(
    task: Task, trainee: _Trainee, record: _Record, *, compressed_file: Path | None = None
) -> Generator[Progress, None, TrainingRun]:
    """Trains within the budget; its model is left in a file alone where one is named."""
    from search.memory.measurement import enforce_budget, measure_peak

    peak = None
    try:
        with (
            measure_peak(trainee.device) as peak,
            enforce_budget(trainee.device, task.budget_bytes),
        ):
            run = yield from _trained(task, trainee, record)
            if compressed_file is not None:
                _compress(run, compressed_file, record)
    finally:
        if peak is not None:
            record.metrics[PEAK_MEMORY.name] = float(peak.num_bytes)
    return run


def _compress(run: TrainingRun, file: Path, record: _Record) -> None:
    from search.compression.stored import save_model
    from search.trials.deployed import compress_run

    record.details.update(compress_run(run))
    record.metrics[MODEL_SIZE.name] = float(save_model(run.model, file))
    del run.model


def _deploy(run: TrainingRun, file: Path, task: Task, trainee: _Trainee, record: _Record) -> None:
    """Measures the compressed model within the budget."""
    from search.memory.measurement import enforce_budget, measure_peak
    from search.trials.deployed import measure_deployed

    peak, num_samples = None, trainee.deployment.serving_batch_size if trainee.deployment else 1
    try:
        with (
            measure_peak(trainee.device) as peak,
            enforce_budget(trainee.device, task.budget_bytes),
        ):
            found = measure_deployed(run, file, peak=peak, num_samples=num_samples)
    finally:
        if peak is not None:
            most_bytes = max(record.metrics[PEAK_MEMORY.name], float(peak.num_bytes))
            record.metrics[PEAK_MEMORY.name] = most_bytes
    record.details.update(found.details)
    _note(found.metrics, "the compressed model", record)


def _trained(
    task: Task, trainee: _Trainee, record: _Record
) -> Generator[Progress, None, TrainingRun]:
    from search.memory.energy import energy_meter
    from search.training import TrainingRun

    deadline = time.perf_counter() + (task.time_limit_seconds or math.inf)
    run = TrainingRun(
        trainee.objective,
        task.params,
        num_tokens=task.num_tokens,
        device=trainee.device.torch_device,
        teacher=teacher_of(trainee.deployment),
    )
    record.details["num_parameters"] = sum(param.numel() for param in run.model.parameters())
    report_at = time.perf_counter() + CHUNK_SECONDS
    meter = energy_meter(trainee.device) if task.alone else None
    while not run.done:
        _step(run, record)
        if time.perf_counter() > deadline:
            raise _EndedError(Outcome.TIMED_OUT, _time_out(task, run))
        if time.perf_counter() > report_at:
            record.note_energy(meter, run)
            yield Progress(tokens_seen=run.tokens_seen, loss=record.steps.losses[-1])
            report_at = time.perf_counter() + CHUNK_SECONDS
    record.note_energy(meter, run)
    _note(run.evaluate(), "the evaluation", record)
    return run


def _step(run: TrainingRun, record: _Record) -> None:
    """One timed optimizer step."""
    overflows = run.overflow_steps
    loss = record.steps.take(run)
    record.details["overflow_steps"] = run.overflow_steps
    record.details["num_steps"] = len(record.steps.losses)
    unsound = not math.isfinite(loss) or run.overflow_steps > overflows
    record.overflows_in_a_row = record.overflows_in_a_row + 1 if unsound else 0
    if record.overflows_in_a_row >= _most_overflows(run):
        raise _EndedError(Outcome.DIVERGED, _divergence(run, loss))


def _most_overflows(run: TrainingRun) -> int:
    from search.training_params import Precision

    return _OVERFLOWS_IN_A_ROW if run.training.precision is Precision.FP16_MIXED else 1


def _divergence(run: TrainingRun, loss: float) -> str:
    found = f"the loss was {loss:g}" if not math.isfinite(loss) else "the gradients overflowed"
    return f"{found} after {run.tokens_seen} of {run.num_tokens} tokens"


def _time_out(task: Task, run: TrainingRun) -> str:
    return (
        f"its {task.time_limit_seconds:g} s were over after "
        f"{run.tokens_seen} of {run.num_tokens} tokens"
    )


def _note(values: Mapping[str, float], source: str, record: _Record) -> None:
    metrics = {name: float(value) for name, value in values.items()}
    record.metrics.update({name: value for name, value in metrics.items() if math.isfinite(value)})
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise _EndedError(Outcome.DIVERGED, f"{source} gave {name} = {value:g}")


def _require_objectives(task: Task, record: _Record) -> None:
    derived = (metric.name for metric in DERIVED_METRICS)
    measured = {*record.metrics, TOKENS_PER_SECOND.name, PEAK_MEMORY.name, *derived}
    if missing := [name for name in task.objectives if name not in measured]:
        given = ", ".join(name for name in record.metrics if name != PEAK_MEMORY.name)
        msg = f"the evaluation gave no {', '.join(missing)} (it gave {given})"
        raise _EndedError(Outcome.FAILED, msg)


def _speed(record: _Record) -> dict[str, float]:
    """Tokens per second in steady state; from how many steps, and their spread, in the details."""
    steps = record.steps
    if not steps.tokens:
        return {}
    record.details["num_timed_steps"] = len(steps.speeds)
    if steps.spread is not None:
        record.details["tokens_per_second_spread"] = steps.spread
    return {TOKENS_PER_SECOND.name: steps.tokens_per_second}


def place() -> dict[str, ParamValue]:
    """Where a trial ran, for its details."""
    import platform

    import torch

    return {
        "pid": os.getpid(),
        "host": platform.node(),
        "cores": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "threads": torch.get_num_threads(),
    }
