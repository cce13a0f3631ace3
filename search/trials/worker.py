"""The process that trains: warm, on its own cores, one trial after another.

Importing this module imports Ray.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray import tune

from search.errors import MachineError, SearchError
from search.results import Outcome, Params, Trial
from search.trials import untraced
from search.trials.attempt import Attempt, Progress, Task, attempt
from search.trials.function_trial import LEFT_RUNNING
from search.trials.lifelines import end_with
from search.trials.placement import world_size_of
from search.trials.rank import Membership
from search.trials.ranks import LostRankError, Ranks

if TYPE_CHECKING:
    from search.compression.params import Deployment
    from search.trials.placement import CpuSlot

JOB = "job"
NUMBER = "number"
PARAMS = "params"
"""Keys of what Tune hands to a worker."""
TRIAL = "trial"
"""Key of the finished trial, as JSON text, in a worker's last report: Tune takes dicts apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is the same for every trial of a sweep. Of `objective` and `command` one is empty.

    `num_tokens` is 0 where what is trained ends by itself. `alone`: see `Task`.
    Commands write their output to `logs`.
    """

    objective: str
    command: str
    logs: str
    data: Mapping[str, Any]
    num_tokens: int
    budget_bytes: int
    time_limit_seconds: float | None
    objectives: tuple[str, ...]
    cpus: int
    folder: str
    import_paths: tuple[str, ...]
    driver_pid: int
    driver_host: str
    deployment: Deployment | None = None
    alone: bool = False

    def task(self, number: int, params: Params) -> Task:
        """One trial of this job."""
        return Task(
            number=number,
            params=params,
            num_tokens=self.num_tokens,
            budget_bytes=self.budget_bytes,
            time_limit_seconds=self.time_limit_seconds,
            objectives=self.objectives,
            alone=self.alone and world_size_of(params) == 1,
        )


class RetiredError(Exception):
    """This process still holds memory of an earlier trial; a new one is to take its place."""


class UnplacedError(Exception):
    """This machine has no place to train for this process now; no trial is to blame."""


class Worker(tune.Trainable):  # type: ignore[misc]  # Ray gives no types
    """Trains the trials it is handed, each in about one-second steps.

    A trial never raises here: its end is the `trial` of the last report. What does raise is a
    process that could not let go of its memory, in `reset_config`, or found no cores.
    """

    _attempt: Attempt | None = None
    _attempts: Callable[[Task], Attempt] | None = None
    _slot: CpuSlot | None = None
    _ranks: Ranks | None = None
    _fit_for_another = True

    def setup(self, config: dict[str, Any]) -> None:
        """Binds this process to the life of the driver."""
        _die_with_driver(config[JOB])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Makes ready for another trial.

        Raises:
            RetiredError: when memory of an earlier trial is still held.
        """
        self.cleanup()
        if not self._fit_for_another:
            msg = "memory of an earlier trial is still held"
            raise RetiredError(msg)
        self.config = new_config
        return True

    def step(self) -> dict[str, Any]:
        """Trains for about a second; the last report carries the finished trial.

        Raises:
            UnplacedError: when there are no cores to train on.
            LostRankError: when another process of the trial has ended.
        """
        try:
            if self._attempt is None:
                self._attempt = self._new_attempt()
            progress = next(self._attempt)
        except StopIteration as end:
            return self._report(end.value)
        except MachineError as error:
            raise UnplacedError(str(error)) from error
        except LostRankError:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's import may even call sys.exit
            return self._report(self._failed(error))
        return {"tokens_seen": progress.tokens_seen, "loss": progress.loss}

    def cleanup(self) -> None:
        """Ends a trial that is still running; its memory is freed."""
        if self._attempt is not None:
            self._attempt.close()
        self._attempt = None

    def _new_attempt(self) -> Attempt:
        job: Job = self.config[JOB]
        if Path(job.folder).is_dir():
            os.chdir(job.folder)
        if self._attempts is None:
            self._attempts = self._prepared(job, world_size_of(self.config[PARAMS]))
        return self._attempts(job.task(self.config[NUMBER], self.config[PARAMS]))

    def _prepared(self, job: Job, world_size: int) -> Callable[[Task], Attempt]:
        """How to try a trial, in a process that has its cores and can measure memory.

        The objective's own data belong to the process: they are there before memory is first
        measured. What lives by then is frozen, so that collecting garbage between two trials takes
        1 ms and not 100.
        """
        from search.compression import quantization
        from search.memory.measurement import prepare_process
        from search.trials.placement import CpuSlot, allowed_cores

        sys.path.extend(path for path in job.import_paths if path not in sys.path)
        cores = allowed_cores()
        if self._slot is None:
            self._slot = CpuSlot.claim(cpus=job.cpus, among=cores)
            self._slot.pin()
        if job.command:
            return _command_attempts(job)
        if world_size > 1:
            return self._joined(job, world_size, tuple(cores))
        attempts = _attempts(job)
        if job.deployment is not None and job.deployment.quantizes:
            quantization.prepare()
        prepare_process()
        gc.collect()
        gc.freeze()
        return attempts

    def _joined(
        self, job: Job, world_size: int, cores: tuple[int, ...]
    ) -> Callable[[Task], Attempt]:
        """How to try a trial of several processes, of which this is rank 0."""
        from search.memory.device import device_here
        from search.memory.measurement import prepare_process

        self._ranks = Ranks(world_size)
        attempts = _attempts(job)
        prepare_process()

        def membership(rank: int, port: int) -> Membership:
            return Membership(
                rank=rank,
                world_size=world_size,
                port=port,
                objective=job.objective,
                data=job.data,
                cpus=job.cpus,
                cores=cores,
                folder=job.folder,
                import_paths=job.import_paths,
            )

        self._ranks.join(membership, device_here())
        return partial(self._ranks.attempt, attempt=attempts)

    def _failed(self, error: BaseException) -> Trial:
        message = "".join(traceback.format_exception(error))
        if isinstance(error, SearchError):
            message = str(error)
        return Trial(
            number=self.config[NUMBER],
            params=self.config[PARAMS],
            outcome=Outcome.FAILED,
            message=message,
            details={"pid": os.getpid()},
        )

    def _report(self, trial: Trial) -> dict[str, Any]:
        from search.memory.device import device_here
        from search.memory.measurement import LEAK_TOLERANCE_BYTES

        self._attempt = None
        held_bytes = int(trial.details.get("held_bytes") or 0)
        exhausted_gpu = trial.outcome is Outcome.OUT_OF_MEMORY and device_here().kind == "cuda"
        left_running = bool(trial.details.get(LEFT_RUNNING))
        out_of_step = self._ranks is not None and not self._ranks.in_step
        self._fit_for_another = not (
            held_bytes > LEAK_TOLERANCE_BYTES or exhausted_gpu or left_running or out_of_step
        )
        return {"done": True, TRIAL: json.dumps(trial.to_json())}


def _attempts(job: Job) -> Callable[[Task], Attempt]:
    """How to try the trials of an objective, or of a function."""
    from search.memory.device import device_here
    from search.objective import load_trainable
    from search.trials import function_trial

    device, found = device_here(), load_trainable(job.objective)
    if isinstance(found, type):
        objective = found(**job.data)
        return partial(attempt, objective=objective, device=device, deployment=job.deployment)
    start = partial(function_trial.running, function=found, device=device)
    return partial(untraced.attempt, start=start)


def _command_attempts(job: Job) -> Callable[[Task], Attempt]:
    """How to try the trials of a command: this process only looks on."""
    from search.memory.device import device_here
    from search.trials import command

    device = device_here()

    def attempt_of(task: Task) -> Attempt:
        log = Path(job.logs) / f"trial-{task.number:03d}.log"
        start = partial(command.running, command=job.command, device=device, log=log)
        return untraced.attempt(task, start)

    return attempt_of


def progress_of(report: Mapping[str, Any]) -> Progress:
    """What a worker's report says of a running trial."""
    return Progress(tokens_seen=report["tokens_seen"], loss=report["loss"])


def _die_with_driver(job: Job) -> None:
    """Ends this process as soon as the driver's has ended, however that died."""
    if platform.node() == job.driver_host and job.driver_pid != os.getpid():
        end_with(job.driver_pid)
