"""One attempt at a trial in this process, as a generator: progress while it trains, then its end.

Whatever happens in a trial is data here: nothing but GeneratorExit is raised.
"""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from search.compression.params import MODEL_SIZE, teacher_of
from search.errors import SearchError
from search.results import Outcome, Params, ParamValue, Trial
from search.trials.measured import EndedError, Measured

if TYPE_CHECKING:
    from search.compression.params import Deployment
    from search.memory.device import Device
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trainee:
    """What is trained, and on what; a `deployment` where its model is compressed afterwards."""

    objective: Objective
    device: Device
    deployment: Deployment | None


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
    measured = Measured()
    trainee = _Trainee(objective=objective, device=device, deployment=deployment)
    ending = yield from _ending(task, trainee, measured)
    measured.details["held_bytes"] = release_memory(device)
    measured.note_speed()
    return Trial(
        number=task.number,
        params=task.params,
        outcome=ending[0],
        message=ending[1],
        metrics=measured.metrics,
        started_at=started_at,
        duration_seconds=time.perf_counter() - clock,
        curve=measured.steps.curve(),
        details={**measured.details, **place()},
    )


def _ending(
    task: Task, trainee: _Trainee, measured: Measured
) -> Generator[Progress, None, tuple[Outcome, str]]:
    """How the training ended and why, as text alone: an exception would keep its frames alive."""
    from search.memory.measurement import is_out_of_memory

    try:
        yield from _tried(task, trainee, measured)
    except EndedError as ended:
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


def _tried(task: Task, trainee: _Trainee, measured: Measured) -> Iterator[Progress]:
    """Trains, and where there is a deployment measures the compressed model after it.

    Nothing of the training is left by then: the peak is the larger of the two.
    """
    if trainee.deployment is None:
        with measured.within(task.budget_bytes, trainee.device):
            yield from _trained(task, trainee, measured)
    else:
        yield from _deployed(task, trainee, trainee.deployment, measured)
    measured.require(task.objectives)


def _deployed(
    task: Task, trainee: _Trainee, deployment: Deployment, measured: Measured
) -> Iterator[Progress]:
    """Trains, leaves the compressed model in a file alone, and measures that."""
    from search.trials.deployed import measure_deployed

    with TemporaryDirectory(prefix="paretune-") as folder:
        file = Path(folder) / "model.pt"
        with measured.within(task.budget_bytes, trainee.device):
            run = yield from _trained(task, trainee, measured)
            _compress(run, file, measured)
        with measured.within(task.budget_bytes, trainee.device) as peak:
            num_samples = deployment.serving_batch_size
            found = measure_deployed(run, file, peak=peak, num_samples=num_samples)
    measured.details.update(found.details)
    measured.note(found.metrics, "the compressed model")


def _compress(run: TrainingRun, file: Path, measured: Measured) -> None:
    from search.compression.stored import save_model
    from search.trials.deployed import compress_run

    measured.details.update(compress_run(run))
    measured.metrics[MODEL_SIZE.name] = float(save_model(run.model, file))
    del run.model


def _trained(
    task: Task, trainee: _Trainee, measured: Measured
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
    measured.details["num_parameters"] = sum(param.numel() for param in run.model.parameters())
    report_at = time.perf_counter() + CHUNK_SECONDS
    meter = energy_meter(trainee.device) if task.alone else None
    while not run.done:
        _step(run, measured)
        if time.perf_counter() > deadline:
            raise EndedError(Outcome.TIMED_OUT, _time_out(task, run))
        if time.perf_counter() > report_at:
            measured.note_energy(meter, run)
            yield Progress(tokens_seen=run.tokens_seen, loss=measured.steps.losses[-1])
            report_at = time.perf_counter() + CHUNK_SECONDS
    measured.note_energy(meter, run)
    measured.note(run.evaluate(), "the evaluation")
    return run


def _step(run: TrainingRun, measured: Measured) -> None:
    """One timed optimizer step."""
    overflows = run.overflow_steps
    loss = measured.steps.take(run)
    measured.details["overflow_steps"] = run.overflow_steps
    measured.details["num_steps"] = len(measured.steps.losses)
    unsound = not math.isfinite(loss) or run.overflow_steps > overflows
    measured.overflows_in_a_row = measured.overflows_in_a_row + 1 if unsound else 0
    if measured.overflows_in_a_row >= _most_overflows(run):
        raise EndedError(Outcome.DIVERGED, _divergence(run, loss))


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
