import io

from rich.console import Console

from search.metric import PEAK_MEMORY, Goal, Metric
from search.progress import SweepProgress
from search.results import Outcome, PredictedMemory, Trial
from search.trials.events import (
    SpaceExhausted,
    TrialFinished,
    TrialProgress,
    TrialRefused,
    TrialStarted,
)

LOSS = Metric(name="bits_per_byte", goal=Goal.MIN)
MIB = 2**20


def trial(number, outcome=Outcome.COMPLETED, *, loss=4.0, message=""):
    metrics = {"bits_per_byte": loss, "peak_memory": 10.0 * MIB}
    return Trial(
        number=number,
        params={"width": 64, "rate": 0.001},
        outcome=outcome,
        metrics=metrics if outcome is Outcome.COMPLETED else {},
        predicted=PredictedMemory(
            expected_bytes=11 * MIB, low_bytes=0, high_bytes=0, phase="step_2"
        ),
        message=message,
    )


def shown(events, *, terminal=False, before=()):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    progress = SweepProgress(
        console, num_trials=3, metrics=(LOSS, PEAK_MEMORY), dimensions=("width", "rate")
    )
    progress.seed(before, ())
    with progress:
        for event in events:
            progress(event)
        view = Console(file=io.StringIO(), width=100, color_system=None)
        view.print(progress.view())
    return out.getvalue(), view.file.getvalue()


def test_each_trial_that_ends_is_one_plain_line():
    lines, _ = shown(
        [
            TrialStarted(number=0, params={}, predicted=None),
            TrialProgress(number=0, tokens_seen=10, loss=5.0),
            TrialFinished(trial=trial(0, loss=3.5)),
            TrialRefused(
                trial=trial(
                    0,
                    Outcome.PRUNED_BY_MEMORY,
                    message="needs up to 9 MiB, 8 MiB is available; step_2",
                )
            ),
            TrialFinished(trial=trial(1, Outcome.FAILED, message="Traceback\n  x\nValueError: no")),
        ]
    )
    assert lines.splitlines() == [
        "[1/3] trial 0 completed: bits_per_byte 3.5, peak_memory 10 MiB, predicted 11 MiB",
        "refused width 64, rate 0.001: needs up to 9 MiB, 8 MiB is available",
        "[1/3] trial 1 failed: predicted 11 MiB, ValueError: no",
    ]


def test_the_live_view_counts_outcomes_and_names_the_best_of_each():
    _, view = shown(
        [
            TrialStarted(number=2, params={}, predicted=None),
            TrialFinished(trial=trial(0, loss=4.0)),
            TrialFinished(trial=trial(1, loss=3.0)),
            TrialRefused(trial=trial(0, Outcome.PRUNED_BY_MEMORY)),
            TrialFinished(trial=trial(3, Outcome.OUT_OF_MEMORY)),
        ]
    )
    assert "running 1 · completed 2 · pruned by memory 1 · out of memory 1" in view
    assert "3/3" in view
    assert "best bits_per_byte  3" in view
    assert "trial 1" in view
    assert "hypervolume" in view
    assert "elapsed" in view


def test_what_was_done_before_a_resume_counts():
    _, view = shown([], before=(trial(0), trial(1)))
    assert "2/3" in view
    assert "completed 2" in view
    assert "to go" not in view


def test_an_exhausted_space_is_told():
    lines, _ = shown([SpaceExhausted(message="all 4 points of the space were tried")])
    assert "all 4 points of the space were tried" in lines


def test_the_live_view_goes_away_and_the_lines_stay():
    lines, _ = shown([TrialFinished(trial=trial(0))], terminal=True)
    assert "[1/3] trial 0 completed" in lines
