import json

import pytest

from search.memory.catalogue import described, device_named
from search.memory.device import Device
from search.memory.rates import Basis
from search.memory.speed_records import (
    MeasuredSpeed,
    record_speed,
    recorded_ratios,
    recorded_speeds,
    speed_setting,
    speeds_folder,
)
from search.units import GIB

CPU = Device(name="Some CPU", kind="cpu", capacity_bytes=GIB)
HALF = MeasuredSpeed(measured_tokens_per_second=50.0, estimated_tokens_per_second=100.0)
TWICE = MeasuredSpeed(measured_tokens_per_second=20.0, estimated_tokens_per_second=10.0)


def rtx_4090(driver="580.65.06"):
    return described(
        "NVIDIA GeForce RTX 4090",
        capacity_bytes=24 * GIB,
        architecture=(8, 9),
        driver=driver,
    )


def setting(device=CPU, *, basis=Basis.MEASURED, cpus=1):
    return speed_setting(device, basis=basis, cpus=cpus)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_is_recorded_comes_back_as_ratios_in_order():
    record_speed(setting(), HALF, trial="a/0")
    record_speed(setting(), TWICE, trial="a/1")
    assert recorded_ratios(CPU, basis=Basis.MEASURED, cpus=1) == (0.5, 2.0)


def test_a_trial_counts_once():
    for speed in (HALF, TWICE):
        record_speed(setting(), speed, trial="a/0")
    assert recorded_speeds(setting()) == {"a/0": HALF}


@pytest.mark.parametrize(
    "other",
    [{"basis": Basis.DATA_SHEET}, {"cpus": 2}, {"device": rtx_4090()}],
)
def test_what_another_estimate_was_compared_with_corrects_nothing(other):
    record_speed(setting(**other), HALF, trial="a/0")
    assert recorded_ratios(CPU, basis=Basis.MEASURED, cpus=1) == ()


def test_a_gpu_that_is_not_here_is_known_by_any_name_and_driver():
    for number, driver in enumerate(("580.65.06", "570.10")):
        there = setting(rtx_4090(driver), basis=Basis.DATA_SHEET)
        record_speed(there, HALF, trial=f"a/{number}")
    record_speed(setting(rtx_4090(), basis=Basis.MEASURED), TWICE, trial="a/0")
    absent = device_named("RTX 4090")
    assert recorded_ratios(absent, basis=Basis.DATA_SHEET, cpus=1) == (0.5, 0.5)
    other = device_named("RTX 4080")
    assert recorded_ratios(other, basis=Basis.DATA_SHEET, cpus=1) == ()


def test_a_gpu_that_is_here_has_its_own_drivers_alone():
    record_speed(setting(rtx_4090("570.10")), HALF, trial="a/0")
    assert recorded_ratios(rtx_4090(), basis=Basis.MEASURED, cpus=1) == ()


@pytest.mark.parametrize(
    "record",
    [
        {"trial": "a/1"},
        {"trial": "a/1", "measured_tokens_per_second": 1.0, "estimated_tokens_per_second": 0.0},
        {"trial": "a/1", "measured_tokens_per_second": "1", "estimated_tokens_per_second": 1.0},
        {"trial": 1, "measured_tokens_per_second": 1.0, "estimated_tokens_per_second": 1.0},
    ],
)
def test_what_is_damaged_is_passed_over(record):
    record_speed(setting(), HALF, trial="a/0")
    (file,) = speeds_folder().glob("*/speeds.jsonl")
    with file.open("a", encoding="utf-8") as stream:
        stream.write(f"{json.dumps(record)}\n")
    assert recorded_speeds(setting()) == {"a/0": HALF}
