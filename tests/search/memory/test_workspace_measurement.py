import sys

import pytest
import torch

from search.errors import MachineError
from search.memory.cuda import Cuda
from search.memory.device import WorkspaceBytes
from search.memory.events import Part
from search.memory.sample import Sample
from search.memory.trace import trace
from search.memory.workspace_measurement import measured_elsewhere, measured_here

MIB = 2**20
FOUND = WorkspaceBytes(cublas_bytes=4 * MIB, lt_bytes=1 * MIB, backward_bytes=6 * MIB)


def test_what_torch_counts_is_told_apart_by_thread(monkeypatch):
    counted = iter((100, 100 + 4 * MIB, 100 + 5 * MIB, 100 + 11 * MIB))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(counted))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert measured_here(torch.device("cpu")) == FOUND


def python_that(does, tmp_path, monkeypatch):
    """Stands in for the interpreter of the measuring process."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{does}\n", encoding="ascii")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))


def test_another_process_measures(tmp_path, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:1")
    does = 'test "$4" = search.memory.workspace_measurement && echo noise 9 && echo 4 1 6'
    python_that(does, tmp_path, monkeypatch)
    assert measured_elsewhere() == WorkspaceBytes(
        cublas_bytes=4, lt_bytes=1, backward_bytes=6, setting="CUBLAS_WORKSPACE_CONFIG=:4096:1"
    )


def test_one_that_fails_says_why(tmp_path, monkeypatch):
    python_that("echo no handle >&2; exit 1", tmp_path, monkeypatch)
    with pytest.raises(MachineError, match=r"measuring the workspaces .* failed:\nno handle"):
        measured_elsewhere()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_fails_in_words():
    with pytest.raises(MachineError, match="measuring the workspaces"):
        measured_elsewhere()


def booked(traced):
    return [each.num_bytes for each in traced.events if each.part is Part.WORKSPACE]


def test_predictions_take_what_was_measured_instead_of_the_table():
    params = {"batch_size": 2}
    tabled = trace(Sample(), params, target=Cuda(architecture=(8, 0)))
    traced = trace(Sample(), params, target=Cuda(architecture=(8, 0), workspaces=FOUND))
    assert booked(tabled) == [8_519_680, 8_519_680]
    assert booked(traced) == [4 * MIB, 1 * MIB, 6 * MIB]  # the first product adds a bias
    assert tabled.peak_bytes - traced.peak_bytes == 2 * 8_519_680 - 11 * MIB
