"""Plans of a model of a few weights on the command line, for a GPU that is not here."""

import json
from pathlib import Path

import pytest

from search.errors import InputError
from search.pipeline.running import predict_ahead
from search.pipeline.staging import prepare_plan

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

SWEEP = """\
name: tiny
objective: half_compiled:HalfCompiled
space: {width: [16, 32]}
fixed: {batch_size: 4}
memory: {budget: 8 GiB}
trial: {tokens: 4096}
objectives: {bits_per_byte: min}
trials: 2
"""
OBJECTIVE = """\
import torch
from tiny_objective import TinyModel

class HalfCompiled(TinyModel):
    def model(self, params):
        model = super().model(params)
        return torch.compile(model) if params["width"] == 32 else model
"""

GPU = ("--device", "RTX 4090")


@pytest.fixture(autouse=True)
def folder(tiny_folder):
    Path("half_compiled.py").write_text(OBJECTIVE, encoding="utf-8")
    (tiny_folder / "tiny.yaml").write_text(SWEEP, encoding="utf-8")
    Path("ungated.yaml").write_text(SWEEP.replace("GiB}", "GiB, gate: false}"), encoding="utf-8")


def test_a_compiled_model_is_refused_after_what_could_be_planned(plan):
    code, out, err = plan("tiny.yaml", *GPU)
    assert code == 2
    assert "1 of 1 structures fit" in out
    assert err.startswith("cannot be predicted at width 32: the model, a ")
    assert "is compiled by torch.compile" in err

    code, out, _ = plan("tiny.yaml", "--json", *GPU)
    (refused,) = json.loads(out)["unpredicted"]
    assert (code, refused["point"]) == (2, {"width": 32})


def test_where_the_gate_is_off_it_is_said_alone(plan):
    code, out, _ = plan("ungated.yaml", *GPU)
    assert code == 0
    assert "cannot be predicted at width 32: the model, a " in " ".join(out.split())


def test_a_sweep_ends_before_its_first_trial():
    with pytest.raises(InputError, match="cannot be predicted at width 32: the model, a "):
        predict_ahead(prepare_plan(Path("tiny.yaml"), device_name="RTX 4090"))
    predict_ahead(prepare_plan(Path("ungated.yaml"), device_name="RTX 4090"))
