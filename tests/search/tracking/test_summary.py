from __future__ import annotations

import math

from search.metric import TOKENS_PER_SECOND, Goal, Metric
from search.results import Outcome, Trial
from search.tracking.entries import RecordedSweep
from search.tracking.pages import run_link
from search.tracking.summary import Summary, front_numbers, summary_metrics, summary_note

LOSS = Metric(name="loss", goal=Goal.MIN)
SWEEP = RecordedSweep(
    name="quick",
    sweep_id="id-1",
    objectives=(LOSS, TOKENS_PER_SECOND),
    metrics=(LOSS, TOKENS_PER_SECOND),
    dimensions=("rate",),
    description="Why it was run.",
)


def trial(number, loss, speed, outcome=Outcome.COMPLETED):
    metrics = {"loss": loss, "tokens_per_second": speed}
    return Trial(number=number, params={"rate": 0.01}, outcome=outcome, metrics=metrics)


# 1 and 2 trade; 0 is beaten by 2; the rest can't be on the front.
TRIALS = (
    trial(0, 3.0, 100.0),
    trial(1, 1.0, 100.0),
    trial(2, 2.0, 200.0),
    trial(3, 0.1, 900.0, Outcome.OUT_OF_MEMORY),
    trial(4, math.nan, 900.0),
)
SUMMARY = Summary(
    sweep=SWEEP,
    trials=TRIALS,
    refused=(Trial(number=0, params={}, outcome=Outcome.PRUNED_BY_MEMORY),),
)


def test_the_front_is_of_completed_trials():
    assert front_numbers(TRIALS, SWEEP.objectives) == {1, 2}
    assert front_numbers((), SWEEP.objectives) == frozenset()


def test_counts_hypervolume_and_bests():
    # Reference: loss 3 + 0.2, speed 100 - 10. Point 1 covers 2.2 x 10, point 2 adds 1.2 x 100.
    found = summary_metrics(SUMMARY)
    assert math.isclose(found.pop("summary/hypervolume"), 22 + 120)
    assert found == {
        "counts/completed": 4,
        "counts/stopped_early": 0,
        "counts/pruned_by_memory": 1,
        "counts/out_of_memory": 1,
        "counts/diverged": 0,
        "counts/timed_out": 0,
        "counts/failed": 0,
        "summary/num_on_front": 2,
        "summary/best_loss": 1.0,
        "summary/best_tokens_per_second": 200.0,
    }


def test_a_sweep_without_results_still_counts():
    found = summary_metrics(Summary(sweep=SWEEP, trials=(), refused=()))
    assert set(found.values()) == {0.0}
    assert all(key.startswith("counts/") for key in found)


def test_the_note_tells_the_story_and_links_the_front():
    note = summary_note(SUMMARY, run_ids={1: "abc"}, experiment_id="9")
    assert note.startswith("Why it was run.\n")
    assert "5 trials (4 completed, 1 ran out of memory); 1 configurations refused" in note
    assert f"| [1]({run_link('9', 'abc')}) | 0.01 | 1 | 100 tokens/s |" in note
    assert "| 2 | 0.01 | 2 | 200 tokens/s |" in note
    assert note.index("| [1]") < note.index("| 2 |")
