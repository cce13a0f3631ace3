"""A whole sweep on Ray: from a `Sweep` and a ledger to trials."""

from __future__ import annotations

import logging
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.errors import MachineError
from search.results import Params, Trial
from search.trials.bookkeeping import Bookkeeper, Derived, no_figures
from search.trials.events import Event
from search.trials.ledger import Ledger
from search.trials.placement import (
    Slots,
    free_slots,
    largest_world_size,
    require_places,
    world_size_of,
)

if TYPE_CHECKING:
    from search.compression.params import Deployment
    from search.memory.device import Device
    from search.memory.feasibility import Unjudged, Verdict
    from search.sweep.sweep import Sweep
    from search.trials.gate import Order
    from search.trials.worker import Job

_QUIET = {
    "PYTHONWARNINGS": "",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "86400",
}
"""Ray says nothing, keeps no state of its own, and leaves Ctrl-C to the caller.

Ray reads some of them when it is imported, so they are set before that. Its own processes do not
live through `PYTHONWARNINGS=error`.
"""
_OBJECT_STORE_BYTES = 128 * 1024**2
"""Nothing but small reports goes through Ray's object store; its default is 30 % of all memory."""


def run_sweep(
    *,
    sweep: Sweep,
    fits: Callable[[Params], Verdict | Unjudged],
    params_of: Callable[[Params], Params],
    slots: Slots,
    device: Device,
    ledger: Ledger,
    on_event: Callable[[Event], None],
    stop: threading.Event,
    address: str | None = None,
    order: Order | None = None,
    deployment: Deployment | None = None,
    derived: Derived = no_figures,
) -> tuple[Trial, ...]:
    """All trials of the sweep that ended, those of earlier runs among them, by number.

    Blocks until the sweep has its trials, its space is exhausted, or `stop` is set. What was
    running then stays 'started' in the ledger, and the next run begins with it.

    Args:
        sweep: what to try.
        fits: judges a whole configuration.
        params_of: the whole configuration of a point of the space.
        slots: how many trials at once, and what each may use.
        device: what the trials train on.
        ledger: where everything is recorded.
        on_event: is told what happens, in this thread, once it is on record.
        stop: ends the sweep within about a second.
        address: of a running Ray cluster; default: one of our own, here, for this sweep.
        order: in which the first configurations are launched; default: as they are drawn.
        deployment: how trained models are served and by whom they are taught; default: neither.
        derived: metrics that follow from a completed trial; default: none.

    Raises:
        SweepStoppedError: when trials keep failing the same way, or nothing fits.
        MachineError: when the cluster lacks what one trial needs, or the ledger is in use.
    """
    from search.trials.gate import Gate

    with ledger.claim():
        bookkeeper = Bookkeeper(
            sweep=sweep,
            ledger=ledger,
            on_event=on_event,
            derived=derived,
            gate=lambda history, on_refused: Gate(
                sweep=sweep,
                fits=fits,
                params_of=params_of,
                budget_bytes=slots.budget_bytes,
                history=history,
                on_refused=on_refused,
                order=order,
            ),
        )
        if bookkeeper.ready():
            if address is None:
                slots = free_slots(slots)
                require_places(sweep, slots)
            with _ray(slots, address, world_size=largest_world_size(sweep)):
                _fit(
                    bookkeeper,
                    job=_job(sweep, slots, ledger.folder, deployment),
                    slots=slots,
                    device=device,
                    stop=stop,
                    storage=ledger.folder / "ray",
                )
        if bookkeeper.error is not None:
            raise bookkeeper.error
        return ledger.read().trials


def _job(sweep: Sweep, slots: Slots, folder: Path, deployment: Deployment | None) -> Job:
    from search.trials.worker import Job

    return Job(
        objective=sweep.objective or "",
        command=sweep.command or "",
        logs=str((folder / "logs").absolute()),
        data=sweep.data,
        num_tokens=sweep.trial.tokens or 0,
        budget_bytes=slots.budget_bytes,
        time_limit_seconds=sweep.trial.time_limit,
        objectives=tuple(sweep.objectives),
        cpus=slots.cpus,
        folder=str(Path.cwd()),
        import_paths=tuple(sys.path),
        driver_pid=os.getpid(),
        driver_host=platform.node(),
        deployment=deployment,
        alone=slots.gpus > 0 or slots.num_slots == 1,
    )


def _fit(
    bookkeeper: Bookkeeper,
    *,
    job: Job,
    slots: Slots,
    device: Device,
    stop: threading.Event,
    storage: Path,
) -> None:
    """Runs Tune until the bookkeeper says that the sweep is over."""
    from ray import tune

    from search.trials.searcher import DeathCallback, LedgerSearcher, SweepStopper
    from search.trials.worker import NUMBER, PARAMS, Worker

    def resources(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        needed = slots.resources(1 if job.command else world_size_of(config[PARAMS]))
        return tune.PlacementGroupFactory([needed])

    limit_in_force = device.kind == "cpu"
    tuner = tune.Tuner(
        tune.with_resources(Worker, resources),
        tune_config=tune.TuneConfig(
            search_alg=LedgerSearcher(bookkeeper, job, num_places=slots.num_slots),
            num_samples=-1,
            max_concurrent_trials=slots.num_trials,
            reuse_actors=True,
            trial_name_creator=lambda trial: f"trial-{trial.config[NUMBER]}",
            trial_dirname_creator=lambda trial: f"{trial.config[NUMBER]}-{trial.trial_id}",
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(storage.absolute()),
            stop=SweepStopper(bookkeeper, stop),
            callbacks=[DeathCallback(bookkeeper, limit_in_force=limit_in_force)],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            verbose=0,
        ),
    )
    try:
        tuner.fit()
    except Exception:  # what Tune makes of a fault that the bookkeeper has as it was
        if bookkeeper.fault is None:
            raise
    if bookkeeper.fault is not None:
        raise bookkeeper.fault


@contextmanager
def _ray(slots: Slots, address: str | None, *, world_size: int = 1) -> Iterator[None]:
    """Ray, quiet: the one this process runs already, the cluster at `address`, or a new one."""
    with _environment(_QUIET), _quiet_logs():
        import ray

        ours = not ray.is_initialized()
        if ours:
            with _signals_kept(), _start_faults(address):
                ray.init(**_init_options(slots, address))
        try:
            _require_resources(slots.resources(world_size), _largest_machine(ray.nodes()))
            yield
        finally:
            if ours:
                ray.shutdown()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Leaves signals to the caller while Ray starts.

    Ray takes SIGTERM for itself. Its processes, which take over the mask of the one that starts
    them, are not to end with the terminal before the caller has stopped them: SIGHUP waits.
    """
    before = signal.getsignal(signal.SIGTERM)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _start_faults(address: str | None) -> Iterator[None]:
    """Says what keeps Ray from starting. It raises a bare Exception for most of it."""
    try:
        yield
    except Exception as error:
        place = f"the Ray cluster at {address} cannot be joined" if address else "Ray did not start"
        said = str(error).strip().splitlines() or [repr(error)]
        msg = f"{place}: {said[0]} (its logs lie in /tmp/ray; resume the sweep once it is mended)"
        raise MachineError(msg) from error


def _init_options(slots: Slots, address: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address is not None:
        return {**options, "address": address}
    return {
        **options,
        "address": "local",
        "num_cpus": slots.num_slots * slots.cpus,
        "num_gpus": slots.num_slots * slots.gpus,
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE_BYTES,
    }


def _largest_machine(nodes: list[dict[str, Any]]) -> dict[str, float]:
    """The most of each resource that one machine of the cluster has."""
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    names = {name for resources in alive for name in resources}
    return {name: max(resources.get(name, 0.0) for resources in alive) for name in names}


def _require_resources(needed: dict[str, float], offered: dict[str, float]) -> None:
    """Raises MachineError when Ray would wait for ever, without a word, for one trial's share."""
    for name, count in needed.items():
        if offered.get(name, 0) < count:
            msg = (
                f"a trial needs {count:g} {name} on one machine, the largest of the Ray cluster "
                f"has {offered.get(name, 0):g} (lower resources.cpus or world_size, or use larger "
                "machines)"
            )
            raise MachineError(msg)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet_logs() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("ray", "ray.tune")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
