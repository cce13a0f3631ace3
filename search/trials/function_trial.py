"""A training function in a thread of this process: its memory is that of the process."""

from __future__ import annotations

import ctypes
import random
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from search.results import Outcome, ParamValue
from search.trials.reports import Ending, Reports, TrialOverError

if TYPE_CHECKING:
    from search.memory.device import Device
    from search.memory.measurement import Peak
    from search.objective import TrainingFunction
    from search.trials.attempt import Task

LEFT_RUNNING = "left_running"
"""The detail of a trial whose function did not end when it was told to."""
_SECONDS_TO_END = 10.0
"""How long a function may take to end; one that waits for a library does not hear of it before."""


@contextmanager
def running(
    task: Task, reports: Reports, *, function: TrainingFunction, device: Device
) -> Iterator[_FunctionThread]:
    """The function at work, its peak measured and its budget enforced from its first line on."""
    from search.memory.measurement import enforce_budget, measure_peak, release_memory

    _seed(int(task.params.get("seed") or 0))
    with measure_peak(device) as peak, enforce_budget(device, task.budget_bytes):
        source = _FunctionThread(task, reports, function, peak)
        try:
            yield source
        finally:
            source.stop()
    source.details["held_bytes"] = release_memory(device)


def _seed(seed: int) -> None:
    """Random numbers start alike for equal seeds, whatever this process trained before."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what functions of others draw from
    torch.manual_seed(seed)


class _FunctionThread:
    """Runs the function. All that is known of its end is text: an error keeps frames alive."""

    def __init__(
        self, task: Task, reports: Reports, function: TrainingFunction, peak: Peak
    ) -> None:
        self.details: dict[str, ParamValue] = {}
        self._peak = peak
        self._reports = reports
        self._over = Ending(outcome=Outcome.FAILED, message="it was stopped")
        self._stopped = False
        self._thread = threading.Thread(
            target=self._run, args=(function, dict(task.params)), daemon=True
        )
        self._thread.start()

    @property
    def peak_bytes(self) -> int:
        """Of the process, above what it held before."""
        return self._peak.num_bytes

    def ended(self, within_seconds: float) -> Ending | None:
        """How it ended."""
        self._thread.join(within_seconds)
        return None if self._thread.is_alive() else self._over

    def stop(self) -> None:
        """Ends the function at its next report, or at its next line of Python."""
        self._stopped = True
        if self._thread.is_alive():
            thread_id = ctypes.c_ulong(self._thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(TrialOverError))
            self._thread.join(_SECONDS_TO_END)
        if self._thread.is_alive():
            self.details[LEFT_RUNNING] = True

    def _report(self, **figures: Any) -> None:
        if self._stopped:
            raise TrialOverError
        self._reports.take(figures)

    def _run(self, function: TrainingFunction, params: dict[str, ParamValue]) -> None:
        with suppress(TrialOverError):  # told to stop when it had just ended
            self._over = self._trained(function, params)

    def _trained(self, function: TrainingFunction, params: dict[str, ParamValue]) -> Ending:
        from search.memory.measurement import is_out_of_memory

        try:
            returned = function(params, self._report)
            if isinstance(returned, Mapping):
                self._report(**returned)
            return self._reports.completed()
        except TrialOverError as over:
            return over.ending
        except BaseException as error:  # noqa: BLE001 - a user's function may even call sys.exit
            traceback.clear_frames(error.__traceback__)
            if is_out_of_memory(error):
                message = f"{type(error).__name__}: {error}"
                return Ending(outcome=Outcome.OUT_OF_MEMORY, message=message)
            message = "".join(traceback.format_exception(error))
            return Ending(outcome=Outcome.FAILED, message=message)
