"""The page about the sweep file says what is so."""

import re
from typing import get_args

import pytest
from pydantic import BaseModel

from objectives.language_model import LanguageModel
from search.errors import FileFaultsError
from search.sweep.dimensions import default_params
from search.sweep.file import parse_sweep
from search.sweep.sweep import Sweep

CAPACITY_BYTES = 24 * 1024**3


@pytest.fixture
def page(pytestconfig):
    return (pytestconfig.rootpath / "docs" / "sweep-file.md").read_text()


def _fields(model, prefix=""):
    for name, field in model.model_fields.items():
        kind = next(iter(get_args(field.annotation)), field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel) and name != "space":
            yield from _fields(kind, f"{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_field_has_a_row(page):
    for name in _fields(Sweep):
        assert f"\n| `{name}` |" in page, name


def test_every_dimension_has_a_row_with_its_default(page):
    for name, default in default_params(LanguageModel).items():
        row = re.search(rf"\n\| `{name}` \| .* \| (.*) \|", page)
        assert row, name
        if name != "seed":
            shown = row.group(1).strip("`")
            assert shown == str(default).lower() or float(shown) == default


def test_its_examples_are_read(page):
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    loaded = [parse_sweep(each, path="x", capacity_bytes=CAPACITY_BYTES) for each in examples]
    assert [each.sweep.name for each in loaded] == ["first", "everything-1"]
    assert set(_fields(Sweep)) - {"memory.device"} <= _given(loaded[1].sweep.model_dump())


def test_its_report_is_what_is_told(page):
    report = re.search(r"```\n(sweep.yaml: 4 faults\n.*?)```", page, re.DOTALL).group(1)
    example = re.search(r"```yaml\n(.*?)```", page, re.DOTALL).group(1)
    bad = (
        example.replace("low: 1e-4", "low: 0")
        .replace("batch_size: [8, 16, 32]", "sequnce_length: [8]")
        .replace("trial:", "memory: {budget: 40 GiB}\ntrial:")
        .replace("bits_per_byte: min", "bits_per_byte: max")
    )
    with pytest.raises(FileFaultsError) as caught:
        parse_sweep(bad, path="sweep.yaml", capacity_bytes=CAPACITY_BYTES)
    assert f"{caught.value}\n" == report


def _given(values, prefix=""):
    names = set()
    for name, value in values.items():
        names.add(f"{prefix}{name}")
        if isinstance(value, dict):
            names |= _given(value, f"{name}.")
    return names
