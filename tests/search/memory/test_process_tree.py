"""What processes take, measured from outside."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from search.memory.device import Device
from search.memory.nvml import HeldBytes
from search.memory.process_tree import family, measure_tree_peak, tree_bytes
from search.units import MIB

CPU = Device(name="here", kind="cpu", capacity_bytes=2**40)
HOLDS = "import sys; held = b'x' * (int(sys.argv[1]) * 2**20); "
TELLS = "print('ready', flush=True); sys.stdin.read()"
FREES = "del held; "
FORKS = "import os; child = os.fork(); "
STARTS = (
    "import subprocess; child = subprocess.Popen([sys.executable, '-c', sys.argv[2], sys.argv[1]],"
    " stdin=subprocess.PIPE, stdout=subprocess.PIPE); child.stdout.readline(); "
)


@pytest.fixture
def started():
    """Starts Python on some code, up to the line that it prints."""
    running = []

    def start(code, mib):
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", code, str(mib), HOLDS + TELLS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        running.append(process)
        process.stdout.readline()
        return process.pid

    yield start
    for process in running:
        with process:
            process.stdin.close()


def test_a_process_counts_with_the_most_it_held(started):
    least = tree_bytes(started(HOLDS + TELLS, 0))
    assert tree_bytes(started(HOLDS + TELLS, 64)) - least == pytest.approx(64 * MIB, rel=0.05)
    assert tree_bytes(started(HOLDS + FREES + TELLS, 64)) - least == pytest.approx(
        64 * MIB, rel=0.05
    )


def test_its_descendants_count_too(started):
    pid = started(HOLDS + STARTS + TELLS, 32)
    assert len(family(pid)) == 2
    assert 64 * MIB < tree_bytes(pid) < 90 * MIB


def test_what_forked_processes_share_counts_once(started):
    pid = started(HOLDS + FORKS + TELLS, 64)
    assert len(family(pid)) == 2
    assert 64 * MIB < tree_bytes(pid) < 90 * MIB


def test_the_peak_is_told_while_it_grows_and_stays_after_the_end(started):
    seen, looked = [], threading.Event()

    def look(num_bytes):
        seen.append(num_bytes)
        looked.set()

    with measure_tree_peak(started(HOLDS + TELLS, 32), CPU, look) as peak:
        assert looked.wait(10)
    assert peak.num_bytes == max(seen) > 32 * MIB


@pytest.mark.parametrize(("by_processes", "peak_mib"), [(300, 300), (0, 400)])
def test_on_a_gpu_the_driver_tells_or_else_what_was_added_to_what_was_held(
    monkeypatch, by_processes, peak_mib
):
    held = iter([100, 500, 500])

    def bytes_held_by(uuid, pids):
        assert uuid == "1b2c"
        mine = by_processes * MIB if os.getpid() in pids else 0
        return HeldBytes(in_all=next(held, 500) * MIB, by_processes=mine)

    monkeypatch.setattr("search.memory.nvml.bytes_held_by", bytes_held_by)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: SimpleNamespace(uuid="1b2c"))
    with measure_tree_peak(os.getpid(), Device(name="A", kind="cuda", capacity_bytes=1)) as peak:
        pass
    assert peak.num_bytes == peak_mib * MIB


def test_a_process_that_is_gone_takes_nothing():
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        process.wait()
    assert tree_bytes(process.pid) == 0
    assert not Path(f"/proc/{process.pid}").exists()
