import pytest
from rich.console import Console

from search.memory.feasibility import DoesNotFit, Fits
from search.memory.mend import Keeps, Mend
from search.plan import Plan, PlannedPoint, Unpredicted
from search.results import Outcome, PredictedMemory, Trial
from search.screens import plan_faults, plan_table, standing
from search.units import MIB


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


def test_what_cannot_be_predicted_is_a_line_a_reason():
    plan = Plan(
        points=(),
        unpredicted=(
            Unpredicted(point={"width": 4, "how": "a"}, reason="ValueError: no"),
            Unpredicted(point={"width": 8, "how": "a"}, reason="KeyError: 'b'"),
            Unpredicted(point={"width": 8, "how": "b"}, reason="ValueError: no"),
        ),
        budget_bytes=1000,
        complete=True,
    )
    assert plan_faults(plan).splitlines() == [
        "cannot be predicted at width 4, how a and 1 more: ValueError: no",
        "cannot be predicted at width 8, how a: KeyError: 'b'",
    ]


def test_why_structures_were_traced_point_by_point_is_said():
    plan = Plan(
        points=(), point_by_point=("no polynomial gives ...",), budget_bytes=1, complete=True
    )
    assert plan_faults(plan) == "traced point by point: no polynomial gives ..."


def _predicted(num_mib):
    sizes = dict.fromkeys(("expected_bytes", "low_bytes", "high_bytes"), num_mib * MIB)
    return PredictedMemory(**sizes, phase="step_2", parts={"activations": num_mib * MIB})


def _refused(batch_size, mend=None):
    verdict = DoesNotFit(
        params={"batch_size": batch_size},
        predicted=_predicted(batch_size),
        budget_bytes=10 * MIB,
        excess_bytes=(batch_size - 10) * MIB,
        reason="",
    )
    return PlannedPoint(point={"batch_size": batch_size}, verdict=verdict, mend=mend)


def _lines(*points):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(plan_table(Plan(points=points, budget_bytes=10 * MIB, complete=True)))
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_a_plan_shows_what_would_make_the_rest_fit():
    mend = Mend(
        name="activation_checkpointing",
        value=True,
        keeps=Keeps.RESULT,
        params={},
        predicted=_predicted(7),
        slow_down=1.305,
    )
    fitting, rescued = (
        PlannedPoint(
            point={"batch_size": size},
            verdict=Fits(params={}, predicted=_predicted(size), rescued=said),
        )
        for size, said in ((4, ""), (9, "micro_batch_size 2"))
    )
    would_fit = "activation_checkpointing true: 7 MiB, ~1.30 x the time"
    assert _lines(fitting, rescued, _refused(16, mend), _refused(64))[1:] == [
        "batch_size peak fits decided by would fit with",
        "4 4 MiB yes activations, step 2",
        "9 9 MiB micro_batch_size 2 activations, step 2",
        f"16 16 MiB 6 MiB over activations, step 2 {would_fit}",
        "64 64 MiB 54 MiB over activations, step 2 no single change",
    ]


def test_a_plan_without_mends_has_no_column_for_them():
    assert "would fit with" not in " ".join(_lines(_refused(16)))
