# ruff: noqa: ISC004 - in a list of messages each spans as many lines as it needs
import os
from dataclasses import FrozenInstanceError, dataclass, field, replace
from types import SimpleNamespace

import jsonschema
import pytest

from objectives.language_model import LanguageModel
from search.errors import FileFaultsError, InputError
from search.objective import MEMORY_NEUTRAL, load_objective
from search.sweep.document import read_document
from search.sweep.file import parse_sweep, read_sweep, sweep_schema
from search.sweep.space import Choices, FloatRange, IntRange

KNOWN_TO_TOY = (
    "learning_rate, batch_size, micro_batch_size, precision, optimizer, optimizer_implementation, "
    "optimizer_offload, step_in_backward, zero_grad_to_none, weight_decay, momentum, "
    "warmup_fraction, clip_norm, activation_checkpointing, prefetch, workers, pin_memory, "
    "world_size, sharding, gradient_as_bucket_view, seed, sequence_length, width, heads, dropout, "
    "activation, tied"
)
PRECISIONS = "'32-true', 'tf32', 'bf16-mixed', '16-mixed' or 'bf16-true'"
A_DIMENSION = (
    "must be a list of choices or a range such as {low: 1, high: 8} "
    "(a single value belongs under 'fixed')"
)
A_NAME = (
    "must begin with a letter or a digit and go on with those, '.', '_' or '-' "
    "(it names a folder), found"
)
A_RISK = "must be a probability above 0 and below 0.5, found"


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


# What is wrong, one at a time


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        # names of fields, at every level
        ({"sed": "0"}, "sed: 'sed' is not a known field (did you mean 'seed'?)"),
        (
            {"trials": None, "trails": "3"},
            "trails: 'trails' is not a known field (did you mean 'trials'?)",
        ),
        (
            {"memory": "{gaet: true}"},
            "memory.gaet: 'gaet' is not a known field (did you mean 'gate'?)",
        ),
        (
            {"trial": "{tokens: 60_000, limit: 3}"},
            "trial.limit: 'limit' is not a known field (did you mean 'time_limit'?)",
        ),
        (
            {"resources": "{gpus: 1}"},
            "resources.gpus: 'gpus' is not a known field (did you mean 'cpus'?)",
        ),
        (
            {"resources": "{x: 1}"},
            "resources.x: 'x' is not a known field (known: cpus, concurrent, price_per_hour)",
        ),
        (
            {"space": "{width: {low: 8, high: 16, logs: true}}"},
            "space.width.logs: 'logs' is not a known field (did you mean 'log'?)",
        ),
        ({"space": "{width: {low: 8}}"}, "space.width.high: must be given"),
        ({"trials": None}, "trials: must be given (such as `trials: 30`)"),
        ({"trial": "{}"}, "trial.tokens: must be given (such as `tokens: 60000`)"),
        (
            {"objective": None},
            "objective: must be given "
            "(such as `objective: objectives.language_model:LanguageModel`)",
        ),
        # types
        ({"trials": "thirty"}, "trials: must be a whole number, found 'thirty'"),
        ({"trials": "'3'"}, "trials: must be a whole number, found '3' (leave the quotes out)"),
        ({"trials": "true"}, "trials: must be a whole number, found true"),
        ({"trials": "2.5"}, "trials: must be a whole number, found 2.5"),
        ({"trials": "0"}, "trials: must be at least 1, found 0"),
        ({"seed": "-1"}, "seed: must be at least 0, found -1"),
        ({"refusals": "[1]"}, "refusals: must be a whole number, found a list"),
        ({"trial": "60_000"}, "trial: must be a mapping of names to values, found 60000"),
        ({"space": "[width]"}, "space: must be a mapping of names to values, found a list"),
        ({"fixed": "{tied: [true]}"}, "fixed.tied: must be one value, found a list"),
        ({"name": "12"}, "name: must be text, found 12 (put it in quotes: '12')"),
        (
            {"memory": "{gate: no}"},
            "memory.gate: must be true or false, found 'no' "
            "(YAML 1.2 has the words true and false alone)",
        ),
        ({"resources": "{cpus: 0}"}, "resources.cpus: must be at least 1, found 0"),
        ({"resources": "{concurrent: 0}"}, "resources.concurrent: must be at least 1, found 0"),
        # names of sweeps
        ({"name": "a/b"}, f"name: {A_NAME} 'a/b' (try 'a-b')"),
        ({"name": "'..'"}, f"name: {A_NAME} '..' (try 'my-sweep')"),
        ({"name": "''"}, f"name: {A_NAME} '' (try 'my-sweep')"),
        ({"name": "-x"}, f"name: {A_NAME} '-x' (try 'x')"),
        ({"name": "größe"}, f"name: {A_NAME} 'größe' (try 'gr-e')"),
        ({"name": "x" * 101}, "name: must have at most 100 characters, found 101"),
        # quantities
        (
            {"memory": "{budget: 8 gigs}"},
            "memory.budget: 'gigs' is not a unit of memory "
            "(known: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)",
        ),
        (
            {"memory": "{budget: lots}"},
            "memory.budget: 'lots' is not a number with a unit (try '20 GiB', '90 s' or '8000')",
        ),
        (
            {"memory": "{budget: 8}"},
            "memory.budget: must be at least 1 MiB, found 8 B (try '8 GiB')",
        ),
        (
            {"memory": "{budget: 0}"},
            "memory.budget: must be at least 1 MiB, found 0 B (try '8 GiB')",
        ),
        (
            {"memory": "{budget: -2 GiB}"},
            "memory.budget: must be at least 1 MiB, found -2 GiB (try '8 GiB')",
        ),
        (
            {"memory": "{budget: true}"},
            "memory.budget: must be a quantity such as '8 GiB', found true",
        ),
        (
            {"memory": "{budget: 1e999 GiB}"},
            "memory.budget: must be finite, found '1e999 GiB' (try '8 GiB')",
        ),
        (
            {"memory": "{budget: 25 GiB}"},
            "memory.budget: must be at most what this device has, 24 GiB, found 25 GiB",
        ),
        ({"memory": "{risk: 0}"}, f"memory.risk: {A_RISK} 0 (try 0.02)"),
        ({"memory": "{risk: 0.5}"}, f"memory.risk: {A_RISK} 0.5 (try 0.02)"),
        ({"memory": "{risk: 2}"}, f"memory.risk: {A_RISK} 2 (try 0.02)"),
        ({"memory": "{risk: 10}"}, f"memory.risk: {A_RISK} 10 (try 0.1)"),
        ({"memory": "{risk: -1e-9}"}, f"memory.risk: {A_RISK} -1e-09 (try 0.02)"),
        ({"memory": "{risk: .nan}"}, f"memory.risk: {A_RISK} nan (try 0.02)"),
        ({"memory": "{risk: true}"}, f"memory.risk: {A_RISK} true (2 percent is `risk: 0.02`)"),
        ({"memory": "{risk: 2%}"}, f"memory.risk: {A_RISK} '2%' (2 percent is `risk: 0.02`)"),
        (
            {"trial": "{tokens: 60_000, time_limit: 10 mni}"},
            "trial.time_limit: 'mni' is not a unit of time (known: µs, ms, s, min, h)",
        ),
        (
            {"trial": "{tokens: 60_000, time_limit: 0 s}"},
            "trial.time_limit: must be above 0, found 0",
        ),
        ({"trial": "{tokens: 0}"}, "trial.tokens: must be at least 1, found 0"),
        # names of dimensions
        (
            {"space": "{sequnce_length: [8, 16]}"},
            "space.sequnce_length: 'sequnce_length' is not a known dimension "
            "(did you mean 'sequence_length'?)",
        ),
        (
            {"space": "{compile: [true, false]}"},
            "space.compile: is no dimension: no trial is compiled, since the memory of what "
            "torch.compile makes cannot be predicted (leave it out, and compile what is picked)",
        ),
        (
            {"fixed": "{zzz: 1}"},
            f"fixed.zzz: 'zzz' is not a known dimension (known: {KNOWN_TO_TOY})",
        ),
        (
            {"fixed": "{width: 8}"},
            "fixed.width: is searched in 'space' too (leave it out of one of the two)",
        ),
        # forms of dimensions
        ({"space": "{}"}, "space: must name at least one dimension to search"),
        ({"space": "{width: 8}"}, f"space.width: {A_DIMENSION}"),
        ({"space": "{width: []}"}, "space.width: must list at least one choice"),
        (
            {"space": "{width: {low: 16, high: 8}}"},
            "space.width.high: must be above low, 16, found 8 (swap the two)",
        ),
        (
            {"space": "{width: {low: 8, high: 8}}"},
            "space.width.high: must be above low, 8, found 8 "
            "(a single value belongs under 'fixed')",
        ),
        (
            {"space": "{learning_rate: {low: 0, high: 0.1, log: true}}"},
            "space.learning_rate.low: must be above 0 on a log scale, found 0 (try 1e-5)",
        ),
        (
            {"space": "{width: {low: 0, high: 16, log: true}}"},
            "space.width.low: must be above 0 on a log scale, found 0 (try 1)",
        ),
        (
            {"space": "{width: {low: 8, high: 16, step: 32}}"},
            "space.width.step: must be at most high - low, 8, found 32",
        ),
        (
            {"space": "{dropout: {low: 0, high: 0.5, step: 0}}"},
            "space.dropout.step: must be above 0, found 0",
        ),
        (
            {"space": "{width: {low: 8, high: 16, step: 2, log: true}}"},
            "space.width.step: does not go with log (leave one of them out)",
        ),
        (
            {"space": "{dropout: {low: 0.0, high: .inf}}"},
            "space.dropout.high: must be a finite number, found inf",
        ),
        (
            {"space": "{dropout: {low: x, high: 0.5}}"},
            "space.dropout.low: must be a number, found 'x'",
        ),
        ({"space": "{width: [8, 8]}"}, "space.width: 8 is listed twice (leave one out)"),
        (
            {"space": "{dropout: [0, 0.0]}"},
            "space.dropout: 0 is listed twice (leave one out)",
        ),
        (
            {"space": "{precision: [fp32, 32-true]}"},
            "space.precision: 'fp32' and '32-true' are the same choice (leave one out)",
        ),
        (
            {"space": "{dropout: [0.1, .nan]}"},
            "space.dropout.1: must be a finite number, found nan",
        ),
        ({"space": "{width: [[8], 16]}"}, "space.width.0: must be one value, found a list"),
        # values of dimensions
        ({"space": "{width: [8, 8.5]}"}, "space.width: must be a whole number, found 8.5"),
        ({"space": "{width: [8, wide]}"}, "space.width: must be a whole number, found 'wide'"),
        ({"space": "{width: [8, true]}"}, "space.width: must be a whole number, found true"),
        ({"space": "{width: [8, null]}"}, "space.width: must be a whole number, found nothing"),
        (
            {"space": "{width: {low: 8.5, high: 16}}"},
            "space.width.low: must be a whole number, found 8.5",
        ),
        ({"fixed": "{dropout: '0.1'}"}, "fixed.dropout: must be a number, found '0.1'"),
        ({"fixed": "{tied: 1}"}, "fixed.tied: must be true or false, found 1"),
        (
            {"space": "{activation: {low: 1, high: 2}}"},
            "space.activation: must be 'relu' or 'gelu', found a mapping "
            "(list the choices, such as [...])",
        ),
        (
            {"space": "{precision: [bf17-mixed, tf32]}"},
            f"space.precision: must be {PRECISIONS}, found 'bf17-mixed' "
            "(did you mean 'bf16-mixed'?)",
        ),
        (
            {"fixed": "{micro_batch_size: equel}"},
            "fixed.micro_batch_size: must be a whole number, 'equal' or 'auto', found 'equel' "
            "(did you mean 'equal'?)",
        ),
        # what the dataclasses refuse
        (
            {"space": "{learning_rate: [0, 0.1]}"},
            "space.learning_rate: must be above 0, found 0",
        ),
        (
            {"space": "{weight_decay: {low: -1, high: 1}}"},
            "space.weight_decay.low: must not be negative, found -1",
        ),
        (
            {"space": "{dropout: {low: 0, high: 1.5}}"},
            "space.dropout.high: must be from 0 to below 1, found 1.5",
        ),
        ({"fixed": "{dropout: 1.5}"}, "fixed.dropout: must be from 0 to below 1, found 1.5"),
        (
            {"space": "{width: [8, 9]}"},
            "space.width: 9 must be a multiple of heads (2)",
        ),
        (
            {"space": "{width: [8, 12]}", "fixed": "{heads: 8}"},
            "space.width: 12 must be a multiple of heads (8)",
        ),
        (
            {"space": "{width: [8, 12], heads: [2, 8]}"},
            "space: width 12 must be a multiple of heads (8), for example at width 12, heads 8; "
            "1 of 4 combinations tried are refused "
            "(leave out the values that do not go together)",
        ),
        (
            {"space": "{batch_size: [8, 16], micro_batch_size: [4, 16]}"},
            "space: micro_batch_size 16 does not divide batch_size 8, for example at "
            "batch_size 8, micro_batch_size 16; 1 of 4 combinations tried are refused "
            "(leave out the values that do not go together)",
        ),
        (
            {"fixed": "{heads: 12}", "space": "{width: {low: 12, high: 60}}"},
            "space.width: 13 must be a multiple of heads (12)",
        ),
        # objectives to train
        (
            {"objective": "toys"},
            "objective: 'toys' is not of the form 'package.module:Name'",
        ),
        (
            {"objective": "toyz:Toy"},
            "objective: there is no module 'toyz' (is it installed, or in the working folder?)",
        ),
        (
            {"objective": "toys:Toi"},
            "objective: module 'toys' has no 'Toi' (did you mean 'Toy'?); "
            "it offers Toy, Picky, NoDataclass",
        ),
        (
            {"objective": "toys:NoDataclass"},
            "objective: its 'parameters' must be a dataclass, found \"<class 'dict'>\"",
        ),
        # data
        (
            {"data": "{corpsu: x}"},
            "data.corpsu: 'corpsu' is not a known setting of Toy (did you mean 'corpus'?)",
        ),
        (
            {"data": "{num_tokens_there: lots}"},
            "data.num_tokens_there: must be a whole number, found 'lots'",
        ),
        ({"data": "{corpus: [a, b]}"}, "data.corpus: must be text, found a list"),
        ({"data": "{corpus: nowhere.txt}"}, "data.corpus: 'nowhere.txt' does not exist"),
        (
            {"data": "{num_tokens_there: 20}", "space": "{sequence_length: [16, 32]}"},
            "data.num_tokens_there: the corpus has 20 tokens, too few for a window of 32",
        ),
        (
            {"fixed": "{sequence_length: 2000}", "trial": "{tokens: 1e6}"},
            "data: the corpus has 1000 tokens, too few for a window of 2000",
        ),
        # metrics
        (
            {"objectives": "{}"},
            "objectives: must name at least one metric (such as `bits_per_byte: min`)",
        ),
        (
            {"objectives": "{eror: min}"},
            "objectives.eror: 'eror' is not a known metric (did you mean 'error'?)",
        ),
        (
            {"objectives": "{zzz: min}"},
            "objectives.zzz: 'zzz' is not a known metric "
            "(known: error, score, tokens_per_second, peak_memory, energy_per_token, "
            "cost_per_million_tokens, mfu)",
        ),
        (
            {"objectives": "{error: minn}"},
            "objectives.error: must be 'min' or 'max', found 'minn' (did you mean 'min'?)",
        ),
        (
            {"objectives": "{error: max}"},
            "objectives.error: must be min, since less is better, found max",
        ),
        (
            {"objectives": "{tokens_per_second: min}"},
            "objectives.tokens_per_second: must be max, since more is better, found min",
        ),
        # tokens
        (
            {
                "trial": "{tokens: 1000}",
                "space": "{batch_size: [8, 64], sequence_length: [16, 32]}",
            },
            "trial.tokens: must be at least 2048, one step of 64 samples of 32 tokens, found 1000 "
            "(raise it, or search smaller batches)",
        ),
    ],
)
def test_one_fault(faults, fields, told):
    assert faults(**fields) == [told]


def test_a_dimension_without_a_default_and_a_setting_without_one_must_be_given(faults):
    assert faults(objective="toys:Picky", space="{learning_rate: [1e-3, 1e-2]}") == [
        "fixed.depth: has no default (give it under 'fixed', as `depth: ...`, or search it)",
        "data.vocabulary: must be given (`vocabulary: ...`)",
    ]


def test_data_that_hold_nothing_are_a_fault(faults):
    told = faults(objective="toys:Picky", space="{depth: [1, 2]}", data="{vocabulary: x}")
    assert told == [
        "data: has nothing for the train split (give it more)",
        "data: has nothing for the held_out split (give it more)",
    ]


def test_a_range_is_told_by_its_ends_not_by_all_between(faults):
    told = faults(space="{width: {low: 9, high: 4001}}", fixed="{heads: 8}")
    assert told == [
        "space.width.low: 9 must be a multiple of heads (8)",
        "space.width.high: 4001 must be a multiple of heads (8)",
    ]


def test_each_bad_choice_is_told(faults):
    assert faults(space="{batch_size: [0, 8, -1, 2.5, x]}") == [
        "space.batch_size: must be a whole number, found 2.5",
        "space.batch_size: must be a whole number, found 'x'",
        "space.batch_size: must be above 0, found 0",
        "space.batch_size: must be above 0, found -1",
    ]


def test_more_combinations_than_can_be_tried_are_drawn_from(faults):
    many = "[{}]".format(", ".join(str(8 * index) for index in range(1, 60)))
    told = faults(space=f"{{width: {many}, heads: [1, 2, 4, 8, 16], sequence_length: {many}}}")
    assert len(told) == 1
    assert told[0].startswith("space: width ")
    assert " of 2000 combinations tried are refused" in told[0]


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
