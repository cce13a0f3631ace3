from __future__ import annotations

import base64
import dataclasses
import json
import zlib

from hypothesis import given
from hypothesis import strategies as st

from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND, Goal, Metric
from search.tracking.entries import NOTE, RecordedSweep
from search.tracking.views import experiment_tags, latest_view, view_key

LOSS = Metric(name="loss", goal=Goal.MIN)
SWEEP = RecordedSweep(
    name="quick",
    sweep_id="id-1",
    objectives=(LOSS, TOKENS_PER_SECOND),
    metrics=(LOSS, TOKENS_PER_SECOND, PEAK_MEMORY),
    dimensions=("rate", "width", "precision"),
    log_dimensions=frozenset({"rate"}),
)
VIEW = "mlflow.sharedViewState.paretune-id-1"


def tags_of(sweep, before=None, now_ms=5):
    return experiment_tags(sweep, before or {}, parent_link="#/experiments/1/runs/a", now_ms=now_ms)


def state_of(tags, key=VIEW):
    packed = json.loads(tags[key])["state"]
    return json.loads(zlib.decompress(base64.b64decode(packed.removeprefix("deflate;"))))


def test_the_view_has_the_trials_of_its_sweep_alone_best_first():
    state = state_of(tags_of(SWEEP))
    assert state["searchFilter"] == (
        "tags.`paretune.sweep_id` = 'id-1' and tags.`paretune.trial` != ''"
    )
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`quality/loss`", True)
    fast = dataclasses.replace(SWEEP, objectives=(TOKENS_PER_SECOND,))
    state = state_of(tags_of(fast))
    assert state["orderByKey"] == "metrics.`speed/tokens_per_second`"
    assert state["orderByAsc"] is False


def test_the_columns_are_what_was_reached_then_what_was_tried_then_how_it_ended():
    assert state_of(tags_of(SWEEP))["selectedColumns"] == [
        "metrics.`quality/loss`",
        "metrics.`speed/tokens_per_second`",
        "metrics.`memory/peak_gib`",
        "metrics.`memory/predicted_gib`",
        "params.`rate`",
        "params.`width`",
        "params.`precision`",
        "tags.`paretune.pareto`",
        "tags.`paretune.outcome`",
        "tags.`paretune.pick`",
    ]


def test_the_charts_are_all_lines_and_every_pair_of_objectives():
    sweep = dataclasses.replace(SWEEP, objectives=(LOSS, TOKENS_PER_SECOND, PEAK_MEMORY))
    lines, *points = state_of(tags_of(sweep))["compareRunCharts"]
    assert lines["type"] == "PARALLEL"
    assert lines["selectedParams"] == ["width", "precision"]
    assert lines["selectedMetrics"] == [
        "params/log10_rate",
        "memory/peak_gib",
        "speed/tokens_per_second",
        "quality/loss",
    ]
    assert [(chart["xaxis"]["key"], chart["yaxis"]["key"]) for chart in points] == [
        ("speed/tokens_per_second", "quality/loss"),
        ("memory/peak_gib", "quality/loss"),
        ("memory/peak_gib", "speed/tokens_per_second"),
    ]


def test_a_sweep_of_one_objective_has_no_pairs():
    sweep = dataclasses.replace(SWEEP, objectives=(LOSS,))
    assert [chart["type"] for chart in state_of(tags_of(sweep))["compareRunCharts"]] == ["PARALLEL"]


@given(st.integers(0, 60), st.integers(1, 8))
def test_a_view_fits_into_a_tag(num_dimensions, num_objectives):
    sweep = dataclasses.replace(
        SWEEP,
        dimensions=tuple(f"a_rather_long_dimension_{i}" for i in range(num_dimensions)),
        objectives=tuple(
            Metric(name=f"an_objective_{i}", goal=Goal.MIN) for i in range(num_objectives)
        ),
    )
    assert len(tags_of(sweep)[VIEW]) <= 20_000  # Source: MLflow 3.17, utils/validation.py


def test_the_newest_view_of_ours_is_the_latest():
    tags = {"mlflow.sharedViewState.theirs": "deflate;x"}
    assert latest_view(tags) == ""
    tags |= tags_of(SWEEP, now_ms=7)
    tags |= tags_of(dataclasses.replace(SWEEP, sweep_id="id-2"), now_ms=6)
    assert latest_view(tags) == "paretune-id-1" == view_key(SWEEP)


def test_the_note_leads_to_the_latest_parent_unless_somebody_wrote_another():
    first = tags_of(SWEEP)[NOTE]
    assert "](#/experiments/1/runs/a)" in first
    moved = experiment_tags(SWEEP, {NOTE: first}, parent_link="#/b", now_ms=1)
    assert "](#/b)" in moved[NOTE]
    assert NOTE not in tags_of(SWEEP, {NOTE: "mine"})
