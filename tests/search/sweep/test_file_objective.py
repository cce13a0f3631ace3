"""Faults that a sweep file's objective tells: its data, its metrics, the tokens of a trial."""
# ruff: noqa: ISC004 - in a list of messages each spans as many lines as it needs

import pytest


@pytest.mark.parametrize(
    ("fields", "told"),
    [
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
