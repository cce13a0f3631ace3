from dataclasses import replace

import pytest
from tiny_sweep import BUDGET_BYTES, fits_up_to, tiny_sweep, trial

from search.errors import MachineError
from search.results import Outcome
from search.trials.attempt import Progress
from search.trials.bookkeeping import Bookkeeper, no_figures
from search.trials.death import Death
from search.trials.events import (
    SpaceExhausted,
    TrialFinished,
    TrialProgress,
    TrialRefused,
    TrialStarted,
)
from search.trials.gate import Gate
from search.trials.ledger import Ledger

KILLED = Death(message="the worker process died", is_out_of_memory=False)


class Office:
    """A bookkeeper with a ledger on disk and a list of what it told."""

    def __init__(self, folder, sweep, fits=None, derived=no_figures):
        self.ledger, self.events, self.recorded = Ledger(folder), [], []
        self.claim = self.ledger.claim()
        self.claim.__enter__()
        self.books = Bookkeeper(
            sweep=sweep,
            ledger=self.ledger,
            on_event=self.hear,
            derived=derived,
            gate=lambda history, on_refused: Gate(
                sweep=sweep,
                fits=fits or fits_up_to(10**9),
                params_of=dict,
                budget_bytes=BUDGET_BYTES,
                history=history,
                on_refused=on_refused,
            ),
        )

    def hear(self, event):
        self.events.append(event)
        self.recorded.append(self.ledger.read())

    def finish(self, started, outcome=Outcome.COMPLETED, message=""):
        self.books.finished(trial(started.number, started.params, outcome, message=message))

    def close(self):
        self.claim.__exit__(None, None, None)


@pytest.fixture
def office(tmp_path):
    opened = []

    def make(sweep, fits=None, derived=no_figures):
        opened.append(Office(tmp_path, sweep, fits, derived))
        return opened[-1]

    yield make
    opened[-1].close()


def test_everything_is_on_record_before_it_is_told(office):
    here = office(tiny_sweep(), fits_up_to(2))
    while (started := here.books.next()) is not None:
        here.finish(started)
    for event, state in zip(here.events, here.recorded, strict=True):
        if isinstance(event, TrialStarted):
            assert event.number in state.launched
        elif isinstance(event, TrialFinished):
            assert event.trial in state.trials
        elif isinstance(event, TrialRefused):
            assert event.trial in state.refused
    kinds = {type(event) for event in here.events}
    assert kinds == {TrialStarted, TrialFinished, TrialRefused, SpaceExhausted}


def test_a_finished_trial_carries_its_prediction(office):
    here = office(tiny_sweep())
    started = here.books.next()
    here.finish(started)
    assert here.events[-1].trial.predicted == started.predicted is not None


def test_what_follows_from_a_completed_trial_is_on_its_record(office):
    here = office(tiny_sweep(trials=2), derived=lambda trial: {"cost": 2.0 * trial.number + 1})
    here.finish(here.books.next())
    here.finish(here.books.next(), Outcome.DIVERGED)
    completed, diverged = here.ledger.read().trials
    assert completed.metrics["cost"] == 1.0
    assert "cost" not in diverged.metrics


def test_a_completed_trial_without_an_objective_has_failed(office):
    here = office(tiny_sweep(trials=1, objectives={"mfu": "max"}))
    here.finish(here.books.next())
    (failed,) = here.ledger.read().trials
    assert failed.outcome is Outcome.FAILED
    assert failed.message.startswith("it has no mfu (it has ")


def test_a_finished_trial_says_what_was_changed_to_make_it_fit(office):
    def fits(params):
        verdict = fits_up_to(10**9)(params)
        return replace(verdict, rescued="micro_batch_size 4")

    here = office(tiny_sweep(), fits)
    here.finish(here.books.next())
    ended = here.events[-1].trial
    assert ended.details["rescued"] == "micro_batch_size 4"
    assert here.ledger.read().trials == (ended,)


def test_only_trained_trials_count(office):
    here = office(tiny_sweep(trials=3))
    ends = (Outcome.COMPLETED, Outcome.FAILED, Outcome.DIVERGED, Outcome.OUT_OF_MEMORY)
    for outcome in ends:
        assert not here.books.over
        here.finish(here.books.next(), outcome)
    assert here.books.next() is None
    assert here.books.over


def test_never_more_in_flight_than_are_wanted(office):
    here = office(tiny_sweep(trials=2))
    running = [here.books.next(), here.books.next()]
    assert here.books.next() is None
    assert not here.books.over
    here.finish(running[0], Outcome.FAILED)
    assert here.books.next().number == 2


def test_progress_is_passed_on(office):
    here = office(tiny_sweep())
    started = here.books.next()
    here.books.progress(started.number, Progress(tokens_seen=8, loss=1.5))
    assert here.events[-1] == TrialProgress(number=started.number, tokens_seen=8, loss=1.5)


def test_a_trial_whose_process_died_is_started_once_more(office):
    here = office(tiny_sweep())
    first = here.books.next()
    here.books.died(first.number, KILLED)
    assert here.books.next() == first
    here.books.died(first.number, KILLED)
    ended = here.events[-1].trial
    assert (ended.number, ended.outcome) == (first.number, Outcome.FAILED)
    assert ended.message == "the worker process died (in 2 attempts)"
    assert here.books.next().number == 1


def test_a_trial_that_dies_of_memory_is_out_of_memory(office):
    here = office(tiny_sweep())
    first = here.books.next()
    for _ in range(2):
        here.books.died(first.number, Death(message="refused memory", is_out_of_memory=True))
        here.books.next()
    assert here.ledger.read().trials[0].outcome is Outcome.OUT_OF_MEMORY


def test_retired_workers_do_not_count_as_deaths(office):
    here = office(tiny_sweep())
    first = here.books.next()
    for _ in range(5):
        here.books.again(first.number)
        assert here.books.next() == first
    here.finish(first)


def test_failures_of_one_kind_without_a_success_end_the_sweep(office):
    here = office(tiny_sweep(trials=8, stop_after_failures=2))
    ends = (Outcome.DIVERGED, Outcome.COMPLETED, Outcome.DIVERGED, Outcome.FAILED)
    for outcome in ends:
        here.finish(here.books.next(), outcome)
    assert here.books.error is None
    here.finish(here.books.next(), Outcome.DIVERGED, "the loss was nan")
    assert here.books.given_up
    assert here.books.over
    assert here.books.next() is None
    assert "2 trials diverged with none completed in between" in str(here.books.error)
    assert str(here.books.error).endswith("trial 4:\nthe loss was nan")
    assert len(here.ledger.read().trials) == 5


def test_resumes_with_what_was_unfinished_under_its_old_number(office):
    here = office(tiny_sweep(trials=4))
    first, second = here.books.next(), here.books.next()
    here.finish(first)
    here.close()
    again = office(tiny_sweep(trials=4))
    assert again.books.next() == second
    assert again.books.next().number == 2


def test_a_finished_sweep_is_over_when_it_is_resumed(office):
    here = office(tiny_sweep(trials=1))
    here.finish(here.books.next())
    here.close()
    again = office(tiny_sweep(trials=1))
    assert again.books.over
    assert again.books.next() is None


def test_knows_before_anything_starts_that_nothing_is_left(office):
    here = office(tiny_sweep(), fits_up_to(1))
    assert here.books.ready()
    assert not any(isinstance(event, TrialStarted) for event in here.events)
    first = here.books.next()
    assert here.ledger.read().unfinished == (first,)
    here.finish(first)
    here.finish(here.books.next())
    assert not here.books.ready()
    assert here.books.over


def test_when_nothing_fits_what_runs_is_waited_for(office):
    here = office(tiny_sweep(refusals=1), fits_up_to(1))
    running = []
    while (started := here.books.next()) is not None:
        running.append(started)
    assert here.books.error is not None
    assert not here.books.given_up
    assert here.books.over == (not running)


def test_a_trial_without_a_place_waits_while_others_go_on(office):
    here = office(tiny_sweep(trials=2))
    first, second = here.books.next(), here.books.next()
    for _ in range(20):
        here.books.unplaced(second.number, "no cores")
        assert here.books.next() == second
        here.books.progress(first.number, Progress(tokens_seen=8, loss=1.5))
    assert here.ledger.read().unfinished == (first, second)


def test_where_nobody_finds_a_place_the_sweep_ends_and_no_trial_is_lost(office):
    here = office(tiny_sweep(trials=1))
    started = here.books.next()
    for _ in range(3):
        here.books.unplaced(started.number, "no cores")
        assert here.books.next() == started
    with pytest.raises(MachineError, match="no cores"):
        here.books.unplaced(started.number, "no cores")
    assert here.books.given_up
    assert here.ledger.read().unfinished == (started,)


def test_that_the_space_is_used_up_is_on_record(office):
    here = office(tiny_sweep(trials=20))
    assert not here.ledger.read().exhausted
    while (started := here.books.next()) is not None:
        here.finish(started)
    assert here.ledger.read().exhausted
