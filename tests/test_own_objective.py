"""The page about training something of one's own, followed word by word."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PARETUNE = str(Path(sys.executable).with_name("paretune"))


@pytest.fixture(scope="module")
def folder(pytestconfig, tmp_path_factory):
    """The files that the page shows, in a folder of their own."""
    page = (pytestconfig.rootpath / "docs" / "own-objective.md").read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("own")
    for kind, names in {
        "python": ("digits.py", "train.py"),
        "yaml": ("digits.yaml", "script.yaml"),
    }.items():
        for name, text in zip(
            names, re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL), strict=True
        ):
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def run(folder, *arguments, code=0):
    done = subprocess.run(
        [PARETUNE, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def trials_of(folder, name):
    lines = (folder / ".paretune" / name / "ledger.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [record["trial"] for record in records if record["record"] == "finished"]


def test_the_function_is_swept_and_what_its_trials_told_is_planned_with(folder):
    told = run(folder, "sweep", "digits.yaml")
    assert "digits:train is not predicted: learned from trials" in told
    assert (
        "its memory grows with batch_size, width: the first trials go from small to large" in told
    )
    trials = trials_of(folder, "digits")
    assert [trial["outcome"] for trial in trials] == ["completed"] * 6
    assert max(trial["metrics"]["accuracy"] for trial in trials) > 0.8
    plan = run(folder, "plan", "digits.yaml")
    assert "cannot be planned ahead: digits:train is not predicted: learned from trials" in plan
    assert "measured in 6 trials: up to " in plan


def test_the_command_is_swept_and_its_pick_is_run_by_hand(folder):
    run(folder, "sweep", "script.yaml")
    outcomes = {trial["params"]["size"]: trial["outcome"] for trial in trials_of(folder, "script")}
    # a list of four million numbers takes 8 B an entry, and 24 B a number
    assert outcomes.pop(4_000_000, "out_of_memory") == "out_of_memory"
    assert set(outcomes.values()) == {"completed"}
    assert (folder / ".paretune" / "script" / "logs" / "trial-000.log").read_text() == "done\n"
    run(folder, "pick", "script", "--maximize", "accuracy")
    run(folder, "export", "script", "-o", "SCRIPT.yaml")
    told = run(folder, "train", "SCRIPT.yaml", code=2)
    assert "run it by\n  python3 train.py --lr 0." in told
