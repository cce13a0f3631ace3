"""One configuration of a model of a few weights, for a GPU that is not here."""

import json
from pathlib import Path

import pytest

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

ON_A100 = ("tiny.yaml", "--device", "A100 40GB")


@pytest.fixture(autouse=True)
def folder(tiny_folder):
    (tiny_folder / "tiny.yaml").write_text(SWEEP, encoding="utf-8")


def test_one_configuration_over_its_phases(plan):
    settings = ("--explain", "width=262144", "batch_size=64")
    code, out, _ = plan(*ON_A100, *settings, "--chart", "memory.html")
    assert code == 0
    # 4,100 tokens are 64 steps of 64 rows and one of 4
    phases = [line.partition(":")[0] for line in out.splitlines() if ": at most" in line]
    assert phases == ["model creation", "step 1", "step 2", "last batch", "evaluation"]
    assert "fits into 8 GiB" in out
    assert "<svg" in Path("memory.html").read_text(encoding="utf-8")

    code, out, _ = plan(*ON_A100, *settings, "--json")
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
def test_what_cannot_be_explained(arguments, said, plan):
    code, _, err = plan(*ON_A100, *arguments)
    assert code == 2
    assert said in err
