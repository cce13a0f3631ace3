# ruff: noqa: ISC004 - in a list of messages each spans as many lines as it needs
import os
from dataclasses import FrozenInstanceError, dataclass, field, replace
from types import SimpleNamespace

import jsonschema
import pytest
from toy_words import A_NAME, KNOWN_TO_TOY, PRECISIONS

from objectives.language_model import LanguageModel
from search.errors import FileFaultsError, InputError
from search.objective import MEMORY_NEUTRAL, load_objective
from search.sweep.document import read_document
from search.sweep.file import parse_sweep, read_sweep, sweep_schema
from search.sweep.space import Choices, FloatRange, IntRange

# What is right


def test_a_sweep_is_its_fields_its_objective_and_its_text(load, text):
    loaded = load(description="to see", data="{num_tokens_there: 500}")
    assert loaded.sweep.name == "toy"
    assert loaded.sweep.trial.tokens == 60_000
    assert loaded.objective.num_tokens_there == 500
    assert loaded.text == text(description="to see", data="{num_tokens_there: 500}")
    with pytest.raises(FrozenInstanceError):
        loaded.text = ""


def test_numbers_take_the_type_that_their_dimension_declares(load):
    ranges = "dropout: {low: 0, high: 0.5}, width: {low: 8, high: 64, step: 8}"
    choices = "heads: [1, 2.0], momentum: [0, 0.9], precision: [fp32, bf16-mixed]"
    loaded = load(space=f"{{{ranges}, {choices}}}", fixed="{clip_norm: 1, sequence_length: 1e2}")
    assert loaded.sweep.space["dropout"] == FloatRange(low=0, high=0.5)
    assert loaded.sweep.space["width"] == IntRange(low=8, high=64, step=8)
    assert repr(loaded.sweep.space["heads"]) == repr(Choices((1, 2)))
    assert repr(loaded.sweep.space["momentum"]) == repr(Choices((0.0, 0.9)))
    assert loaded.sweep.space["precision"] == Choices(("32-true", "bf16-mixed"))
    assert repr(loaded.sweep.fixed) == "{'clip_norm': 1.0, 'sequence_length': 100}"


def test_what_changes_no_tensor_is_left_out_where_memory_is_asked_for(load):
    @dataclass(frozen=True)
    class Noisy:
        width: int = 8
        dropout: float = field(default=0.0, metadata=MEMORY_NEUTRAL)

    objective = SimpleNamespace(parameters=Noisy)
    loaded = replace(load(space="{width: [8, 16], dropout: [0, 0.5]}"), objective=objective)
    assert list(loaded.memory_space) == ["width"]
    loaded = replace(load(space="{dropout: [0, 0.5]}"), objective=objective)
    assert list(loaded.memory_space) == []


def test_a_trial_has_every_dimension_as_a_plain_value(load):
    loaded = load(fixed="{precision: fp32, tied: true}", seed="4")
    params = loaded.params_of({"width": 16, "learning_rate": 0.002})
    assert params == {
        "learning_rate": 0.002,
        "batch_size": 32,
        "micro_batch_size": "equal",
        "precision": "32-true",
        "optimizer": "adamw",
        "optimizer_implementation": "auto",
        "optimizer_offload": False,
        "step_in_backward": False,
        "zero_grad_to_none": True,
        "weight_decay": 0.01,
        "momentum": 0.9,
        "warmup_fraction": 0.05,
        "clip_norm": 1.0,
        "activation_checkpointing": False,
        "prefetch": 0,
        "workers": 0,
        "pin_memory": True,
        "world_size": 1,
        "sharding": "none",
        "gradient_as_bucket_view": True,
        "seed": 4,
        "sequence_length": 16,
        "width": 16,
        "heads": 2,
        "dropout": 0.0,
        "activation": "relu",
        "tied": True,
    }
    assert {type(value) for value in params.values()} == {float, int, str, bool}


def test_a_section_with_nothing_in_it_counts_as_left_out(load):
    loaded = load(fixed="", memory="", resources="", data="")
    assert loaded.sweep.fixed == {}
    assert loaded.sweep.memory.gate


def test_a_name_that_looks_like_a_date_is_a_name(load):
    assert load(name="2026-02-01").sweep.name == "2026-02-01"


def test_what_was_read_is_read_again_from_the_text_it_keeps(load, tmp_path):
    first = load(memory="{budget: 2 GiB}", space="{precision: [fp32, tf32]}")
    kept = tmp_path / "sweep.yaml"
    kept.write_text(first.text)
    assert read_sweep(kept, capacity_bytes=4 * 1024**3).sweep == first.sweep


def test_a_file_with_a_byte_order_mark_is_read(text, tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(text(), encoding="utf-8-sig")
    assert read_sweep(file, capacity_bytes=1).sweep.name == "toy"


def test_the_objective_is_built_again_from_a_sweep(load):
    sweep = load(data="{num_tokens_there: 321}").sweep
    assert load_objective(sweep.objective)(**sweep.data).num_tokens_there == 321


def test_the_capacity_is_asked_only_for_a_budget(text):
    def asked():
        msg = "asked"
        raise InputError(msg)

    assert parse_sweep(text(), path="x", capacity_bytes=asked).sweep.memory.budget is None
    with pytest.raises(InputError, match="asked"):
        parse_sweep(text(memory="{budget: 1 GiB}"), path="x", capacity_bytes=asked)


def test_a_budget_for_a_device_elsewhere_is_not_compared_with_this_one(load):
    loaded = load(memory="{budget: 70 GiB, device: NVIDIA H100}")
    assert loaded.sweep.memory.device == "NVIDIA H100"


# What is wrong, together


def test_all_faults_come_in_one_report_in_the_order_of_the_file(tmp_path):
    file = tmp_path / "lm.yaml"
    file.write_text(
        """\
name: my/sweep
objective: toys:Toy
data: {corpsu: words}
space:
  learning_rate: {low: 0, high: 1e-2, log: true}
  learning_rate: {low: 0, high: 1e-2, log: true}
  sequnce_length: [8, 16]
  width: [8, 8]
  precision: [fp32, bf17-mixed]
fixed: {width: 8, dropout: 1.5, epochs: 2}
memory: {budget: 40 GiB, gate: yes}
trial: {tokns: 60_000}
objectives: {error: max, score: maxx}
trials: many
"""
    )
    with pytest.raises(FileFaultsError) as caught:
        read_sweep(file, capacity_bytes=24 * 1024**3)
    assert caught.value.exit_code == 2
    assert str(caught.value).splitlines() == [
        f"{file}: 16 faults",
        f"  name: {A_NAME} 'my/sweep' (try 'my-sweep')",
        "  data.corpsu: 'corpsu' is not a known setting of Toy (did you mean 'corpus'?)",
        "  space.learning_rate: is given twice, in lines 5 and 6 (leave one out)",
        "  space.learning_rate.low: must be above 0 on a log scale, found 0 (try 1e-5)",
        "  space.sequnce_length: 'sequnce_length' is not a known dimension "
        "(did you mean 'sequence_length'?)",
        "  space.width: 8 is listed twice (leave one out)",
        f"  space.precision: must be {PRECISIONS}, found 'bf17-mixed' (did you mean 'bf16-mixed'?)",
        "  fixed.dropout: must be from 0 to below 1, found 1.5",
        "  fixed.width: is searched in 'space' too (leave it out of one of the two)",
        f"  fixed.epochs: 'epochs' is not a known dimension (known: {KNOWN_TO_TOY})",
        "  memory.gate: must be true or false, found 'yes' "
        "(YAML 1.2 has the words true and false alone)",
        "  memory.budget: must be at most what this device has, 24 GiB, found 40 GiB",
        "  trial.tokns: 'tokns' is not a known field (did you mean 'tokens'?)",
        "  objectives.score: must be 'min' or 'max', found 'maxx' (did you mean 'max'?)",
        "  objectives.error: must be min, since less is better, found max",
        "  trials: must be a whole number, found 'many'",
    ]
    assert list(tmp_path.iterdir()) == [file]


def test_without_a_known_objective_the_rest_is_still_told(faults):
    assert faults(
        objective="toyz:Toy",
        space="{learning_rate: [0, 1], precision: [tf23], of_the_toy: [1]}",
        trials="0",
    ) == [
        "objective: there is no module 'toyz' (is it installed, or in the working folder?)",
        f"space.precision: must be {PRECISIONS}, found 'tf23' (did you mean 'tf32'?)",
        "space.learning_rate: must be above 0, found 0",
        "trials: must be at least 1, found 0",
    ]


# Files


def _told(path) -> str:
    with pytest.raises(FileFaultsError) as caught:
        read_sweep(path, capacity_bytes=1)
    return str(caught.value)


def test_a_file_that_is_not_there(tmp_path):
    path = tmp_path / "none.yaml"
    assert _told(path) == (
        f"{path}: 1 fault\n  there is no such file ('paretune init' writes one to start from)"
    )


def test_a_folder(tmp_path):
    assert _told(tmp_path).endswith("this is a folder (name the sweep file in it)")


def test_a_path_that_leads_through_a_file(tmp_path):
    (tmp_path / "file").touch()
    told = _told(tmp_path / "file" / "sweep.yaml")
    assert told.endswith("it cannot be read: Not a directory (check its path and permissions)")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.touch(mode=0)
    assert _told(path).endswith(
        "it cannot be read: Permission denied (check its path and permissions)"
    )


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_bytes(b"name: \xff\xfe")
    assert _told(path).endswith("this is not text: byte 6 is not UTF-8 (save it as UTF-8)")


# The schema


def test_every_field_of_the_schema_is_described():
    schema = sweep_schema()
    models = [schema, *(each for each in schema["$defs"].values() if "properties" in each)]
    for model in models:
        for name, each in model["properties"].items():
            assert each.get("description"), name


def test_the_schema_takes_what_the_reader_takes(text):
    schema = sweep_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    written = text(
        space="{width: {low: 8, high: 16}, dropout: {low: 0, high: 0.5}, tied: [true]}",
        memory="{budget: 8 GiB, risk: 0.1}",
        trial="{tokens: '60_000', time_limit: 10 min}",
    )
    jsonschema.validate(read_document(written, "x").data, schema)
    for bad in (
        {"sed": "0"},
        {"trials": "0"},
        {"name": "a/b"},
        {"space": "{width: {low: 1}}"},
        {"memory": "{risk: 0.5}"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(read_document(text(**bad), "x").data, schema)


def test_the_quickstart_is_read_with_the_real_objective(pytestconfig):
    path = pytestconfig.rootpath / "configs" / "quickstart.yaml"
    loaded = read_sweep(path, capacity_bytes=24 * 1024**3)
    assert isinstance(loaded.objective, LanguageModel)
    assert loaded.sweep.name == "quickstart"
