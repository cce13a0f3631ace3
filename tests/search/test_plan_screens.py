from dataclasses import replace

import pytest

from search.comparison import Compared, Comparison
from search.memory.feasibility import DoesNotFit, Fits
from search.memory.mend import Keeps, Mend
from search.memory.speed import Ranked, Speed
from search.plan import Plan, PlannedPoint, Unpredicted
from search.plan_screens import (
    comparison_summary,
    comparison_table,
    explained_speeds,
    plan_faults,
    plan_refusals,
    plan_table,
    speed_range,
)
from search.results import PredictedMemory
from search.units import GIB, MIB


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


def test_what_would_be_predicted_wrongly_is_no_fault_but_a_refusal():
    plan = Plan(
        points=(),
        unpredicted=(
            Unpredicted(point={"width": 4}, reason="ValueError: no"),
            Unpredicted(point={"width": 8}, reason="the model is compiled", is_refused=True),
        ),
        budget_bytes=1000,
        complete=True,
    )
    assert plan_faults(plan) == "cannot be predicted at width 4: ValueError: no"
    assert plan_refusals(plan) == "cannot be predicted at width 8: the model is compiled"


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


MEND = Mend(
    name="activation_checkpointing",
    value=True,
    keeps=Keeps.RESULT,
    params={},
    predicted=_predicted(7),
    slow_down=1.305,
)
SPEED = Speed(
    low_tokens_per_second=949.0,
    expected_tokens_per_second=3_000.0,
    high_tokens_per_second=9_860.0,
)


def _fitting(batch_size, **changes):
    verdict = Fits(params={}, predicted=_predicted(batch_size), rescued=changes.pop("rescued", ""))
    return PlannedPoint(point={"batch_size": batch_size}, verdict=verdict, **changes)


def _lines(*points, budget_bytes=10 * MIB):
    return plan_table(Plan(points=points, budget_bytes=budget_bytes, complete=True)).plain.split(
        "\n"
    )


def test_a_plan_shows_the_largest_that_fits_and_what_would_make_the_rest_fit():
    rescued = _fitting(9, rescued="micro_batch_size 2")
    assert _lines(_fitting(4), rescued, _refused(16, MEND), _refused(64)) == [
        "largest  peak  headroom",
        "fits     MiB   MiB       decided by",
        "9        9     1         activations, step 2",
        "  fits as rescued: micro_batch_size 2",
        "  16 takes 16 MiB; with activation_checkpointing true 7 MiB, ~1.30 x the time",
        "  64 takes 64 MiB; no single change makes it fit",
    ]


def test_each_structure_has_a_row():
    short, long, longer = (
        replace(point, point={**point.point, "sequence_length": length})
        for point, length in ((_fitting(4), 32), (_fitting(2), 64), (_refused(16), 128))
    )
    assert _lines(longer, short, long)[2:] == [
        "64        2        2     8         activations, step 2",
        "32        4        4     6         activations, step 2",
        "128       none     16    -6        activations, step 2",
    ]


def test_a_micro_batch_is_shown_as_part_of_its_step():
    accumulated = _fitting(8)
    cut = replace(accumulated.verdict, params={"batch_size": 8, "micro_batch_size": 2})
    assert _lines(replace(accumulated, verdict=cut))[2].startswith("2 of 8")


def test_where_no_mend_was_looked_for_none_is_missing():
    assert len(_lines(_refused(16))) == 3


def test_estimated_speeds_are_ranges_under_their_own_name():
    head, name, slow, _ = _lines(_fitting(4, speed=SPEED), _refused(16))
    assert (head[-9:], name[-8:]) == ("estimated", "tokens/s")
    assert slow.endswith("step 2  950-9.9k")


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.1234, 12.34, "0.12-12"),
        (949.0, 996.0, "950-1k"),  # two figures of 996 are 1,000
        (12_345.0, 123_456.0, "12k-120k"),
        (999_999.0, 2.55e9, "1M-2.5G"),
    ],
)
def test_a_range_has_two_figures(low, high, shown):
    speed = Speed(
        low_tokens_per_second=low, expected_tokens_per_second=low, high_tokens_per_second=high
    )
    assert speed_range(speed) == shown


def test_what_fits_by_giving_cached_memory_back_has_nothing_left():
    assert _lines(_fitting(12))[2].split()[:3] == ["12", "12", "0"]


def test_gib_are_the_unit_of_a_large_budget():
    assert _lines(_fitting(512), budget_bytes=2 * GIB)[1:] == [
        "fits     GiB   GiB       decided by",
        "512      0.5   1.5       activations, step 2",
    ]


def test_a_space_of_three_dimensions_goes_into_80_letters():
    names = {"batch_size": 128, "sequence_length": 2048, "precision": "bf16-mixed"}
    refused = replace(_refused(64, MEND), point=names)
    fitting = replace(_fitting(4, speed=SPEED), point=names)
    assert max(map(len, _lines(fitting, refused))) <= 80


def test_a_correction_is_counted():
    assert explained_speeds(0).endswith("corrected by no measured trial of this device yet")
    assert explained_speeds(1).endswith("corrected by 1 measured trial of this device")


def _row(name, *, fits=True, **changes):
    largest = Fits(params={"batch_size": 64, "micro_batch_size": 8}, predicted=_predicted(4))
    values = {"budget_bytes": 24 * GIB, "share_that_fits": 0.5, "price_per_hour": None}
    return Compared(
        name=name,
        **{
            **values,
            "largest": largest if fits else None,
            "speed": SPEED if fits else None,
            **changes,
        },
    )


COST = Ranked(name="A", low_cost=0.0513, expected_cost=0.2, high_cost=0.8149)


def _compared(*rows):
    return Comparison(reference={"batch_size": 64, "precision": "32-true"}, rows=rows)


def test_devices_stand_side_by_side():
    priced = _row("A", price_per_hour=0.5, cost=COST)
    found = _compared(priced, _row("B", budget_bytes=12 * GIB), _row("C", fits=False))
    assert comparison_table(found).plain.split("\n") == [
        "                share                estimated  price    ~cost of",
        "device  memory  fits   micro-batch   tokens/s   an hour  1M tokens",
        "A       24 GiB  50%    8 of 64       950-9.9k   0.5      0.051-0.81",
        "B       12 GiB  50%    8 of 64       950-9.9k",
        "C       24 GiB  50%    does not fit",
    ]
    assert comparison_summary(found).split("\n") == [
        "compared at batch_size 64, precision 32-true",
        "the largest of the space that fits on any of them, in micro-batches where need be",
        "smallest that fits: B",
        "cheapest that fits, as estimated: A",
        "speeds and costs are estimates, nothing measured; memory is all that each device has",
    ]


def test_without_prices_nothing_is_said_of_cost():
    found = _compared(_row("A", num_measured=3))
    assert "cost" not in comparison_table(found).plain
    assert "cheapest" not in comparison_summary(found)
    assert "corrected by measured trials (3 on A)" in comparison_summary(found)


def test_where_nothing_fits_nothing_is_compared():
    found = Comparison(reference=None, rows=(_row("A", fits=False),))
    assert comparison_summary(found).startswith("nothing of the space fits on any")
