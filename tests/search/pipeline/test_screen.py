import io
import os
import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from search.errors import MachineError
from search.pipeline import screen
from search.pipeline.screen import StopRequest, encodable, print_file


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", "0.98 │● ↓ größe"),
        ("ascii", "0.98 |* v gr??e"),
        ("latin-1", "0.98 |* v größe"),
    ],
)
def test_a_text_is_shown_with_what_an_encoding_has(encoding, shown):
    assert encodable("0.98 │● ↓ größe", encoding) == shown


def test_every_sign_of_the_chart_and_the_bars_has_its_like():
    assert encodable("↓↑●·│└─━", "ascii") == "v^*.|+--"


class Sink(io.TextIOWrapper):
    """A standard output that fails as a closed pipe, a lost terminal or a full disk does."""

    def __init__(self, fault: int):
        super().__init__(io.BytesIO(), encoding="utf-8")
        self.fault = fault
        self.name_of = os.open(os.devnull, os.O_WRONLY)

    def write(self, _text):
        raise OSError(self.fault, os.strerror(self.fault))

    def fileno(self):
        return self.name_of


@pytest.mark.parametrize("fault", [32, 5, 28])  # EPIPE, EIO, ENOSPC
def test_a_reader_that_leaves_ends_nothing(monkeypatch, fault):
    monkeypatch.setattr(sys, "stdout", Sink(fault))
    screen.say("a trial ended")
    screen.say("another one")


def test_a_file_goes_out_byte_for_byte(capfdbinary):
    print_file("größe: 1\r\n")
    assert capfdbinary.readouterr().out == "größe: 1\r\n".encode()


def test_a_file_that_cannot_be_written_whole_is_said(monkeypatch):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(MachineError, match="No space left"):
            print_file("paretune: 1\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_the_second_ends(number):
    stop, before = StopRequest(), signal.getsignal(number)
    with stop.on_interrupt():
        signal.raise_signal(number)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_file_is_a_request_until_the_next_run(tmp_path):
    stop = StopRequest(tmp_path / "stop")
    assert not stop.is_set()
    (tmp_path / "stop").touch()
    assert stop.is_set()
    assert not StopRequest(tmp_path / "stop").is_set()


def test_a_table_wider_than_the_screen_is_printed_whole(capsys, monkeypatch):
    monkeypatch.setattr(screen, "console", Console(file=sys.stdout, width=20))
    table = Table("the first of the heads", "the second of the heads", box=None)
    table.add_row("learning_rate", "0.001")
    screen.show_table(table)
    heads, row = capsys.readouterr().out.splitlines()
    assert "the first of the heads" in heads
    assert "the second of the heads" in heads
    assert row.split() == ["learning_rate", "0.001"]
