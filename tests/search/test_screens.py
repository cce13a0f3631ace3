import pytest

from search.results import Outcome, Trial
from search.screens import standing


def stands(*outcomes, num_trials=3, running=False, num_unfinished=0, exhausted=False):
    return standing(
        name="lm",
        created_at="2026-01-02T03:04:05+00:00",
        running=running,
        num_trials=num_trials,
        trials=[Trial(number=0, params={}, outcome=outcome) for outcome in outcomes],
        num_unfinished=num_unfinished,
        exhausted=exhausted,
    )


COMPLETED, FAILED, PRUNED = Outcome.COMPLETED, Outcome.FAILED, Outcome.PRUNED_BY_MEMORY


@pytest.mark.parametrize(
    ("outcomes", "more", "state", "num_done"),
    [
        ([COMPLETED] * 3, {}, "finished", 3),
        ([COMPLETED, Outcome.DIVERGED, Outcome.OUT_OF_MEMORY], {}, "finished", 3),
        # a failed trial is tried in place of: three trained ones were asked for
        ([COMPLETED, COMPLETED, FAILED, PRUNED], {}, "interrupted", 2),
        ([COMPLETED, COMPLETED, FAILED, PRUNED], {"exhausted": True}, "finished", 2),
        ([COMPLETED], {"exhausted": True, "num_unfinished": 1}, "interrupted", 1),
        ([COMPLETED], {"running": True}, "running", 1),
    ],
)
def test_how_a_sweep_stands(outcomes, more, state, num_done):
    found = stands(*outcomes, **more)
    assert (found.state, found.num_done) == (state, num_done)


def test_a_line_names_what_failed():
    assert stands(COMPLETED, FAILED, PRUNED, exhausted=True).line == (
        "finished, 1 of 3 trials: 1 completed, 1 pruned by memory, 0 out of memory, 1 failed"
    )
