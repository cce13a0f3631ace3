import platform

import pytest
import torch

from search.memory import margins
from search.memory.device import Device
from search.memory.margins import Margins, setting_of
from search.memory.priors import prior
from search.memory.residuals import Residual, ResidualStore
from search.results import PredictedMemory
from search.units import MIB

CPU = Device(name="a processor", kind="cpu", capacity_bytes=2**34)
GPU = Device(name="a GPU", kind="cuda", capacity_bytes=2**34, driver="580.1")
PREDICTED = PredictedMemory(
    expected_bytes=1000 * MIB, low_bytes=990 * MIB, high_bytes=1040 * MIB, phase="step_2"
)


@pytest.fixture
def margins_of(tmp_path, monkeypatch):
    """Margins of a device without a prior, whose store lies in a folder of the test."""
    exact = [Residual(predicted_bytes=1000 * MIB, measured_bytes=1000 * MIB)] * 60
    monkeypatch.setattr(margins, "prior", lambda _: tuple(exact))

    def made(device, risk=0.02):
        return Margins(device, risk=risk, store=ResidualStore(setting_of(device), tmp_path))

    return made


def test_a_wrong_prediction_widens_the_interval_at_once_and_for_later_sweeps(margins_of):
    here = margins_of(CPU)
    assert here.applied(PREDICTED).high_bytes == 1000 * MIB
    wrong = Residual(predicted_bytes=1000 * MIB, measured_bytes=1100 * MIB)
    here.learn(wrong, trial="a/0")
    assert here.applied(PREDICTED).high_bytes >= 1100 * MIB
    assert margins_of(CPU).applied(PREDICTED) == here.applied(PREDICTED)


def test_on_a_gpu_what_the_mechanism_leaves_open_comes_on_top(margins_of):
    found = margins_of(GPU).applied(PREDICTED)
    assert (found.low_bytes, found.high_bytes) == (990 * MIB, 1040 * MIB)


def test_what_was_learned_on_one_device_says_nothing_of_another(margins_of):
    margins_of(CPU).learn(
        Residual(predicted_bytes=1000 * MIB, measured_bytes=1500 * MIB), trial="a/0"
    )
    other = Device(name="another", kind="cpu", capacity_bytes=2**34)
    assert margins_of(other).applied(PREDICTED).high_bytes == 1000 * MIB


def test_a_full_disk_costs_later_sweeps_alone(margins_of, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ResidualStore, "add", full)
    here = margins_of(CPU)
    here.learn(Residual(predicted_bytes=1000 * MIB, measured_bytes=1100 * MIB), trial="a/0")
    assert here.applied(PREDICTED).high_bytes >= 1100 * MIB


def test_a_setting_names_all_that_errors_hang_on():
    found = setting_of(CPU)
    assert (found.driver, found.torch_version) == (platform.release(), torch.__version__)
    assert setting_of(GPU).driver == "580.1"


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_shipped_errors_are_those_of_real_runs(kind):
    for residual in prior(kind):
        assert residual.predicted_bytes > MIB
        assert abs(residual.error_bytes) < residual.predicted_bytes
