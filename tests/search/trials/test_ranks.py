"""Trials of two processes each, on real Ray: what one of them meets is the trial's."""

from collections import Counter
from functools import partial

import pytest
from driver import drive
from tiny_sweep import tiny_sweep, trial

from search.errors import MachineError
from search.results import Outcome
from search.trials.events import TrialStarted
from search.trials.placement import Slots, largest_world_size, require_places, world_size_of
from search.trials.ranks import of_all_ranks
from search.trials.run import _largest_machine, _require_resources
from search.units import MIB

_PARAMS = {"width": 4, "batch_size": 8, "world_size": 2}


def _end(outcome=Outcome.COMPLETED, *, peak=10, message=""):
    return trial(0, _PARAMS, outcome, metrics={"peak_memory": float(peak)}, message=message)


def test_a_trial_peaks_as_high_as_its_highest_rank():
    whole = of_all_ranks(_end(peak=20), [_end(peak=30), _end(peak=10)])
    assert whole.metrics["peak_memory"] == 30
    assert whole.details["peak_bytes_by_rank"] == "20,30,10"
    assert whole.outcome is Outcome.COMPLETED


def test_out_of_memory_in_one_rank_is_out_of_memory_of_the_trial():
    others = [_end(), _end(Outcome.OUT_OF_MEMORY, message="MemoryError: no more")]
    broken_off = _end(Outcome.FAILED, message="Connection closed by peer")
    for first in (broken_off, _end()):
        whole = of_all_ranks(first, others)
        assert whole.outcome is Outcome.OUT_OF_MEMORY
        assert whole.message == "rank 2: MemoryError: no more"
    own = _end(Outcome.OUT_OF_MEMORY, message="its own")
    assert of_all_ranks(own, others).message == "its own"


def test_a_failure_is_told_in_the_words_of_each_rank_that_failed():
    whole = of_all_ranks(
        _end(Outcome.FAILED, message="Connection closed by peer"),
        [_end(Outcome.FAILED, message="ValueError: the reason")],
    )
    assert whole.outcome is Outcome.FAILED
    assert whole.message == "rank 0: Connection closed by peer\nrank 1: ValueError: the reason"


@pytest.mark.timeout(600)  # each trial that breaks its processes costs a start of new ones
def test_the_sweep_goes_on_when_a_rank_is_killed_or_runs_out_of_memory(tmp_path):
    sweep = tiny_sweep(
        space={"ending": ["completed", "killed_of_rank_1", "memory_of_rank_1"]},
        fixed={"width": 2, "batch_size": 8, "world_size": 2},
        data={"killed": str(tmp_path / "killed")},
        trials=3,
    )
    started = Counter()

    def count(event):
        if isinstance(event, TrialStarted):
            started[event.params["ending"]] += 1

    trials = drive(tmp_path / "sweep", sweep, on_event=count)
    ends = {each.params["ending"]: each for each in trials}
    assert (tmp_path / "killed").exists()
    assert started["killed_of_rank_1"] >= 2
    for ending in ("completed", "killed_of_rank_1"):
        assert ends[ending].outcome is Outcome.COMPLETED, ends[ending].message
        peaks = [int(peak) for peak in ends[ending].details["peak_bytes_by_rank"].split(",")]
        assert len(peaks) == 2
        assert ends[ending].metrics["peak_memory"] == max(peaks)
    exhausted = ends["memory_of_rank_1"]
    assert exhausted.outcome is Outcome.OUT_OF_MEMORY, exhausted.message
    assert exhausted.message.startswith("rank 1: RuntimeError: ")


def test_a_trial_takes_a_place_for_each_of_its_processes():
    slots = Slots(num_slots=4, budget_bytes=MIB, cpus=2, gpus=1)
    assert slots.resources() == {"CPU": 2.0, "GPU": 1.0}
    assert slots.resources(2) == {"CPU": 4.0, "GPU": 2.0}
    assert world_size_of({}) == 1
    assert world_size_of({"world_size": 2}) == 2


@pytest.mark.parametrize(
    ("space", "fixed", "widest"),
    [
        ({"width": [1]}, {}, 1),
        ({"world_size": [1, 4, 2]}, {}, 4),
        ({"world_size": {"low": 1, "high": 3}}, {}, 3),
        ({"width": [1]}, {"world_size": 2}, 2),
    ],
)
def test_the_widest_trial_must_find_places(space, fixed, widest):
    sweep = tiny_sweep(space=space, fixed=fixed)
    assert largest_world_size(sweep) == widest
    enough = Slots(num_slots=widest, budget_bytes=MIB, cpus=1)
    require_places(sweep, enough)
    if widest > 1:
        few = Slots(num_slots=widest - 1, budget_bytes=MIB, cpus=1)
        with pytest.raises(MachineError, match=f"{widest} processes need {widest} places"):
            require_places(sweep, few)


def test_one_machine_of_the_cluster_must_hold_all_processes_of_a_trial():
    two_small = [
        {"Alive": True, "Resources": {"CPU": 2.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    offered = _largest_machine(two_small)
    require = partial(_require_resources, offered=offered)
    require({"CPU": 4.0, "GPU": 1.0})
    with pytest.raises(MachineError, match="needs 2 GPU on one machine"):
        require({"CPU": 2.0, "GPU": 2.0})
