# ruff: noqa: ISC004 - in a list of messages each spans as many lines as it needs
"""Sweep files about what trains by itself."""

import sys
from types import ModuleType

import pytest

from search.metric import Goal, Metric
from search.objective import Untraced


def train(params, report): ...


def lonely(params): ...


@pytest.fixture(autouse=True)
def _mine(monkeypatch):
    module = ModuleType("mine")
    module.__dict__.update(train=train, lonely=lonely)
    monkeypatch.setitem(sys.modules, "mine", module)


FUNCTION = {
    "objective": "mine:train",
    "space": "{rate: [1, 2], precision: [fp16, fp32], batch: {low: 8, high: 64}}",
    "objectives": "{score: max, peak_memory: min}",
    "trial": None,
}
COMMAND = {
    **FUNCTION,
    "objective": None,
    "command": "echo {rate} {precision} {batch} {seed}",
}


def test_a_function_needs_no_tokens_and_any_dimensions(load):
    loaded = load(**FUNCTION, fixed="{depth: 3}", seed="7")
    assert loaded.objective == Untraced(
        named="mine:train",
        metrics=(Metric(name="score", goal=Goal.MAX),),
        provenance={"function": "mine:train"},
    )
    assert loaded.sweep.trial.tokens is None
    point = {"rate": 1, "precision": "fp32", "batch": 8}
    assert loaded.params_of(point) == {"seed": 7, "depth": 3, **point}


def test_a_command_takes_the_place_of_an_objective(load):
    loaded = load(**{**COMMAND, "memory": "{grows_with: [batch]}", "trial": "{tokens: 100}"})
    assert loaded.objective.named == COMMAND["command"]
    assert loaded.sweep.objective is None
    assert loaded.sweep.memory.grows_with == ("batch",)
    assert loaded.sweep.trained == COMMAND["command"]


def test_a_function_of_other_arguments_is_told(faults):
    (told,) = faults(objective="mine:lonely")
    assert told.startswith("objective: 'mine:lonely' is no objective")
    assert told.endswith("nor is it a function of two, (params, report)")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"data": "{corpus: x}"}, "data: is handed to objectives alone"),
        ({"fixed": "{batch: 8}"}, "fixed.batch: is searched in 'space' too"),
        ({"objectives": "{score: max, peak_memory: max}"}, "objectives.peak_memory: must be min"),
        ({"memory": "{rescue: true}"}, "memory.rescue: changes the training step"),
        (
            {"memory": "{grows_with: [bacth]}"},
            "memory.grows_with: 'bacth' is not a known dimension (did you mean 'batch'?)",
        ),
        (
            {"memory": "{grows_with: [precision]}"},
            "memory.grows_with: precision must be a number from 0 in all trials, found 'fp16' "
            "(leave precision out)",
        ),
        (
            {"memory": "{grows_with: [batch]}", "space": "{batch: {low: -1, high: 4}}"},
            "memory.grows_with: batch must be a number from 0 in all trials, found -1",
        ),
        ({"memory": "{grows_with: batch}"}, "memory.grows_with: must be a list, found 'batch'"),
        ({"trial": "{tokens: 0}"}, "trial.tokens: must be at least 1, found 0"),
    ],
)
def test_what_does_not_go_with_a_function_is_told(faults, fields, told):
    (found,) = faults(**{**FUNCTION, **fields})
    assert found.startswith(told)


def test_what_is_wrong_with_a_command_is_told_with_the_rest(faults):
    told = faults(**{**COMMAND, "command": "echo {rat}"}, trials="0")
    assert "command: 'rat' is not a known dimension (did you mean 'rate'?)" in told
    assert "space.batch: is not in the command, so it would change nothing" in " ".join(told)
    assert "trials: must be at least 1, found 0" in told


def test_what_only_the_untraced_may_have_is_told_of_an_objective(faults):
    assert faults(command="echo") == [
        "command: is given beside an objective (leave one of the two out)"
    ]
    assert faults(memory="{grows_with: [width]}") == [
        "memory.grows_with: is for a function or a command: the memory of an objective is "
        "predicted (leave it out)"
    ]


def test_without_either_an_objective_is_asked_for(faults):
    assert faults(objective=None, trial=None) == [
        "objective: must be given (such as `objective: objectives.language_model:LanguageModel`)",
        "trial: must be given (such as `trial: {tokens: 60000}`)",
    ]
