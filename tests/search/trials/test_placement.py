import contextlib
import subprocess
import sys

import pytest
from tiny_sweep import tiny_sweep

from search.errors import MachineError
from search.memory.device import Device
from search.trials import placement
from search.trials.placement import CpuSlot, Slots, slots
from search.units import GIB


@pytest.fixture
def machine(monkeypatch):
    """A CPU with 8 cores and 10 GiB."""
    monkeypatch.setattr(placement, "allowed_cores", lambda: list(range(8)))
    monkeypatch.setattr(placement, "_available_bytes", lambda device: device.capacity_bytes)
    return Device(name="a processor", kind="cpu", capacity_bytes=10 * GIB)


@pytest.mark.parametrize(
    ("cpus", "concurrent", "budget", "expected"),
    [
        (1, None, GIB, 8),  # as many as there are cores
        (3, None, GIB, 2),  # 8 // 3
        (1, 2, GIB, 2),  # as asked
        (1, None, 4 * GIB, 2),  # 10 GiB // 4 GiB
        (1, 5, 10 * GIB, 1),
    ],
)
def test_how_many_trials_run_at_once(machine, cpus, concurrent, budget, expected):
    sweep = tiny_sweep(
        memory={"budget": budget}, resources={"cpus": cpus, "concurrent": concurrent}
    )
    placed = slots(sweep, machine)
    assert placed == Slots(num_slots=expected, budget_bytes=budget, cpus=cpus)
    assert placed.resources() == {"CPU": float(cpus)}


def test_without_a_budget_each_trial_has_its_share(machine):
    sweep = tiny_sweep(memory={}, resources={"cpus": 4})
    assert slots(sweep, machine).budget_bytes == 5 * GIB
    assert slots(sweep, machine).num_slots == 2


def test_cores_that_are_not_there_are_refused_at_once(machine):
    with pytest.raises(MachineError, match=r"needs 9 cores, this process may use 8"):
        slots(tiny_sweep(resources={"cpus": 9}), machine)


def test_memory_that_is_not_there_is_refused_at_once(machine):
    with pytest.raises(MachineError, match=r"may use 11 GiB, this machine has 10 GiB free"):
        slots(tiny_sweep(memory={"budget": 11 * GIB}), machine)


@pytest.fixture
def own_locks(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def claim(cpus, among):
    return CpuSlot.claim(cpus=cpus, among=among, patience_seconds=0)


@pytest.mark.usefixtures("own_locks")
def test_no_core_belongs_to_two_slots():
    first, second = claim(2, [0, 1, 2, 3, 4]), claim(1, [0, 1, 2, 3, 4])
    assert (first.cores, second.cores) == ((0, 1), (2,))
    with pytest.raises(MachineError, match="no 3 of"):
        claim(3, [0, 1, 2, 3, 4])
    assert claim(2, [0, 1, 2, 3, 4, 5]).cores == (4, 5)
    first.release()
    assert claim(2, [0, 1, 2, 3, 4]).cores == (0, 1)


@pytest.mark.usefixtures("own_locks")
def test_a_sweep_leaves_the_cores_of_others_alone(monkeypatch):
    monkeypatch.setattr(placement, "allowed_cores", lambda: [0, 1, 2, 3])
    wanted = Slots(num_slots=2, budget_bytes=GIB, cpus=2)
    assert placement.free_slots(wanted) == wanted
    first = claim(1, [1])
    assert placement.free_slots(wanted, patience_seconds=0).num_slots == 1
    second = claim(1, [3])
    with pytest.raises(MachineError, match="other sweeps hold the cores"):
        placement.free_slots(wanted, patience_seconds=0)
    first.release()
    second.release()
    assert placement.free_slots(wanted) == wanted


@pytest.mark.usefixtures("own_locks")
def test_a_slot_is_free_again_when_its_process_is_killed():
    script = (
        "import sys; from search.trials.placement import CpuSlot\n"
        "slot = CpuSlot.claim(cpus=1, among=[0]); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(MachineError):
            claim(1, [0])
        holder.kill()
        holder.wait()
    assert claim(1, [0]).cores == (0,)


@pytest.mark.usefixtures("own_locks")
def test_pins_every_thread_and_sizes_torch():
    script = (
        "import os, threading, torch\n"
        "from search.trials.placement import CpuSlot, allowed_cores\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "slot = CpuSlot.claim(cpus=1, among=allowed_cores()); slot.pin()\n"
        "tasks = os.listdir('/proc/self/task')\n"
        "print({tuple(os.sched_getaffinity(int(task))) for task in tasks} == {slot.cores},"
        " len(tasks) > 1, torch.get_num_threads())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True True 1\n"


def test_a_thread_that_ended_is_passed_over():
    with contextlib.suppress(PermissionError):
        placement._pin_thread(2**22 - 1, (0,))
