"""Devices side by side on the command line, on a model of a few weights. No GPU is needed."""

import json
import shutil
from pathlib import Path

import pytest

from search.errors import InputError
from search.memory import prediction
from search.memory.catalogue import device_named
from search.memory.rates import Basis
from search.memory.speed_records import (
    MeasuredSpeed,
    record_speed,
    speed_setting,
    speeds_folder,
)
from search.pipeline import comparing
from search.pipeline.staging import prepare_comparison

SWEEP = """\
name: tiny
objective: tiny_objective:TinyModel
space: {width: [16, 134217728]}
fixed: {batch_size: 64}
memory: {budget: 64 MiB}
trial: {tokens: 4096}
objectives: {bits_per_byte: min}
trials: 3
"""
"""Width 134217728: 4 GiB of weights, 16 GiB with gradients and optimizer, and 0.5 GiB of outputs a
sample. Fake tensors take none of it."""


@pytest.fixture(autouse=True)
def folder(tiny_folder):
    (tiny_folder / "tiny.yaml").write_text(SWEEP, encoding="utf-8")


@pytest.fixture
def said(plan):
    """What `paretune plan` prints of the file: what is asked for, or why there is none."""

    def run(*arguments) -> str:
        code, out, err = plan("tiny.yaml", *arguments)
        return err if code else out

    return run


DEVICES = ("--device", "RTX 4090", "--device", "A100 40GB")


def test_two_gpus_that_are_not_here_by_the_users_prices(said):
    prices = ("--price", "rtx 4090=0.5", "--price", "a100 40GB=1.5")
    output = said(*DEVICES, *prices)
    *_, a100, rtx, what, _, smallest, cheapest, estimates = output.splitlines()
    assert what == "compared at width 134217728"
    # the optimizer's own copies come on top, so 24 GB are too few for any batch
    assert a100.startswith("A100 SXM4 40 GB   39.39 GiB  50%    4 of 64  ")
    assert rtx == "GeForce RTX 4090  23.52 GiB  50%    does not fit             0.5"
    assert smallest == "smallest that fits: A100 SXM4 40 GB"
    assert cheapest == "cheapest that fits, as estimated: A100 SXM4 40 GB"
    assert estimates.startswith("speeds and costs are estimates, nothing measured; ")

    found = json.loads(said(*DEVICES, *prices, "--json"))
    assert found["compared_at"] == {"width": 134217728}
    first, second = found["devices"]
    assert (first["fits"], second["fits"]) == (True, False)
    cost, speed = first["estimated_cost_per_million_tokens"], first["estimated_tokens_per_second"]
    assert cost["expected"] == pytest.approx(1.5 / 3600 * 1e6 / speed["expected"])
    assert first["high_bytes"] <= first["budget_bytes"]


def test_a_single_gpu_is_planned_with_estimated_speeds(said):
    sweep = SWEEP.replace("64 MiB", "8 GiB").replace("[16, 134217728]", "[16]")
    Path("tiny.yaml").write_text(sweep, encoding="utf-8")
    record_speed(
        speed_setting(device_named("RTX 4090"), basis=Basis.DATA_SHEET, cpus=1),
        MeasuredSpeed(measured_tokens_per_second=1.0, estimated_tokens_per_second=4.0),
        trial="tiny/0",
    )
    output = said("--device", "RTX 4090")
    assert "tokens/s" in output
    assert "speeds are estimates, corrected by 1 measured trial of this device" in output
    (row,) = json.loads(said("--device", "RTX 4090", "--json"))["points"]
    corrected = row["estimated_tokens_per_second"]
    shutil.rmtree(speeds_folder())
    (row,) = json.loads(said("--device", "RTX 4090", "--json"))["points"]
    plain = row["estimated_tokens_per_second"]
    assert corrected == pytest.approx({end: value / 4 for end, value in plain.items()})


def test_prices_without_devices_are_refused(said):
    assert "add --device NAME" in said("--price", "RTX 4090=1")


def test_devices_of_one_architecture_share_what_was_traced(monkeypatch):
    num_traces = 0
    trace = prediction.Programs.trace

    def counted(self, params):
        nonlocal num_traces
        num_traces += 1
        return trace(self, params)

    monkeypatch.setattr(prediction.Programs, "trace", counted)
    first, second, third = prepare_comparison(Path("tiny.yaml"), ["4090", "RTX 4080", "3090"])
    params = first.loaded.params_of({"width": 16})
    assert first.fits(params).predicted == second.fits(params).predicted
    assert num_traces == 1
    third.fits(params)
    assert num_traces == 2
    budgets = [stage.slots.budget_bytes for stage in (first, second, third)]
    assert budgets == [stage.device.capacity.low_bytes for stage in (first, second, third)]


def test_one_device_named_twice_is_refused():
    with pytest.raises(InputError, match=r"'4090' and 'RTX 4090' are both GeForce RTX 4090"):
        prepare_comparison(Path("tiny.yaml"), ["4090", "RTX 4090"])


@pytest.mark.parametrize("text", ["RTX 4090", "=0.5", "RTX 4090=", "RTX 4090=-1", "a=nan", "a=inf"])
def test_a_price_that_is_none_is_refused(text):
    with pytest.raises(InputError, match="what an hour of it costs"):
        comparing.price(text)


def test_a_name_may_hold_the_sign_itself():
    assert comparing.price("a=b = 0.5") == ("a=b", 0.5)


@pytest.mark.parametrize(
    ("prices", "words"),
    [
        ({"RTX 3090": 1.0}, "none of the devices to compare .they are: GeForce RTX 4090"),
        ({"RTX 4090": 1.0, "4090": 2.0}, "whose price was given already"),
    ],
)
def test_prices_of_other_devices_and_second_prices_are_refused(prices, words):
    (stage,) = prepare_comparison(Path("tiny.yaml"), ["RTX 4090"])
    with pytest.raises(InputError, match=words):
        comparing._priced([stage.device], prices)
