from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from search.choice.front import front_chart, front_of, render_front
from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND, Goal, Metric
from search.results import Outcome, Trial
from search.units import GIB

LOSS = Metric(name="loss", goal=Goal.MIN)
PAIR = (LOSS, TOKENS_PER_SECOND)


def trial(number, loss, speed, outcome=Outcome.COMPLETED, **more):
    metrics = {"loss": loss, "tokens_per_second": speed, **more}
    return Trial(
        number=number, params={"width": 64, "rate": 0.001}, outcome=outcome, metrics=metrics
    )


def printed(renderable):
    console = Console(width=100, force_terminal=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_front_by_hand():
    # 0 and 2 trade loss for speed; 1 is slower and worse than 2.
    front = front_of([trial(0, 2.0, 900), trial(1, 1.5, 90), trial(2, 1.0, 100)], PAIR)
    assert [each.number for each in front.trials] == [2, 0]
    assert [each.number for each in front.others] == [1]


def test_only_what_completed_with_all_metrics_is_on_it():
    trials = [trial(0, 2.0, 100)]
    trials += [
        trial(1 + i, 1.0, 200, outcome)
        for i, outcome in enumerate(Outcome)
        if outcome is not Outcome.COMPLETED
    ]
    trials += [trial(20, math.nan, 300), trial(21, math.inf, 300)]
    trials += [Trial(number=22, params={}, outcome=Outcome.COMPLETED, metrics={"loss": 0.1})]
    front = front_of(trials, PAIR)
    assert [each.number for each in front.trials] == [0]
    assert front.others == ()


def test_duplicates_stay_in_the_order_of_their_numbers():
    front = front_of([trial(5, 1.0, 100), trial(3, 1.0, 100)], PAIR)
    assert [each.number for each in front.trials] == [3, 5]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=20))
def test_every_completed_trial_is_on_it_or_beaten_by_it(values):
    trials = [trial(i, float(loss), float(speed)) for i, (loss, speed) in enumerate(values)]
    front = front_of(trials, PAIR)
    assert len(front.trials) + len(front.others) == len(trials)
    for other in front.others:
        loss, speed = other.metrics["loss"], other.metrics["tokens_per_second"]
        assert any(
            each.metrics["loss"] <= loss and each.metrics["tokens_per_second"] >= speed
            for each in front.trials
        )


def test_json_is_plain_and_in_base_units():
    front = front_of([trial(4, 1.0, 100, peak_memory=float(GIB))], (*PAIR, PEAK_MEMORY))
    found = json.loads(json.dumps(front.to_json()))
    assert found["num_completed"] == 1
    assert found["metrics"][2] == {"name": "peak_memory", "goal": "min", "unit": "B"}
    assert found["trials"][0]["trial"] == 4
    assert found["trials"][0]["metrics"]["peak_memory"] == GIB


def test_the_table_shows_units_goals_and_searched_dimensions():
    front = front_of([trial(4, 1.0, 12345, peak_memory=2.5 * GIB)], (*PAIR, PEAK_MEMORY))
    text = printed(render_front(front, ("rate",)))
    for part in ("loss ↓", "tokens_per ", "_second ↑", "12,345", "2.5 GiB", "rate", "0.001"):
        assert part in text
    assert "width" not in text


def test_the_chart_places_the_ends_in_its_corners():
    # Loss up, speed across: the worst and fastest is top right, the best and slowest bottom left.
    front = front_of([trial(0, 2.0, 900), trial(1, 1.0, 100)], PAIR)
    lines = front_chart(front, width=20, height=5).splitlines()
    assert lines[0].startswith("2 │")
    assert lines[0].endswith("●")
    assert lines[4] == "1 │●"
    assert "100 tokens/s" in lines[6]
    assert lines[6].endswith("900 tokens/s")


def test_the_chart_marks_what_is_beaten_and_says_when_an_axis_is_logarithmic():
    front = front_of([trial(0, 1.0, 9000), trial(1, 2.0, 10)], PAIR)
    chart = front_chart(front, width=20, height=5)
    assert chart.count("●") == 2  # the front's one point, and the legend
    assert chart.count("·") == 2
    assert "tokens_per_second ↑ (log scale)" in chart


def test_no_chart_without_two_metrics_or_without_trials():
    assert front_chart(front_of([trial(0, 1.0, 1.0)], (LOSS,))) == ""
    assert front_chart(front_of([], PAIR)) == ""


def test_one_point_alone_can_be_drawn():
    assert front_chart(front_of([trial(0, 1.0, 1.0)], PAIR)).count("●") == 2
