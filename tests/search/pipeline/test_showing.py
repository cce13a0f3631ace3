import json

import pytest

from search import home
from search.pipeline import showing
from search.trials.ledger import Ledger


@pytest.fixture
def sweeps(tmp_path, monkeypatch):
    """Three sweeps: one as it should be, and two that cannot be read."""
    monkeypatch.setenv("PARETUNE_HOME", str(tmp_path))
    for name in ("good", "other", "torn"):
        home.create_home(name, sweep_text="", manifest=_manifest())
    (tmp_path / "other" / "manifest.json").write_text('{"sweep_id": "1"}')
    (tmp_path / "torn" / "ledger.jsonl").write_text("no record\n")
    with Ledger(tmp_path / "good").claim():
        pass


def _manifest():
    return home.Manifest(
        sweep_id="1",
        created_at=home.now(),
        tracking_uri="sqlite:///mlflow.db",
        objective="package.module:Name",
        data={},
        dimensions=("width",),
        objectives=(),
        metrics=(),
        num_trials=3,
        num_tokens=1000,
        budget_bytes=2**20,
        cpus=1,
        versions={},
        provenance={},
    )


@pytest.mark.usefixtures("sweeps")
def test_a_sweep_that_cannot_be_read_hides_no_other(capsys):
    showing.list_sweeps(as_json=True)
    shown = capsys.readouterr()
    assert [row["name"] for row in json.loads(shown.out)] == ["good"]
    other, torn = shown.err.splitlines()
    assert "other holds no sweep that this version can read" in other
    assert "torn" in torn
    assert "line 1 is no record" in torn
