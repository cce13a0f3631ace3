import math

import pytest
import torch

from search.memory.device import device_here
from search.memory.measurement import prepare_process
from search.results import Outcome
from search.trials.measured import EndedError, Measured
from search.units import GIB, MIB


def test_the_peak_is_the_largest_of_all_blocks_even_of_one_that_broke_off():
    prepare_process()
    measured = Measured()
    with pytest.raises(RuntimeError, match="shape"), measured.within(GIB, device_here()):
        torch.ones(64 * MIB // 4).reshape(3)
    first = measured.metrics["peak_memory"]
    assert first > 60 * MIB  # less than all of it where pages of files came in meanwhile
    with measured.within(GIB, device_here()):
        torch.ones(MIB // 4)
    assert measured.metrics["peak_memory"] == first


def test_what_is_finite_is_kept_when_something_is_not():
    measured = Measured()
    with pytest.raises(EndedError, match="the evaluation gave b = nan") as ended:
        measured.note({"b": math.nan, "a": 1}, "the evaluation")
    assert ended.value.outcome is Outcome.DIVERGED
    assert measured.metrics == {"a": 1.0}


def test_what_follows_from_other_metrics_is_not_asked_of_an_evaluation():
    measured = Measured(metrics={"a": 1.0, "peak_memory": 2.0})
    measured.require(["a", "peak_memory", "tokens_per_second", "mfu"])
    with pytest.raises(EndedError, match=r"gave no c \(it gave a\)"):
        measured.require(["a", "c"])


def test_without_a_step_there_is_no_speed():
    measured = Measured()
    measured.note_speed()
    assert (measured.metrics, measured.details) == ({}, {})
