"""What is said of a sweep that trains by itself, before and after its trials."""

import json

import pytest

from search.errors import InputError
from search.memory.device import Device
from search.pipeline import explaining, running
from search.pipeline.learning import untraced_stage
from search.pipeline.staging import prepare_comparison, prepare_plan
from search.results import Outcome, Trial
from search.sweep.file import parse_sweep
from search.trials.placement import Slots
from search.units import MIB

SWEEP = """\
name: mine
command: echo {batch_size} {width}
space: {batch_size: [8, 16], width: [1, 2]}
memory: {budget: 64 MiB, grows_with: [batch_size, width]}
objectives: {accuracy: max}
trials: 3
"""
CPU = Device(name="here", kind="cpu", capacity_bytes=2**40)


@pytest.fixture
def stage():
    def made(text=SWEEP):
        loaded = parse_sweep(text, path="mine.yaml", capacity_bytes=2**40)
        return untraced_stage(loaded, CPU, Slots(num_slots=1, budget_bytes=64 * MIB, cpus=1))

    return made


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(SWEEP)
    return tmp_path / "mine.yaml"


def trial(outcome=Outcome.COMPLETED, mib=32, **params):
    return Trial(number=0, params=params, outcome=outcome, metrics={"peak_memory": mib * MIB})


def test_it_says_what_is_not_known_and_what_is_done_about_it(stage):
    assert stage().explain() == (
        "echo {batch_size} {width} is not predicted: learned from trials; its memory grows with "
        "batch_size, width: the first trials go from small to large, and one that runs out of "
        "memory rules out all that is nowhere smaller"
    )
    plain = stage(SWEEP.replace(", grows_with: [batch_size, width]", ""))
    assert "memory.grows_with names no dimension, so nothing is refused" in plain.explain()


def test_it_says_what_trials_told(stage):
    found = stage()
    assert found.known() == ""
    found.learn(
        [
            trial(batch_size=8, width=1),
            trial(batch_size=8, width=2, mib=48),
            trial(Outcome.OUT_OF_MEMORY, batch_size=16, width=2),
        ]
    )
    assert found.known().splitlines() == [
        "measured in 2 trials: up to 48 MiB, at batch_size 8, width 2",
        "ran out of 64 MiB: batch_size 16, width 2",
    ]
    assert [each["measured_bytes"] for each in found.to_json()["known"]] == [
        32 * MIB,
        48 * MIB,
        None,
    ]


def test_a_plan_of_it_says_that_there_is_none(file, capsys):
    running.plan(file, as_json=False)
    told = capsys.readouterr().out
    assert told.startswith("cannot be planned ahead: echo {batch_size} {width} is not predicted")
    assert told.endswith("no trial of mine has told anything yet\n")
    running.plan(file, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "can_be_planned": False,
        "reason": "echo {batch_size} {width}: not predicted: learned from trials",
        "grows_with": ["batch_size", "width"],
        "budget_bytes": 64 * MIB,
        "known": [],
    }


def test_there_is_no_step_to_look_into_and_nothing_to_learn_elsewhere(file):
    with pytest.raises(InputError, match="cannot be planned for GeForce RTX 4090: its memory is"):
        prepare_plan(file, device_name="RTX 4090")
    with pytest.raises(InputError, match="--explain: there is no step to look into"):
        explaining.explain(file, settings=["width=1"], as_json=False)
    with pytest.raises(InputError, match="from its own trials, on the device that is here"):
        prepare_comparison(file, ["RTX 4090", "RTX 3090"])
