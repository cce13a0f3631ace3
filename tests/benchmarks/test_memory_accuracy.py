"""The command: what it prints where, and how it refuses."""

import json
import sys

import pytest

from benchmarks import memory_accuracy

MLP = {
    "id": "mlp",
    "input_size": 11,
    "output_size": 1,
    "hidden_layers": 3,
    "architecture": "bottleneck",
    "batch": 11,
    "activation": "tanh",
    "dropout_rate": 0.16,
    "use_dropout": True,
    "use_batch_norm": False,
    "total_parameters": 79,
    "max_gpu_mem_mib": 1451,
}
NAMES = {
    "rows",
    "median_error_percent",
    "p95_error_percent",
    "max_error_percent",
    "under_by_2_percent_share",
    "called_fitting_but_oom",
    "called_oom_but_fitting",
}


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["memory_accuracy", *map(str, words)])
    memory_accuracy.main()


@pytest.fixture
def data(tmp_path):
    rows = [MLP, {**MLP, "id": "loaded", "suspect_extra_load": True}]
    (tmp_path / "gpumemnet_mlp.json").write_text(json.dumps(rows))
    other = {"id": "far", "group": "far-away", "grade": "A"}
    (tmp_path / "published.json").write_text(json.dumps({"rows": [other]}))
    return tmp_path


def test_json_is_all_there_is_on_the_standard_output(data, monkeypatch, capsys):
    table = data / "table.md"
    run(
        monkeypatch, "--data", data, "--group", "gpumemnet_mlp", "--json", "--jobs", 1,
        "--output", table,
    )  # fmt: skip
    written = capsys.readouterr()
    groups = json.loads(written.out)["groups"]
    assert set(groups) == {"gpumemnet_mlp"}
    assert set(groups["gpumemnet_mlp"]) == NAMES
    assert groups["gpumemnet_mlp"]["rows"] == 1
    assert groups["gpumemnet_mlp"]["max_error_percent"] == 0
    assert "1/1 gpumemnet_mlp mlp: +0.00 %" in written.err
    text = table.read_text()
    assert "| mlp | 1,451.0 | 1,451.0 | +0.00 |" in text
    assert "| gpumemnet_mlp | marked suspect_extra_load | 1 | loaded |" in text
    assert str(data) not in text


def test_rows_that_cannot_be_rebuilt_are_listed(data, monkeypatch, capsys):
    run(monkeypatch, "--data", data, "--group", "far_away")
    text = capsys.readouterr().out
    assert "| far_away | rows of 'far-away' are not rebuilt here | 1 | far |" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "/nowhere/at/all"], "/nowhere/at/all: no such folder"),
        (["--group", "liger"], "--group liger needs --data DIR"),
        (["--limit", "0"], "must be at least 1, found 0"),
    ],
)
def test_what_cannot_be_done_is_said(words, message, monkeypatch, capsys):
    with pytest.raises(SystemExit) as refused:
        run(monkeypatch, *words)
    assert refused.value.code == 2
    written = capsys.readouterr()
    assert message in written.err
    assert written.out == ""


def test_an_unknown_group_is_told_with_those_there_are(data, monkeypatch, capsys):
    with pytest.raises(SystemExit) as refused:
        run(monkeypatch, "--data", data, "--group", "nope")
    assert refused.value.code == 2
    assert "no group 'nope' (there are cpu, gpumemnet_mlp, far_away)" in capsys.readouterr().err
