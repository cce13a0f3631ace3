"""One configuration of a model of a few weights, for a GPU that is not here."""

import json
import shutil
from pathlib import Path

import pytest

from search import cli

SWEEP = """\
name: tiny
objective: tiny_objective:TinyModel
space:
  width: [16, 262144]
  batch_size: [64, 128]
  learning_rate: {low: 1e-4, high: 1e-2, log: true}
memory: {budget: 8 GiB}
trial: {tokens: 4100}
objectives: {bits_per_byte: min}
trials: 3
"""
TINY = Path(__file__).parent.parent / "trials" / "tiny_objective.py"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    shutil.copy(TINY, tmp_path)
    Path("tiny.yaml").write_text(SWEEP, encoding="utf-8")


def run(monkeypatch, capsys, *arguments):
    """How `paretune plan` ends, and what it prints."""
    command = ["paretune", "plan", "tiny.yaml", "--device", "A100 40GB", *arguments]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0, *capsys.readouterr()


def test_one_configuration_over_its_phases(monkeypatch, capsys):
    settings = ("--explain", "width=262144", "batch_size=64")
    code, out, _ = run(monkeypatch, capsys, *settings, "--chart", "memory.html")
    assert code == 0
    # 4,100 tokens are 64 steps of 64 rows and one of 4
    phases = [line.partition(":")[0] for line in out.splitlines() if ": at most" in line]
    assert phases == ["model creation", "step 1", "step 2", "last batch", "evaluation"]
    assert "fits into 8 GiB" in out
    assert "<svg" in Path("memory.html").read_text(encoding="utf-8")

    code, out, _ = run(monkeypatch, capsys, *settings, "--json")
    found = json.loads(out)
    assert code == 0
    assert [each["phase"] for each in found["phases"]] == [
        name.replace(" ", "_") for name in phases
    ]
    assert max(each["bytes"] for each in found["phases"]) >= found["predicted"]["expected_bytes"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--explain", "width=16"), "--explain: batch_size must be given (such as"),
        (("--explain", "width=16", "batch_size=x"), "  batch_size: must be a whole number"),
        (("--explain", "wdth=16", "batch_size=64", "width=16"), "'wdth' is not a known dimension"),
        (("--explain", "wdth=16"), "did you mean 'width'?"),
        (("--explain", "width=[16]"), "--explain: width takes one value, found [16]"),
        (("--explain", "width=.inf"), "--explain: width takes one value, found inf"),
        (("--explain", "width"), "--explain: 'width' is not of the form NAME=VALUE"),
        (("width=16",), "width=16: only with --explain"),
        (("--chart", "memory.html"), "--chart: only with --explain"),
        (("--explain", "width=16", "--device", "RTX 4090"), "--explain: one configuration on one"),
    ],
)
def test_what_cannot_be_explained(arguments, said, monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, *arguments)
    assert code == 2
    assert said in err
