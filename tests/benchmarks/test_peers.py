"""The table of others' estimates, from answers recorded and worked by hand."""

import json
import sys

import pytest

from benchmarks import peer_estimates, peers
from benchmarks.peer_estimates import NotForThisError, answer
from benchmarks.peers import (
    OURS,
    Answers,
    error_percent,
    figures,
    measured_bytes,
    parsed,
    peer_answers,
    report,
    rows_of,
)
from search.errors import InputError

MIB = 2**20
WHOLE = {
    "id": "gm-mlp-1", "input_size": 64, "output_size": 10, "hidden_layers": 2,
    "architecture": "uniform", "batch": 16, "activation": "relu", "dropout_rate": 0.1,
    "use_dropout": False, "use_batch_norm": False, "max_gpu_mem_mib": 1500,
}  # fmt: skip
LITGPT = {
    "id": "litgpt-1", "group": "litgpt-thunder", "model": "TinyLlama 1.1B",
    "model_dims": {
        "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "vocab": 256,
        "tied_embeddings": False,
    },
    "micro_batch": 2, "seq_len": "32 (block size)", "precision": "bf16-true",
    "optimizer": "AdamW (script default)", "parallelism": "single", "compile": "eager",
    "gpu": "1x A100-SXM4-40GB", "value": 2.0, "unit": "GB",
}  # fmt: skip

# What `peer_estimates` printed for vramcalc-001, -008 and a perceptron, 30 November 2026.
RECORDED = """\
{"id": "vramcalc-001", "bytes": 9886515456}
{"id": "vramcalc-008", "reason": "knows no adapters"}
{"id": "gm-mlp-0008", "bytes": 70728256}
"""


def test_answers_are_read():
    assert list(map(parsed, RECORDED.splitlines())) == [
        ("vramcalc-001", 9_886_515_456),
        ("vramcalc-008", "knows no adapters"),
        ("gm-mlp-0008", 70_728_256),
    ]


def test_answers_are_kept_and_asked_for_once(tmp_path):
    known = Answers(tmp_path / "tool.jsonl")
    assert known.missing([WHOLE, LITGPT]) == [WHOLE, LITGPT]
    known.add("litgpt-1", 5)
    known.add("gm-mlp-1", "knows no perceptrons")
    again = Answers(tmp_path / "tool.jsonl")
    assert again.missing([WHOLE, LITGPT]) == []
    assert (again.of(LITGPT), again.of(WHOLE)) == (5, "knows no perceptrons")
    assert Answers(tmp_path / "other").of(WHOLE) == "no answer in the time given"


def test_what_was_measured_is_in_bytes():
    assert measured_bytes(WHOLE) == 1500 * MIB
    assert measured_bytes(LITGPT) == 2_000_000_000


def test_others_are_given_the_context_on_whole_devices():
    # 1,429 MiB of context (A100): 71 MiB of tensors make 1,500.
    assert error_percent(WHOLE, 71 * MIB) == 0
    assert error_percent(WHOLE, 1530 * MIB, is_ours=True) == pytest.approx(2)
    assert error_percent(LITGPT, 1_900_000_000) == pytest.approx(-5)
    assert error_percent(LITGPT, "knows no adapters") is None


def test_figures_are_those_of_a_worked_example():
    found = figures([-10.0, 1.0, -2.0, 3.0])
    assert (found.num_rows, found.median_percent, found.largest_percent) == (4, 2.5, -10.0)
    assert found.under_share == 0.25
    assert str(found) == "4 | 2.50 | -10.00 | 25"
    assert str(figures([])) == "0 | - | - | -"


def test_our_own_figure_stands_on_the_rows_of_each(tmp_path):
    ours, tool = Answers(tmp_path / "ours"), Answers(tmp_path / "tool")
    ours.add("litgpt-1", 2_020_000_000)
    ours.add("gm-mlp-1", 1515 * MIB)
    tool.add("litgpt-1", 1_000_000_000)
    tool.add("gm-mlp-1", "knows Llama-like decoders alone")
    lines = report([LITGPT, WHOLE], {OURS: ours, "vramcalc": tool}, "Here.").splitlines()
    assert "| paretune | 1 | 1.00 | +1.00 | 0 | 1.00 | +1.00 |" in lines
    assert "| vramcalc | 1 | 50.00 | -50.00 | 100 | 1.00 | +1.00 |" in lines
    assert "| vramcalc | 0 | - | - | - | - | - |" in lines
    assert "| litgpt-1 | 2.00 | +1.00 | -50.00 |" in lines
    assert "| gm-mlp-1 | 1.57 | +1.00 | - |" in lines
    assert lines[-1] == "- vramcalc, 1 rows (gm-mlp-1...): knows Llama-like decoders alone"


def test_rows_are_sampled_by_the_seed_without_what_was_disturbed(tmp_path):
    rows = [WHOLE | {"id": f"gm-mlp-{n}", "suspect_extra_load": n == 3} for n in range(40)]
    (tmp_path / "published.json").write_text(json.dumps({"rows": [LITGPT]}))
    (tmp_path / "gpumemnet_mlp.json").write_text(json.dumps(rows))
    (tmp_path / "gpumemnet_transformer.json").write_text("[]")
    first, second, other = (
        [row["id"] for row in rows_of(tmp_path, sample=10, seed=seed)] for seed in (0, 0, 1)
    )
    assert first == second
    assert first != other
    assert first[0] == "litgpt-1"
    assert len(set(first)) == 11
    assert "gm-mlp-3" not in [row["id"] for row in rows_of(tmp_path, sample=99, seed=0)]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"published\.json: cannot be read"):
        rows_of(tmp_path, sample=1, seed=0)


def test_a_tool_that_is_not_installed_says_so():
    found = dict(peer_answers("DeepSpeed", [WHOLE], sys.executable, seconds=60))
    assert list(found) == ["gm-mlp-1"]
    assert found["gm-mlp-1"] == "ModuleNotFoundError: No module named 'deepspeed'"


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (NotForThisError("knows no adapters"), "knows no adapters"),
        (KeyError("hidden"), "KeyError: 'hidden'"),
        (RuntimeError("first\nsecond"), "RuntimeError: first"),
    ],
)
def test_whatever_a_tool_raises_is_its_answer(raised, reason, monkeypatch):
    def raises(_):
        raise raised

    monkeypatch.setattr(peer_estimates, "PEERS", {"tool": raises})
    assert answer("tool", json.dumps(WHOLE)) == {"id": "gm-mlp-1", "reason": reason}


def test_the_tracker_of_torch_sees_the_states_and_no_workspace():
    # 8,970 parameters of 4 B four times: weights, gradients, two moments; the rest is one batch.
    num_params = 2 * (64 * 64 + 64) + 64 * 10 + 10
    found = answer("MemTracker", json.dumps(WHOLE))["bytes"]
    assert 16 * num_params < found < 16 * num_params + 2**17


@pytest.mark.parametrize("name", peers.PEERS)
def test_every_tool_can_be_asked(name):
    assert name in peer_estimates.PEERS
