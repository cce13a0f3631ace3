import pytest
from pydantic import ValidationError

from search.metric import Goal
from search.sweep.space import Choices, Space
from search.sweep.sweep import MemorySettings, Sweep, TrialSettings

FIELDS = {
    "name": "toy",
    "objective": "toys:Toy",
    "space": {"width": [8, 16]},
    "trial": {"tokens": 1000},
    "objectives": {"error": "min"},
    "trials": 3,
}


def test_what_is_left_out_has_its_default():
    sweep = Sweep.model_validate(FIELDS)
    assert sweep.memory == MemorySettings(budget=None, gate=True, risk=0.02, device=None)
    assert sweep.trial == TrialSettings(tokens=1000, time_limit=None)
    assert (sweep.seed, sweep.stop_after_failures, sweep.description) == (0, 5, "")
    assert (sweep.resources.cpus, sweep.resources.concurrent) == (1, None)
    assert sweep.objectives == {"error": Goal.MIN}
    assert sweep.space == Space({"width": Choices((8, 16))})


def test_refusals_are_bounded_by_a_hundred_for_each_trial_unless_stated():
    assert Sweep.model_validate(FIELDS).most_refusals == 300
    assert Sweep.model_validate({**FIELDS, "refusals": 7}).most_refusals == 7


@pytest.mark.parametrize(
    ("budget", "num_bytes"), [("160 MiB", 160 * 1024**2), ("24 GB", 24 * 10**9), (2**30, 2**30)]
)
def test_a_budget_is_bytes(budget, num_bytes):
    assert MemorySettings.model_validate({"budget": budget}).budget == num_bytes


@pytest.mark.parametrize("risk", [0.02, 0.4999, 1e-6])
def test_a_risk_is_a_probability_below_one_half(risk):
    assert MemorySettings.model_validate({"risk": risk}).risk == risk


def test_rescue_is_off_and_needs_the_gate():
    assert not MemorySettings().rescue
    assert MemorySettings.model_validate({"rescue": True}).rescue
    with pytest.raises(ValidationError, match="needs the gate"):
        MemorySettings.model_validate({"rescue": True, "gate": False})


@pytest.mark.parametrize(("limit", "seconds"), [("10 min", 600), ("90 s", 90), (0.5, 0.5)])
def test_a_time_limit_is_seconds(limit, seconds):
    settings = TrialSettings.model_validate({"tokens": 1, "time_limit": limit})
    assert settings.time_limit == seconds


@pytest.mark.parametrize("tokens", [60_000, "60_000", 6e4])
def test_tokens_are_written_in_several_ways(tokens):
    assert TrialSettings.model_validate({"tokens": tokens}).tokens == 60_000


def test_a_point_goes_over_what_is_fixed_over_the_seed_over_defaults():
    fields = {**FIELDS, "seed": 7, "fixed": {"b": 2, "precision": "fp32"}}
    sweep = Sweep.model_validate(fields)
    defaults = {"a": 1, "b": 1, "c": 1, "seed": 0, "precision": "bf16-mixed"}
    assert sweep.params_of({"c": 3}, defaults) == {
        "a": 1,
        "b": 2,
        "c": 3,
        "seed": 7,
        "precision": "32-true",
    }
    assert sweep.params_of({"seed": 9}, defaults)["seed"] == 9


def test_a_sweep_comes_back_from_json():
    sweep = Sweep.model_validate({**FIELDS, "memory": {"budget": "8 GiB"}, "data": {"x": [1]}})
    assert Sweep.model_validate_json(sweep.model_dump_json()) == sweep


def test_a_sweep_cannot_be_changed():
    sweep = Sweep.model_validate(FIELDS)
    with pytest.raises(ValidationError):
        sweep.seed = 3
