"""Faults of a sweep file's fields: their names, types and quantities."""
# ruff: noqa: ISC004 - in a list of messages each spans as many lines as it needs

import pytest
from toy_words import A_NAME, A_RISK


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
    ],
)
def test_one_fault(faults, fields, told):
    assert faults(**fields) == [told]
