"""How sweeps stand and what they found: list, status, stop, front, ui."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search import home
from search.errors import InputError, MachineError, SearchError
from search.pipeline.screen import print_json, say, show_table, warn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from search.home import Manifest, SweepHome
    from search.results import Trial
    from search.screens import Standing
    from search.trials.ledger import LedgerState


def list_sweeps(*, as_json: bool) -> None:
    """Prints how all sweeps here stand."""
    from search.screens import standings_table

    standings = list(_readable(home.names()))
    if as_json:
        print_json([row.to_json() for row in standings])
    elif standings:
        show_table(standings_table(standings))
    else:
        say(f"no sweep in {home.home()} yet (start one: paretune sweep SWEEP.yaml)")


def _readable(names: Sequence[str]) -> Iterator[Standing]:
    """How each sweep stands. One that cannot be read is told, and hides no other."""
    for name in names:
        folder = home.open_home(name)
        try:
            yield standing_of(folder, ledger_of(folder))
        except SearchError as error:
            warn(str(error))


def status(name: str, *, as_json: bool) -> None:
    """Prints how one sweep stands, and where its results are."""
    folder = home.open_home(name)
    row = standing_of(folder, ledger_of(folder))
    if as_json:
        print_json(row.to_json())
        return
    say(f"{name}: {row.line}")
    say(f"folder: {folder.folder}\nMLflow: {folder.manifest().tracking_uri}")
    if row.state == "interrupted":
        say(f"go on with: paretune sweep --resume {name}")


def stop(name: str) -> None:
    """Asks a running sweep to stop."""
    folder = home.open_home(name)
    if standing_of(folder, ledger_of(folder)).state != "running":
        msg = f"{name} is not running (see: paretune status {name})"
        raise InputError(msg)
    folder.request_stop()
    say(f"{name} stops at the next step of its trials; what is done is kept")


def front(name: str, *, as_json: bool) -> None:
    """Prints the Pareto front."""
    from search.choice.front import front_of

    folder = home.open_home(name)
    manifest, trials = folder.manifest(), ledger_of(folder).trials
    if as_json:
        print_json(front_of(trials, manifest.objectives).to_json())
    elif front_of(trials, manifest.objectives).trials:
        _show_front(manifest, trials)
    else:
        msg = f"{name}: no trial completed yet, so there is no front (see: paretune status {name})"
        raise InputError(msg)


def ui(name: str | None, *, port: int) -> None:
    """Runs the MLflow UI on 127.0.0.1 until it is interrupted."""
    from search.tracking.store import serve_ui, store_uri, sweep_url

    uri = home.open_home(name).manifest().tracking_uri if name else store_uri()
    say(f"MLflow of {name or 'this folder'}: {sweep_url(uri, name, port=port)} (Ctrl-C ends it)")
    status = serve_ui(uri, port=port)
    if status:
        msg = f"MLflow's UI ended with status {status}; what it said stands above"
        raise MachineError(msg)


def show_results(folder: SweepHome, state: LedgerState, url: str) -> None:
    """Prints how a sweep ended, its front, and what to do next."""
    from search.choice.front import front_of

    manifest = folder.manifest()
    standing = standing_of(folder, state, running=False)
    say(f"{folder.name}: {standing.line}")
    if standing.state == "interrupted":
        say(f"go on with: paretune sweep --resume {folder.name}")
    if front_of(state.trials, manifest.objectives).trials:
        _show_front(manifest, state.trials)
        say(f"next: paretune pick {folder.name}, paretune ui {folder.name} ({url})")


def _show_front(manifest: Manifest, trials: Sequence[Trial]) -> None:
    from search.choice.front import front_chart, front_of, render_front

    found = front_of(trials, manifest.objectives)
    show_table(render_front(found, manifest.dimensions))
    if len(found.metrics) > 1:
        say(front_chart(found))


def standing_of(folder: SweepHome, state: LedgerState, *, running: bool | None = None) -> Standing:
    """How a sweep stands by its ledger; whether it is `running` is looked up by default."""
    from search.screens import standing
    from search.trials.ledger import Ledger

    manifest = folder.manifest()
    return standing(
        name=folder.name,
        created_at=manifest.created_at,
        running=Ledger(folder.folder).is_claimed() if running is None else running,
        num_trials=manifest.num_trials,
        trials=(*state.trials, *state.refused),
        num_unfinished=len(state.unfinished),
        exhausted=state.exhausted,
    )


def ledger_of(folder: SweepHome) -> LedgerState:
    """What was tried so far."""
    from search.trials.ledger import Ledger

    return Ledger(folder.folder).read()
