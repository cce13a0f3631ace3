"""A driver to be killed: runs the sweep in a folder and prints what happens."""

import json
import sys
import threading
from pathlib import Path

from tiny_sweep import fits_up_to

from search.memory.device import device_here
from search.sweep.sweep import Sweep
from search.trials.events import TrialFinished, TrialStarted
from search.trials.ledger import Ledger
from search.trials.placement import Slots
from search.trials.run import run_sweep


def drive(folder, sweep, *, on_event, stop=None, fits=None, num_slots=2, order=None):
    return run_sweep(
        sweep=sweep,
        fits=fits or fits_up_to(10**9),
        params_of=lambda point: sweep.params_of(point, {}),
        slots=Slots(num_slots=num_slots, budget_bytes=sweep.memory.budget, cpus=1),
        device=device_here(),
        ledger=Ledger(folder),
        on_event=on_event,
        stop=stop or threading.Event(),
        order=order,
    )


def say(event):
    if isinstance(event, TrialStarted):
        print("started", event.params["width"], flush=True)  # noqa: T201 - the test reads it
    if isinstance(event, TrialFinished):
        print("finished", event.trial.params["width"], event.trial.outcome.value, flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    sweep = Sweep.model_validate(json.loads(sys.argv[2]))
    drive(Path(sys.argv[1]), sweep, on_event=say)
