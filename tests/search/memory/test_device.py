import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from search.memory import nvml
from search.memory.contexts import published_context, record_context
from search.memory.device import (
    ByteEstimate,
    Device,
    control_group_limits,
    cpu_name,
    device_here,
)

MIB = 2**20
GIB = 2**30


def membership(tmp_path, text):
    file = tmp_path / "cgroup"
    file.write_text(text)
    return file


def limit(tmp_path, place, file, text):
    folder = tmp_path / "groups" / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_the_device_here_is_the_cpu():
    device = device_here()
    assert (device.kind, device.name) == ("cpu", cpu_name())
    assert device.torch_device == torch.device("cpu")
    physical_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < device.capacity_bytes <= physical_bytes


def test_a_gpu_is_a_cuda_device():
    gpu = Device(name="a GPU", kind="cuda", capacity_bytes=24 * 2**30)
    assert gpu.torch_device.type == "cuda"


def test_what_is_usable_is_all_but_the_context_and_what_others_hold():
    context = ByteEstimate(low_bytes=1, expected_bytes=GIB, high_bytes=2 * GIB, source="")
    gpu = Device(
        name="a GPU", kind="cuda", capacity_bytes=24 * GIB, context=context, held_bytes=3 * GIB
    )
    assert gpu.usable_bytes == 20 * GIB
    assert Device(name="a CPU", kind="cpu", capacity_bytes=GIB).usable_bytes == GIB


def test_nothing_is_usable_where_others_hold_all():
    gpu = Device(name="a GPU", kind="cuda", capacity_bytes=GIB, held_bytes=2 * GIB)
    assert gpu.usable_bytes == 0


class TestAGpuHere:
    @pytest.fixture(autouse=True)
    def gpu(self, monkeypatch, tmp_path):
        """A GPU as torch tells of it, with no driver that answers, and an empty cache."""
        properties = SimpleNamespace(
            name="NVIDIA A100-SXM4-40GB",
            total_memory=40_441 * MIB,
            major=8,
            minor=0,
            uuid="1b2c",
        )
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
        monkeypatch.setattr(nvml, "_library", lambda: None)

    def test_it_is_described_though_no_driver_answers(self):
        device = device_here()
        assert (device.name, device.capacity_bytes) == ("NVIDIA A100-SXM4-40GB", 40_441 * MIB)
        assert device.architecture == (8, 0)
        assert device.memory_type == "HBM2e"
        assert (device.held_bytes, device.driver) == (0, None)
        assert device.context == published_context((8, 0))

    def test_the_driver_tells_what_others_hold_and_which_measurements_are_of_it(self, monkeypatch):
        answer = nvml.GpuHere(
            name="NVIDIA A100-SXM4-40GB",
            uuid="GPU-1b2c",
            architecture=(8, 0),
            total_bytes=40_441 * MIB,
            held_bytes=GIB,
            driver="580",
        )
        monkeypatch.setattr(nvml, "gpus_here", lambda _nvml: (answer,))
        record_context(
            answer.name, driver="580", torch_version=torch.__version__, num_bytes=500 * MIB
        )
        device = device_here()
        assert (device.held_bytes, device.driver) == (GIB, "580")
        assert device.usable_bytes == (40_441 - 1024 - 500) * MIB


def test_devices_need_no_torch_until_one_is_asked_for():
    code = "import sys, search.memory.device; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestControlGroups:
    def limits(self, tmp_path, text):
        return list(control_group_limits(membership(tmp_path, text), tmp_path / "groups"))

    def test_version_2_counts_the_groups_above(self, tmp_path):
        limit(tmp_path, "a/b", "memory.max", "max\n")
        limit(tmp_path, "a", "memory.max", f"{64 * MIB}\n")
        limit(tmp_path, "", "memory.max", f"{512 * MIB}\n")
        assert self.limits(tmp_path, "0::/a/b\n") == [64 * MIB, 512 * MIB]

    def test_version_1_has_a_number_for_no_limit(self, tmp_path):
        limit(tmp_path, "memory/a", "memory.limit_in_bytes", f"{32 * MIB}\n")
        limit(tmp_path, "memory", "memory.limit_in_bytes", f"{2**63 - 4096}\n")
        assert self.limits(tmp_path, "4:memory:/a\n3:cpu,cpuacct:/a\n") == [32 * MIB]

    def test_a_group_seen_from_inside_a_container(self, tmp_path):
        limit(tmp_path, "", "memory.max", f"{96 * MIB}\n")
        assert self.limits(tmp_path, "0::/docker/not/mounted/here\n") == [96 * MIB]

    def test_there_may_be_none(self, tmp_path):
        assert list(control_group_limits(tmp_path / "missing")) == []
