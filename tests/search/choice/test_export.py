from __future__ import annotations

from enum import StrEnum

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search.choice.export import Origin, export_yaml, read_pick
from search.choice.pick import Pick
from search.errors import FileFaultsError
from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND
from search.results import Outcome, PredictedMemory, Trial
from search.units import MIB

ORIGIN = Origin(
    sweep="quickstart",
    sweep_id="id-1",
    objective="objectives.language_model:LanguageModel",
    data={"corpus": "python-stdlib", "files": ("a", "b")},
    num_tokens=60_000,
    budget_bytes=160 * MIB,
    cpus=1,
    versions={"python": "3.11.7", "torch": "2.13.0"},
    metrics=(TOKENS_PER_SECOND, PEAK_MEMORY),
    provenance={"corpus_hash": "0123", "device": "CPU: 2 cores, #1", "absent": None},
    mlflow_run="12e5",
)
PARAMS = {"learning_rate": 1e-05, "batch_size": 32, "micro_batch_size": "equal", "flag": True}


def picked(params=PARAMS, metrics=None):
    return Pick(
        trial=Trial(
            number=7,
            params=params,
            outcome=Outcome.COMPLETED,
            metrics={"bits_per_byte": 2.5, "peak_memory": 1e8} if metrics is None else metrics,
            predicted=PredictedMemory(
                expected_bytes=10**8, low_bytes=9 * 10**7, high_bytes=11 * 10**7, phase="backward"
            ),
        ),
        reason="Trial 7 is the knee: 'why' # not.",
        conditions=("peak_memory <= 160 MiB",),
    )


def read_back(tmp_path, text):
    file = tmp_path / "pick.yaml"
    file.write_text(text, encoding="utf-8")
    return read_pick(file)


def test_a_file_holds_all_a_production_run_needs(tmp_path):
    config = read_back(tmp_path, export_yaml(picked(), ORIGIN))
    assert config.objective == ORIGIN.objective
    assert config.data == {"corpus": "python-stdlib", "files": ["a", "b"]}
    assert config.params == {**PARAMS, "micro_batch_size": 32}
    assert config.trial.tokens == 60_000
    assert config.memory.budget == 160 * MIB
    assert config.measured == {"bits_per_byte": 2.5, "peak_memory": 1e8}
    assert config.predicted["peak_memory"] == 10**8


def test_a_file_says_where_it_comes_from(tmp_path):
    provenance = read_back(tmp_path, export_yaml(picked(), ORIGIN)).provenance
    assert provenance["sweep"] == "quickstart"
    assert provenance["trial"] == 7
    assert provenance["mlflow_run"] == "12e5"
    assert provenance["reason"] == "Trial 7 is the knee: 'why' # not."
    assert provenance["conditions"] == ["peak_memory <= 160 MiB"]
    assert provenance["device"] == "CPU: 2 cores, #1"
    assert provenance["corpus_hash"] == "0123"
    assert {"python", "torch"} <= set(provenance["versions"])
    assert "absent" not in provenance


def test_sizes_are_explained_beside_their_bytes():
    text = export_yaml(picked(), ORIGIN)
    assert "budget: 167772160" in text
    assert "# 160 MiB" in text
    assert "# 95.37 MiB" in text  # 1e8 / 2**20


def test_a_choice_of_an_enumeration_is_written_as_its_word(tmp_path):
    class Kind(StrEnum):
        FAST = "fast"

    assert read_back(tmp_path, export_yaml(picked({"kind": Kind.FAST}), ORIGIN)).params == {
        "kind": "fast"
    }


TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=12)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
    st.sampled_from(
        ["no", "1e5", "null", "~", "0x1F", "2026-01-02", "1_000", ": ", "- a", "32-true"]
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,9}", fullmatch=True), VALUES, max_size=5),
    st.dictionaries(st.from_regex(r"[a-z]{1,9}", fullmatch=True), st.floats(-1e300, 1e300)),
)
def test_every_value_is_read_back_exactly(tmp_path, params, metrics):
    params.pop("micro_batch_size", None)
    config = read_back(tmp_path, export_yaml(picked(params, metrics), ORIGIN))
    assert config.params == params
    assert [type(value) for value in config.params.values()] == list(map(type, params.values()))
    assert config.measured == metrics


def test_all_faults_come_at_once(tmp_path):
    text = export_yaml(picked(), ORIGIN)
    for right, wrong in (
        ("paretune: 1", "paretune: 2"),
        ("objective:", "objectve:"),
        ("batch_size: 32\n", "batch_size: [32]\n"),
        ("tokens: 60000", "tokens: many"),
        ("budget: 167772160", "budget: 160 MiX"),
    ):
        assert right in text
        text = text.replace(right, wrong, 1)
    with pytest.raises(FileFaultsError) as caught:
        read_back(tmp_path, text)
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("pick.yaml: 5 faults")
    assert "  paretune: this version reads files of layout 1, found 2 (export it again)" in lines
    assert "  objectve: 'objectve' is not a known field (did you mean 'objective'?)" in lines
    assert "  params.batch_size: must be one value, found a list" in lines
    assert "  trial.tokens: must be a whole number, found 'many'" in lines
    assert any(line.startswith("  memory.budget: 'mix' is not a unit of memory") for line in lines)


def test_a_person_may_write_the_budget_with_a_unit(tmp_path):
    text = export_yaml(picked(), ORIGIN).replace("budget: 167772160", "budget: 1.5 GiB")
    assert read_back(tmp_path, text).memory.budget == 1536 * MIB


@pytest.mark.parametrize("text", ["", "- 1", "a: [", "\0"])
def test_what_is_no_pick_at_all_is_said(tmp_path, text):
    with pytest.raises(FileFaultsError):
        read_back(tmp_path, text)


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(FileFaultsError, match="there is no such file"):
        read_pick(tmp_path / "none.yaml")
    with pytest.raises(FileFaultsError, match="cannot be read"):
        read_pick(tmp_path)
