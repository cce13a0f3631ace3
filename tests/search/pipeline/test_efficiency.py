from functools import partial
from types import SimpleNamespace

import pytest

from search.errors import InputError
from search.memory import energy
from search.memory.catalogue import device_named
from search.memory.device import Device, device_here
from search.memory.energy import Counter, EnergyMeter
from search.memory.prediction import Predictor
from search.memory.sample import Sample
from search.pipeline.efficiency import derived_of, refuse_unmeasured
from search.pipeline.staging import Stage, machine_of
from search.results import Outcome, Trial
from search.sweep.sweep import Sweep
from search.trials.placement import Slots

PARAMS = {"batch_size": 16, "width": 64, "depth": 2, "sequence_length": 32}


def loaded(objective="quality", **resources):
    sweep = {
        "name": "one",
        "objective": "toys:Toy",
        "space": {"batch_size": [8]},
        "trial": {"tokens": 1000},
        "objectives": {objective: "max" if objective == "mfu" else "min"},
        "resources": resources,
        "trials": 3,
    }
    return SimpleNamespace(sweep=Sweep.model_validate(sweep), objective=Sample())


def slots(num_slots=1, gpus=0):
    return Slots(num_slots=num_slots, budget_bytes=2**30, cpus=1, gpus=gpus)


def stage(device, **resources):
    predict = Predictor(Sample(), machine_of(device), space=[PARAMS])
    return Stage(
        loaded=loaded(**resources),
        objective=Sample(),
        device=device,
        is_here=False,
        slots=slots(),
        fits=None,
        predict=predict,
        margins=None,
    )


def trial(tokens_per_second, **params):
    return Trial(
        number=0,
        params={**PARAMS, **params},
        outcome=Outcome.COMPLETED,
        metrics={"tokens_per_second": tokens_per_second},
    )


def test_a_million_tokens_cost_what_the_hours_they_take_do():
    # 1,000 a second are 3.6 million an hour
    assert derived_of(stage(device_here(), price_per_hour=1.8))(trial(1000)) == {
        "cost_per_million_tokens": pytest.approx(0.5)
    }
    assert derived_of(stage(device_here()))(trial(1000)) == {}


def test_utilization_of_a_gpu_does_not_count_what_is_computed_again():
    found = derived_of(stage(device_named("L4")))
    plain = found(trial(1e6))["mfu"]
    assert 0 < plain < 1
    assert found(trial(2e6))["mfu"] == pytest.approx(2 * plain)
    assert found(trial(1e6, activation_checkpointing=True))["mfu"] == plain
    assert found(trial(1e6, world_size=2)) == {}


def test_what_cannot_be_traced_has_no_utilization(monkeypatch):
    a_stage = stage(device_named("L4"))

    def broken(_):
        raise ValueError

    monkeypatch.setattr(a_stage.predict, "work", broken)
    assert derived_of(a_stage)(trial(1e6)) == {}


let_through = partial(refuse_unmeasured, path="one.yaml")


def refusal(objective, device=None, num_slots=1, **resources):
    with pytest.raises(InputError) as refused:
        let_through(loaded(objective, **resources), device or device_here(), slots(num_slots))
    return str(refused.value)


def test_what_cannot_be_had_here_is_refused_with_the_mend(monkeypatch):
    cpu = Device(name="some CPU", kind="cpu", capacity_bytes=2**30)
    assert "set resources.price_per_hour" in refusal("cost_per_million_tokens")
    assert "a GPU whose peak is known, not some CPU" in refusal("mfu", cpu)
    monkeypatch.setattr(energy, "energy_meter", lambda _: EnergyMeter(()))
    assert "some CPU tells no energy to this user" in refusal("energy_per_token", cpu)
    monkeypatch.setattr(energy, "energy_meter", lambda _: EnergyMeter((Counter(lambda: 1.0),)))
    assert "set resources.concurrent to 1" in refusal("energy_per_token", cpu, num_slots=2)


def test_a_refusal_is_a_fault_of_the_file():
    assert refusal("cost_per_million_tokens") == (
        "one.yaml: 1 fault\n  objectives.cost_per_million_tokens: follows from a price, and none "
        "is given (set resources.price_per_hour)"
    )


def test_what_can_be_had_is_let_through(monkeypatch):
    monkeypatch.setattr(energy, "energy_meter", lambda _: EnergyMeter((Counter(lambda: 1.0),)))
    let_through(loaded("energy_per_token"), device_here(), slots())
    let_through(loaded("cost_per_million_tokens", price_per_hour=1), device_here(), slots())
    let_through(loaded("mfu"), device_named("L4"), slots(gpus=1))
    let_through(loaded(), device_here(), slots())
