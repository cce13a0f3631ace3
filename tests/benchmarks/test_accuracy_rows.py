"""Which rows count, in which group, and what they measured."""

import json

import pytest

from benchmarks.accuracy_rows import chosen, judged, measured_bytes, rows_of, why_left_out
from search.errors import InputError
from search.units import MIB

MLP = {
    "id": "mlp",
    "input_size": 11,
    "output_size": 1,
    "hidden_layers": 3,
    "architecture": "bottleneck",
    "batch": 11,
    "activation": "tanh",
    "dropout_rate": 0.16,
    "use_dropout": True,
    "use_batch_norm": False,
    "total_parameters": 79,
    "max_gpu_mem_mib": 1451,
}


def test_a_group_is_a_files_stem_or_a_published_rows_own(tmp_path):
    (tmp_path / "gpumemnet_mlp.json").write_text(json.dumps([MLP]))
    published = [{"group": "gpumemnet-mlp"}, {"group": "litgpt-thunder"}]
    (tmp_path / "published.json").write_text(json.dumps({"title": "", "rows": published}))
    found = rows_of(tmp_path)
    assert {name: len(rows) for name, rows in found.items()} == {
        "gpumemnet_mlp": 2,
        "litgpt_thunder": 1,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a file of measurements"),
        ('{"title": 1}', "not a file of measurements"),
        ('{"rows": 1}', "expected a list of rows"),
        ("[1]", "expected a list of rows"),
        ("[]", "no rows in it"),
    ],
)
def test_a_file_of_another_form_is_named(tmp_path, text, message):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=message):
        rows_of(tmp_path)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        rows_of(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("row", "group", "reason"),
    [
        (MLP, "gpumemnet_mlp", None),
        ({**MLP, "suspect_extra_load": True}, "gpumemnet_mlp", "marked suspect_extra_load"),
        ({**MLP, "targeted_page": True}, "gpumemnet_mlp", "marked targeted_page"),
        ({**MLP, "suspect_extra_load": False, "row_complete": False}, "gpumemnet_mlp", None),
        ({"grade": "B"}, "liger", "grade B"),
        ({"grade": "A"}, "mine", "no rows of 'mine' are rebuilt"),
        ({"grade": "A", "group": "mine"}, "mine", "rows of 'mine' are not rebuilt here"),
    ],
)
def test_rows_are_left_out_for_a_reason(row, group, reason):
    found = why_left_out(row, group)
    assert found == reason or reason in found


def test_a_limit_takes_the_same_rows_for_a_seed():
    rows = [{**MLP, "id": str(number)} for number in range(30)]
    rows[3]["targeted_page"] = True
    first, left_out = chosen(rows, "gpumemnet_mlp", limit=5, seed=1)
    assert [row.name for row in left_out] == ["3"]
    assert len(first) == 5
    assert first == chosen(rows, "gpumemnet_mlp", limit=5, seed=1)[0]
    assert first != chosen(rows, "gpumemnet_mlp", limit=5, seed=2)[0]
    assert len(chosen(rows, "gpumemnet_mlp", limit=None, seed=1)[0]) == 29


@pytest.mark.parametrize(
    ("row", "num_bytes"),
    [
        ({"max_gpu_mem_mib": 3}, 3 * MIB),
        ({"value": 2.5, "unit": "GB (1e9)"}, 2_500_000_000),
        ({"value": 1.5, "unit": "MiB (printed as MB)"}, 3 * MIB // 2),
        ({"value": 7, "unit": "bytes"}, 7),
    ],
)
def test_units_are_read(row, num_bytes):
    assert measured_bytes(row) == num_bytes


def test_an_unknown_unit_is_named():
    with pytest.raises(InputError, match="the unit 'furlong'"):
        measured_bytes({"id": "x", "value": 1, "unit": "furlong"})


def test_a_run_out_of_memory_is_judged_by_what_it_could_have_had():
    found = judged("gpumemnet_mlp", {**MLP, "status": "OOM_CRASH"})
    assert (found.ran_out, found.fits) == (True, True)
    assert found.measured_bytes == 40_370 * MIB
    went_on = judged("gpumemnet_mlp", MLP)
    assert went_on.error_percent == 0
