"""Errors kept as a prior, in the form that is read."""

import json

from benchmarks.accuracy_priors import write_priors
from benchmarks.accuracy_rows import Judged


def row(group, *, kind="cuda", ran_out=False):
    return Judged(
        group=group,
        name="x",
        measured_bytes=10,
        expected_bytes=9,
        low_bytes=8,
        high_bytes=11,
        ran_out=ran_out,
        kind=kind,
    )


def test_errors_of_whole_devices_are_kept(tmp_path):
    file = tmp_path / "priors.json"
    file.write_text('{"cpu": [[1, 2]]}')
    write_priors(file, [row("gpumemnet_mlp"), row("gpumemnet_mlp", ran_out=True), row("liger")])
    assert json.loads(file.read_text()) == {"cpu": [[1, 2]], "cuda": [[9, 10]]}
    write_priors(file, [row("cpu", kind="cpu")])
    assert json.loads(file.read_text()) == {"cpu": [[9, 10]], "cuda": [[9, 10]]}
