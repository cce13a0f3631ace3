"""Whatever a file holds, it is read or its faults are told: nothing else is raised."""

import json
from contextlib import suppress

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from search.errors import FileFaultsError
from search.sweep.file import parse_sweep

FIELDS = {
    "name": "toy",
    "objective": "toys:Toy",
    "data": {"corpus": "words"},
    "space": {"width": [8, 16], "learning_rate": {"low": 0.0001, "high": 0.01, "log": True}},
    "fixed": {"heads": 2},
    "memory": {"budget": "8 GiB"},
    "trial": {"tokens": 60_000},
    "objectives": {"error": "min"},
    "trials": 3,
    "resources": {"cpus": 1},
}
names = st.sampled_from(
    [
        "width",
        "heads",
        "dropout",
        "precision",
        "micro_batch_size",
        "batch_size",
        "low",
        "high",
        "log",
        "step",
        "error",
        "corpus",
        "budget",
        "device",
        "tokens",
        "time_limit",
        "x",
    ]
)
words = st.sampled_from(
    ["min", "fp32", "equal", "8 GiB", "1e3", "", "toys:Toy", "toys:", "\n", "é"]
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 70), st.integers(), st.floats(), words, st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)
quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def _read(data):
    with suppress(FileFaultsError):
        parse_sweep(json.dumps(data), path="x", capacity_bytes=24 * 1024**3)


@quiet
@given(st.dictionaries(st.sampled_from(list(FIELDS)), values, max_size=3))
def test_any_value_of_any_field(changes):
    _read({**FIELDS, **changes})


@quiet
@given(st.sampled_from(["space", "fixed"]), st.dictionaries(names, values, max_size=3))
def test_any_dimensions(section, dimensions):
    _read({**FIELDS, section: dimensions})


@quiet
@given(st.text())
def test_any_text(text):
    with suppress(FileFaultsError):
        parse_sweep(text, path="x", capacity_bytes=1)
