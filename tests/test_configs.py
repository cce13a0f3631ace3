"""The sweep files that come with the project: each is without faults, and runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from search.sweep.file import read_sweep

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
PARETUNE = str(Path(sys.executable).with_name("paretune"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_has_no_faults_and_is_named_after_its_file(path):
    loaded = read_sweep(path, capacity_bytes=2**40)
    assert loaded.sweep.name == path.stem
    for command in ("plan", "sweep"):
        assert f"paretune {command} configs/{path.name}" in loaded.text


@pytest.mark.campaign
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_plans_and_sweeps(path, tmp_path):
    """As it is, but for 3 trials."""
    lines = path.read_text(encoding="utf-8").splitlines()
    shorter = ["trials: 3" if line.startswith("trials:") else line for line in lines]
    (tmp_path / path.name).write_text("\n".join(shorter), encoding="utf-8")
    outputs = [
        subprocess.run(
            [PARETUNE, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        for arguments in (["plan", path.name], ["sweep", path.name], ["front", path.stem])
    ]
    assert "structures fit" in outputs[0]
    assert "finished, 3 of 3 trials" in outputs[1]
    assert "peak" in outputs[2]
