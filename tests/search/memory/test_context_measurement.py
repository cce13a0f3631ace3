import sys
from types import SimpleNamespace

import pytest
import torch

from search.errors import MachineError
from search.memory import context_measurement, workspace_measurement
from search.memory.catalogue import described
from search.memory.contexts import measured_contexts
from search.memory.device import WorkspaceBytes
from search.memory.nvml import GpuHere
from search.units import GIB, MIB

WORKSPACES = WorkspaceBytes(cublas_bytes=1024, lt_bytes=512, backward_bytes=2048)


def fake_gpu(monkeypatch, *, driver="580.65.06"):
    """A GPU as torch and the driver would show it."""
    monkeypatch.setattr(workspace_measurement, "measured_elsewhere", lambda: WORKSPACES)
    device = described("NVIDIA L4", capacity_bytes=22 * GIB, architecture=(8, 9), driver=driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234"))
    monkeypatch.setattr(context_measurement, "device_here", lambda: device)


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_each_measurement_is_remembered_for_this_driver_and_torch(monkeypatch):
    fake_gpu(monkeypatch)
    sizes = iter((500 * MIB, 520 * MIB))
    asked = []
    monkeypatch.setattr(
        context_measurement, "_measured_elsewhere", lambda uuid: asked.append(uuid) or next(sizes)
    )
    context_measurement.measure_context()
    found = context_measurement.measure_context()
    assert asked == ["1234", "1234"]
    assert found.sizes_bytes == (500 * MIB, 520 * MIB)
    assert (found.driver, found.torch_version) == ("580.65.06", torch.__version__)
    assert measured_contexts() == (found,)
    again = described(
        "NVIDIA L4",
        capacity_bytes=22 * GIB,
        architecture=(8, 9),
        driver="580.65.06",
        torch_version=torch.__version__,
    )
    assert again.context == found.estimate
    assert again.workspaces == found.workspaces == WORKSPACES


def test_what_cannot_be_kept_is_still_told(monkeypatch, tmp_path):
    fake_gpu(monkeypatch)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(context_measurement, "_measured_elsewhere", lambda _: 7)
    assert context_measurement.measure_context().sizes_bytes == (7,)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_there_is_nothing_to_measure():
    with pytest.raises(MachineError, match="torch sees no GPU here"):
        context_measurement.measure_context()


def test_a_driver_that_tells_nothing_is_named(monkeypatch):
    fake_gpu(monkeypatch, driver=None)
    with pytest.raises(MachineError, match="nvidia-ml-py"):
        context_measurement.measure_context()


def python_that(does, tmp_path, monkeypatch):
    """Stands in for the interpreter of the measuring process."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{does}\n", encoding="ascii")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))


def test_the_process_that_measures_is_told_which_gpu(tmp_path, monkeypatch):
    python_that('test "$5" = 1234 && echo noise && echo 77', tmp_path, monkeypatch)
    assert context_measurement._measured_elsewhere("1234") == 77


def test_a_measuring_process_that_fails_says_why(tmp_path, monkeypatch):
    python_that("echo no kernel image >&2; exit 1", tmp_path, monkeypatch)
    with pytest.raises(MachineError, match=r"measuring the context .* failed:\nno kernel image"):
        context_measurement._measured_elsewhere("1234")


@pytest.mark.parametrize(("held", "expected"), [(2 * GIB, 600 * MIB), (None, 2 * GIB + 600 * MIB)])
def test_what_others_held_before_is_left_out(monkeypatch, held, expected):
    order = []
    gpu = GpuHere(
        name="NVIDIA L4",
        uuid="GPU-1234",
        architecture=(8, 9),
        total_bytes=22 * GIB,
        held_bytes=held or 0,
        driver="580.65.06",
    )

    def gpu_with(_uuid):
        order.append("asked")
        return None if held is None else gpu

    # 2 GiB of others, a context of 600 MiB, and 64 MiB that torch reserved
    used = 2 * GIB + 600 * MIB + 64 * MIB
    monkeypatch.setattr(context_measurement, "gpu_with", gpu_with)
    monkeypatch.setattr(context_measurement, "prepare_process", lambda: order.append("trained"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (22 * GIB - used, 22 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 64 * MIB)
    assert context_measurement.measured_here("1234") == expected
    assert order == ["asked", "trained"]
