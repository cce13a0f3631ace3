import subprocess
import sys

import pytest
from tiny_sweep import predicted, trial

from search.errors import MachineError
from search.results import CurvePoint, Outcome
from search.trials.ledger import Ledger, Refused, Started


def started(number: int) -> Started:
    return Started(
        number=number,
        point={"width": number},
        params={"width": number, "batch_size": 8},
        predicted=predicted(1000),
        details={"rescued": "micro_batch_size 4"},
    )


def test_a_ledger_that_was_never_written_is_empty(tmp_path):
    state = Ledger(tmp_path / "none").read()
    assert (state.trials, state.refused, state.unfinished) == ((), (), ())
    assert not (tmp_path / "none").exists()


def test_reads_back_what_was_written(tmp_path):
    ledger = Ledger(tmp_path)
    finished = trial(
        0,
        {"width": 0, "batch_size": 8},
        predicted=predicted(1000),
        curve=(CurvePoint(name="training_loss", num_tokens=8, value=2.0),),
        details={"pid": 7, "cores": "0,1"},
    )
    refused = Refused(point={"width": 64}, trial=trial(0, {"width": 64}, Outcome.PRUNED_BY_MEMORY))
    with ledger.claim():
        ledger.started(started(0))
        ledger.started(started(1))
        ledger.refused(refused)
        ledger.finished(finished)
    state = ledger.read()
    assert state.trials == (finished,)
    assert state.refusals == (refused,)
    assert state.unfinished == (started(1),)
    assert state.num_records == 3


def test_a_trial_written_twice_counts_once_as_it_ended_first(tmp_path):
    ledger = Ledger(tmp_path)
    with ledger.claim():
        ledger.started(started(0))
        ledger.finished(trial(0, {"width": 0}))
        ledger.started(started(0))
        ledger.finished(trial(0, {"width": 0}, Outcome.FAILED))
    assert [each.outcome for each in ledger.read().trials] == [Outcome.COMPLETED]
    assert ledger.read().num_records == 1


@pytest.mark.parametrize("num_lost_bytes", [1, 5, 40])
def test_a_torn_last_line_never_happened(tmp_path, num_lost_bytes):
    ledger = Ledger(tmp_path)
    with ledger.claim():
        ledger.started(started(0))
        ledger.started(started(1))
    file = tmp_path / "ledger.jsonl"
    file.write_bytes(file.read_bytes()[:-num_lost_bytes])
    assert ledger.read().unfinished == (started(0),)
    with ledger.claim():
        ledger.started(started(2))
    assert ledger.read().unfinished == (started(0), started(2))


def test_a_line_that_is_no_record_is_named(tmp_path):
    (tmp_path / "ledger.jsonl").write_text('{"record"\n{}\n')
    with pytest.raises(MachineError, match="line 1 is no record"):
        Ledger(tmp_path).read()


def test_a_second_driver_is_refused(tmp_path):
    script = (
        "import sys; from pathlib import Path; from search.trials.ledger import Ledger\n"
        "with Ledger(Path(sys.argv[1])).claim(): pass"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    assert not Ledger(tmp_path).is_claimed()
    with Ledger(tmp_path).claim():
        assert Ledger(tmp_path).is_claimed()
        second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "MachineError: another process is running this sweep" in second.stderr
    assert not Ledger(tmp_path).is_claimed()
    assert subprocess.run(command, check=False).returncode == 0


def test_claims_nest(tmp_path):
    ledger = Ledger(tmp_path)
    with ledger.claim():
        with ledger.claim():
            ledger.started(started(0))
        ledger.started(started(1))
    with pytest.raises(RuntimeError, match="only inside `claim`"):
        ledger.started(started(2))


def test_a_full_disk_leaves_no_torn_line_and_says_so(tmp_path):
    ledger = Ledger(tmp_path)
    with ledger.claim():
        ledger.started(started(0))
        real = ledger._open
        ledger._open = FullDisk(real)
        with pytest.raises(MachineError, match="No space left"):
            ledger.started(started(1))
        ledger._open = real
        ledger.started(started(2))
    assert ledger.read().unfinished == (started(0), started(2))


class FullDisk:
    """A file on a disk that takes ten more bytes."""

    def __init__(self, file):
        self._file = file
        self._room = 10

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, line):
        if not self._room:
            raise OSError(28, "No space left on device")
        written = self._file.write(line[: self._room])
        self._room -= written
        return written


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(MachineError, match="cannot be written"), Ledger(tmp_path / "file").claim():
        pass
