import shutil
from pathlib import Path

import pytest

from search import cli

TINY = Path(__file__).parent.parent / "trials" / "tiny_objective.py"


@pytest.fixture
def tiny_folder(tmp_path, monkeypatch):
    """The working folder, with a model of a few weights and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copy(TINY, tmp_path)
    return tmp_path


@pytest.fixture
def plan(monkeypatch, capsys):
    """How `paretune plan` ends, and what it prints."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["paretune", "plan", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    return run
