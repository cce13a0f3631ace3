import re
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.errors import InputError, MachineError, UnpredictableError
from search.memory.feasibility import DoesNotFit, Fits
from search.memory.mend import Keeps, Mend
from search.plan import MAX_POINTS, plan, structure_points
from search.results import PredictedMemory
from search.sweep.space import Choices, FloatRange, IntRange, Space

BUDGET_BYTES = 1000


def judged(params):
    """A model that needs 10 bytes a sample."""
    needed = 10 * params["batch_size"]
    predicted = PredictedMemory(
        expected_bytes=needed,
        low_bytes=needed,
        high_bytes=needed,
        phase="step_2",
        parts={"a": needed},
    )
    if needed <= BUDGET_BYTES:
        return Fits(params=params, predicted=predicted)
    return DoesNotFit(
        params=params,
        predicted=predicted,
        budget_bytes=BUDGET_BYTES,
        excess_bytes=needed - BUDGET_BYTES,
        reason="too large",
    )


def planned(space, fits=judged, on_point=lambda _done, _total: None, **others):
    return plan(
        space,
        params_of=lambda point: {"batch_size": 1, "micro_batch_size": 1, **point},
        fits=fits,
        budget_bytes=BUDGET_BYTES,
        on_point=on_point,
        **others,
    )


def test_the_share_that_fits_counts_structures():
    # 50 and 100 samples need 500 and 1000 bytes of 1000; 101 and 200 need more
    found = planned(Space({"batch_size": Choices((50, 100, 101, 200))}))
    assert [point.fits for point in found.points] == [True, True, False, False]
    assert [point.excess_bytes for point in found.points] == [0, 0, 10, 1000]
    assert found.share_that_fits == 0.5
    assert found.complete


def test_what_cannot_be_predicted_is_told_beside_the_rest():
    def fits(params):
        if params["batch_size"] == 101:
            msg = "the model went wrong\nat length"
            raise ValueError(msg)
        if params["batch_size"] == 200:
            sys.exit(3)
        return judged(params)

    done = []
    space = Space({"batch_size": Choices((50, 100, 101, 200))})
    found = planned(space, fits, on_point=lambda *counts: done.append(counts))
    assert [point.point["batch_size"] for point in found.points] == [50, 100]
    assert found.share_that_fits == 1
    assert done == [(1, 4), (2, 4), (3, 4), (4, 4)]
    first, second = found.unpredicted
    assert first.point == {"batch_size": 101}
    assert re.fullmatch(
        r"ValueError: the model went wrong \(test_plan.py, line \d+\)", first.reason
    )
    assert second.reason.startswith("SystemExit: 3 (test_plan.py, line ")
    assert [row["point"]["batch_size"] for row in found.to_json()["unpredicted"]] == [101, 200]


@pytest.mark.parametrize("kind", [UnpredictableError, InputError])
def test_what_would_be_predicted_wrongly_or_cannot_be_trained_is_told_apart(kind):
    def fits(params):
        if params["batch_size"] == 2:
            msg = "the model is compiled"
            raise kind(msg)
        return judged(params)

    found = planned(Space({"batch_size": Choices((1, 2))}), fits)
    assert [point.point["batch_size"] for point in found.points] == [1]
    (refused,) = found.unpredicted
    assert (refused.reason, refused.is_refused) == ("the model is compiled", True)


def test_a_machine_that_cannot_measure_ends_the_plan():
    def fits(_params):
        raise MachineError

    with pytest.raises(MachineError):
        planned(Space({"batch_size": Choices((1, 2))}), fits)


def test_where_nothing_can_be_predicted_nothing_is_known_to_fit():
    def fits(_params):
        raise ValueError

    found = planned(Space({"batch_size": Choices((1, 2))}), fits)
    assert (found.points, found.share_that_fits) == ((), 0)


def test_dimensions_that_change_no_tensor_are_left_out():
    space = Space(
        {"learning_rate": FloatRange(low=1e-4, high=1e-2, log=True), "batch_size": Choices((1, 2))}
    )
    points, complete = structure_points(space)
    assert points == [{"batch_size": 1}, {"batch_size": 2}]
    assert complete


def test_a_continuous_range_stands_for_its_ends_and_three_between():
    points, complete = structure_points(Space({"dropout": FloatRange(low=0.0, high=0.4)}))
    assert [point["dropout"] for point in points] == [0.0, 0.1, 0.2, 0.30000000000000004, 0.4]
    assert not complete


def test_a_large_space_is_judged_by_a_spread_of_its_points():
    space = Space({"width": IntRange(low=1, high=5000), "depth": IntRange(low=1, high=3)})
    points, complete = structure_points(space)
    assert len(points) == MAX_POINTS
    assert len({tuple(point.items()) for point in points}) == MAX_POINTS
    assert not complete
    assert structure_points(space)[0] == points


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_small_space_is_judged_whole(sizes):
    space = Space(
        {f"dimension_{index}": IntRange(low=0, high=size) for index, size in enumerate(sizes)}
    )
    points, complete = structure_points(space)
    assert complete or len(points) == MAX_POINTS
    if complete:
        assert points == list(space.points())


def test_a_dimension_that_memory_only_asks_for_zero_has_two_values():
    space = Space(
        {"weight_decay": FloatRange(low=0.0, high=0.1), "clip_norm": Choices((0.5, 1.0, 2.0))}
    )
    points, complete = structure_points(space)
    assert points == [
        {"weight_decay": 0.0, "clip_norm": 0.5},
        {"weight_decay": 0.025, "clip_norm": 0.5},
    ]
    assert complete


def mended(refused):
    """Half the batch at a time; nothing for 200 samples."""
    if refused.params["batch_size"] == 200:
        return None
    params = {**refused.params, "micro_batch_size": 50}
    return Mend(
        name="micro_batch_size",
        value=50,
        keeps=Keeps.RESULT,
        params=params,
        predicted=judged({**params, "batch_size": 50}).predicted,
        slow_down=1.25,
    )


def test_what_does_not_fit_is_told_with_the_change_that_would_make_it_fit():
    space = Space({"batch_size": Choices((50, 101, 200))})
    found = planned(space, mend=mended)
    assert [point.mend and point.mend.value for point in found.points] == [None, 50, None]
    rows = found.to_json()["points"]
    assert [row["mend"] for row in rows] == [
        None,
        {
            "change": {"micro_batch_size": 50},
            "predicted_bytes": 500,
            "high_bytes": 500,
            "estimated_slow_down": 1.25,
        },
        None,
    ]


def test_no_change_is_looked_for_unless_it_is_asked_for():
    found = planned(Space({"batch_size": Choices((50, 101))}))
    assert [point.mend for point in found.points] == [None, None]


def test_what_was_rescued_fits_and_says_how():
    def rescuing(params):
        verdict = judged({**params, "batch_size": 1})
        return replace(verdict, rescued="micro_batch_size 1" if params["batch_size"] > 100 else "")

    found = planned(Space({"batch_size": Choices((50, 101))}), rescuing)
    assert [point.rescued for point in found.points] == ["", "micro_batch_size 1"]
    assert [row["rescued"] for row in found.to_json()["points"]] == ["", "micro_batch_size 1"]
    assert found.share_that_fits == 1
