import os

import pytest
import torch

from search.memory.device import Device, control_group_limits, cpu_name, device_here

MIB = 2**20


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
