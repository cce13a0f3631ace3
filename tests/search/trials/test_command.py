"""A command in processes of its own, without Ray."""

import os
import select
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from search.memory.device import Device
from search.results import Outcome
from search.trials import command, untraced
from search.trials.attempt import Task
from search.units import GIB, MIB

SCRIPT = Path(__file__).with_name("tiny_command.py")
CPU = Device(name="here", kind="cpu", capacity_bytes=2**40)


def started(log, *, num_tokens=0, budget=GIB, limit=None, program=sys.executable, **params):
    task = Task(
        number=3,
        params=params,
        num_tokens=num_tokens,
        budget_bytes=budget,
        time_limit_seconds=limit,
        objectives=("accuracy", "peak_memory"),
    )
    options = " ".join(f"--{name} {{{name}}}" for name in params)
    text = f"{program} -S {SCRIPT} {options}"
    return untraced.attempt(task, partial(command.running, command=text, device=CPU, log=log))


@pytest.fixture
def ended(tmp_path):
    def end(**options):
        attempted = started(tmp_path / "logs" / "trial.log", **options)
        try:
            while True:
                next(attempted)
        except StopIteration as stop:
            return stop.value

    return end


def test_a_completed_trial_has_what_was_printed_and_measured(ended, tmp_path):
    trial = ended(width=4, size=16)
    assert (trial.number, trial.outcome, trial.message) == (3, Outcome.COMPLETED, "")
    assert trial.metrics["accuracy"] == 0.75
    assert trial.metrics["loss"] == 1.0
    assert 64 * MIB < trial.metrics["peak_memory"] < 90 * MIB
    assert "tokens_per_second" in trial.metrics
    assert [point.value for point in trial.curve if point.name == "loss"] == [3.0, 2.0, 1.0]
    assert trial.details["command"].endswith("tiny_command.py --width 4 --size 16")
    log = Path(trial.details["log"])
    assert log == tmp_path / "logs" / "trial.log"
    # all but reports is kept
    lines = {"about to start", '{"not": "a report"} ', "7", "{broken", "mind this"}
    assert set(log.read_text().splitlines()) == lines


@pytest.mark.parametrize(
    ("ending", "outcome", "message"),
    [
        ("error", Outcome.FAILED, "ValueError: the user's own mistake"),
        ("out_of_memory", Outcome.OUT_OF_MEMORY, "it ran out of memory (OutOfMemoryError)"),
        ("killed", Outcome.OUT_OF_MEMORY, "it was killed, most likely for want of memory"),
        ("nan", Outcome.DIVERGED, "the loss was nan in report 4"),
        ("nothing", Outcome.FAILED, "it reported no accuracy (it reported loss, tokens_per_second"),
    ],
)
def test_each_way_to_end_has_its_outcome(ended, ending, outcome, message):
    trial = ended(ending=ending)
    assert trial.outcome is outcome
    assert message in trial.message


def test_a_failure_tells_the_command_how_it_ended_and_what_it_said_last(ended):
    first, second, *rest = ended(ending="error").message.splitlines()
    assert first.endswith("tiny_command.py --ending error")
    assert second.startswith("ended with exit code 1; its output: ")
    assert rest == ["mind this", "Traceback", "ValueError: the user's own mistake"]


def test_what_takes_more_than_its_budget_is_ended_as_out_of_memory(ended):
    trial = ended(ending="endless", width=4, size=32, budget=96 * MIB)
    assert trial.outcome is Outcome.OUT_OF_MEMORY
    assert trial.message.endswith("96 MiB is available")
    assert trial.metrics["peak_memory"] > 96 * MIB


def test_it_is_over_with_its_tokens_though_it_would_go_on(ended):
    trial = ended(ending="endless", num_tokens=200)
    assert [point.num_tokens for point in trial.curve] == [100, 200]


def test_beyond_its_time_it_is_ended(ended):
    trial = ended(ending="endless", limit=1)
    assert trial.outcome is Outcome.TIMED_OUT
    assert not _lives(trial.metrics["pid"])


def test_a_trial_that_is_closed_ends_its_processes(tmp_path):
    attempted = started(tmp_path / "x.log", ending="endless")
    next(attempted)
    (pid,) = _children_named("tiny_command.py")
    attempted.close()
    assert not _lives(pid)


WATCHER = """
import sys
sys.path[:0] = sys.argv[1:3]
from test_command import started
from pathlib import Path
attempted = started(Path(sys.argv[3]), ending="endless")
next(attempted)
print("runs", flush=True)
sys.stdin.read()
"""


def test_a_command_dies_with_the_process_that_watches_it(tmp_path):
    folder, root = Path(__file__).parent, Path(__file__).parents[3]
    words = [sys.executable, "-c", WATCHER, str(folder), str(root), str(tmp_path / "x.log")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout.readline() == b"runs\n"
        (pid,) = _children_named("tiny_command.py", watcher.pid)
        descriptor = os.pidfd_open(pid)
        watcher.send_signal(signal.SIGKILL)
        watcher.wait()
        _wait_for_end(descriptor)


def test_a_program_that_cannot_be_started_says_so(ended):
    trial = ended(program="/no/such/program")
    assert trial.outcome is Outcome.FAILED
    assert "FileNotFoundError" in trial.message


def _children_named(name, parent=None):
    parent = parent or os.getpid()
    files = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [pid for file in files for pid in file.read_text().split()]
    return [int(pid) for pid in pids if name in Path(f"/proc/{pid}/cmdline").read_text()]


def _wait_for_end(descriptor):
    assert select.select([descriptor], [], [], 20)[0]


def _lives(pid):
    return Path(f"/proc/{int(pid)}").exists()
