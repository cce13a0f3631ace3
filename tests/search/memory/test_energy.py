from functools import partial
from types import SimpleNamespace

import pytest

from search.memory.device import device_here
from search.memory.energy import Counter, EnergyMeter, energy_meter, package_counters
from search.memory.nvml import total_joules


def counter(*joules, range_joules=None):
    values = iter(joules)
    return Counter(read=lambda: next(values), range_joules=range_joules)


def test_counters_add_up_from_when_the_meter_was_made():
    meter = EnergyMeter((counter(100, 130, 150), counter(7, 8, 10)))
    assert meter.works
    assert meter.joules() == 31
    assert meter.joules() == 53


def test_a_counter_that_starts_again_goes_on():
    assert EnergyMeter((counter(250, 20, range_joules=262),)).joules() == 20 + 262 - 250


@pytest.mark.parametrize("counters", [(), (counter(None),), (counter(1, 2), counter(None))])
def test_without_a_counter_there_is_no_energy(counters):
    meter = EnergyMeter(counters)
    assert not meter.works
    assert meter.joules() is None


def test_a_counter_that_fails_leaves_no_half_sum():
    meter = EnergyMeter((counter(1, 2, None),))
    assert meter.joules() == 1
    assert meter.joules() is None
    assert meter.joules() is None


def zone(root, name, called, **values):
    folder = root / name
    folder.mkdir()
    (folder / "name").write_text(called + "\n")
    for file, value in values.items():
        (folder / file).write_text(f"{value}\n")


def test_packages_count_and_their_parts_do_not(tmp_path):
    sizes = {"energy_uj": 5_000_000, "max_energy_range_uj": 262_143_328_850}
    zone(tmp_path, "intel-rapl:0", "package-0", **sizes)
    zone(tmp_path, "intel-rapl:0:0", "core", **sizes)
    zone(tmp_path, "intel-rapl:1", "package-1", **sizes)
    zone(tmp_path, "intel-rapl:2", "psys", **sizes)
    zone(tmp_path, "intel-rapl:3", "package-2")  # not for this user
    found = list(package_counters(tmp_path))
    assert [each.read() for each in found] == [5.0, 5.0]
    assert found[0].range_joules == 262_143.32885
    assert list(package_counters(tmp_path / "none")) == []


def test_this_machine_tells_its_energy_or_nothing():
    meter = energy_meter(device_here())
    joules = meter.joules()
    assert joules is None if not meter.works else joules >= 0


class NvmlError(Exception):
    pass


def library(joules, *, fails=False):
    def energy(handle):
        if fails:
            raise NvmlError
        return joules[handle] * 1000

    return SimpleNamespace(
        NVMLError=NvmlError,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(joules),
        nvmlDeviceGetHandleByIndex=lambda index: list(joules)[index],
        nvmlDeviceGetMigMode=lambda _: [0, 0],
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetTotalEnergyConsumption=energy,
    )


def test_a_gpu_tells_in_joules_by_its_uuid():
    nvml = library({"GPU-a": 10, "GPU-b": 20})
    assert total_joules("b", nvml) == 20
    assert total_joules("c", nvml) is None


def test_a_gpu_without_a_counter_tells_nothing():
    read = partial(total_joules, "a", library({"GPU-a": 10}, fails=True))
    assert not EnergyMeter((Counter(read),)).works
