import dataclasses
import warnings

import pytest
import torch

from benchmarks import step_loops, step_speed
from benchmarks.step_loops import Job
from benchmarks.step_speed_report import Measured, report, utilization
from benchmarks.turns import Step
from objectives.language_model import LanguageModel
from search.memory.catalogue import described
from search.memory.device import device_here

PARAMS = {"width": 16, "depth": 1, "heads": 2, "sequence_length": 8, "batch_size": 4}
OWN = {name: step_loops.LOOPS[name] for name in ("bare loop", "paretune")}


def job(precision="32-true", num_steps=12):
    return Job(
        objective=LanguageModel(held_out_tokens=2_048),
        params={**PARAMS, "precision": precision},
        num_steps=num_steps,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_our_step_trains_what_the_bare_loop_does(monkeypatch, precision):
    monkeypatch.setattr(step_speed, "LOOPS", OWN)
    steps = step_speed.measured(job(precision), burst=1)
    assert {name: len(each) for name, each in steps.items()} == {"bare loop": 8, "paretune": 8}


def test_the_peers_train_the_same():
    pytest.importorskip("lightning")
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the peers' own imports
        steps = step_speed.measured(job(), burst=1)
    assert {len(each) for each in steps.values()} == {8}


def test_a_loop_that_trains_something_else_is_refused(monkeypatch):
    def other(job, batches):
        return step_loops.bare(dataclasses.replace(job, num_steps=99), batches)  # another schedule

    monkeypatch.setattr(step_speed, "LOOPS", {**OWN, "other": other})
    with pytest.raises(RuntimeError, match="other trains something else: its loss is"):
        step_speed.measured(job(), burst=1)


def test_a_loop_that_skips_a_step_is_refused(monkeypatch):
    def other(job, batches):
        return step_loops.bare(job, batches)[:-1]

    monkeypatch.setattr(step_speed, "LOOPS", {**OWN, "other": other})
    with pytest.raises(RuntimeError, match="other took 11 steps and not 12"):
        step_speed.measured(job(), burst=1)


def steps(*seconds):
    return [Step(wall_seconds=each, cpu_seconds=each) for each in seconds]


def found(ours):
    each = {"bare loop": steps(1, 2, 4), "paretune": steps(*ours), "Lightning": steps(1.5, 3, 6)}
    return Measured(name="tiny", job=job(), steps=each)


def test_what_is_held_is_told():
    assert found((1.01, 2.02, 4.04)).verdict() == (
        "tiny: +1.0%; Lightning takes 1.485 times as long: held"
    )
    assert "**not held**" in found((1.04, 2.08, 4.16)).verdict()
    assert "**not held**" in found((2, 4, 8)).verdict()


def test_the_table_has_ratios_alone():
    page = report([found((1, 2, 4))], device_here(), command="--sizes tiny")
    assert "| tiny | Lightning | 1.500 (1.500 to 1.500) | 1.500 (1.500 to 1.500) |" in page
    assert "`python -m benchmarks.step_speed --sizes tiny` on " in page
    assert "FLOP" not in page


def test_utilization_by_hand():
    gpu = described("NVIDIA L4", capacity_bytes=22 * 2**30, architecture=(8, 9))
    # linear maps of a block: 12 width**2 weights, and the head's 256 width: 6 FLOPs each and token;
    # attention: queries by keys and by values, forward 4 T width, backward twice that and a half
    weights, tokens = 12 * 16**2 + 256 * 16, 4 * 8
    flops = 6 * weights * tokens + 14 * 8 * 16 * tokens
    share = utilization(job("bf16-mixed"), gpu, seconds=1e-6)
    assert share == pytest.approx(flops / gpu.peak_flops.bf16 / 1e-6, rel=0.02)
    assert utilization(job(), device_here(), seconds=1) is None
