import json
import platform
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from objectives.data import library_sources
from objectives.labelled_texts import LabelledTexts, open_classes, open_numbers, padded
from objectives.texts import Texts
from search.errors import InputError
from search.objective import Split

ROWS = [{"text": f"word {index}", "label": "ab"[index % 2], "n": index / 2} for index in range(40)]
NAMES = {"text": "text", "label": "label", "held_out_samples": 1_000}


def jsonl(folder: Path, rows=ROWS) -> str:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def pairs(found: LabelledTexts, split: Split) -> list[tuple[str, object]]:
    texts = [text.tobytes().decode() for text in found.texts[split]]
    return list(zip(texts, found.targets[split].tolist(), strict=True))


@pytest.fixture(scope="module")
def packages() -> LabelledTexts:
    return open_classes("python-stdlib", **NAMES)


class TestPackages:
    def test_are_many_and_equally_frequent(self, packages):
        assert len(packages.classes) >= 10
        assert {"asyncio", "email", "http", "logging", "unittest"} <= set(packages.classes)
        counts = Counter(label for split in Split for _, label in pairs(packages, split))
        assert set(counts.values()) == {1_000}

    def test_are_where_the_lines_come_from(self, packages):
        sources = library_sources()
        for line, label in pairs(packages, Split.HELD_OUT)[:40]:
            found = {name for name, source in sources.items() if line.encode() in source}
            assert any(name.startswith(f"{packages.classes[label]}/") for name in found), line

    def test_no_line_is_trained_on_and_judged_on(self, packages):
        train, held_out = ({line for line, _ in pairs(packages, split)} for split in Split)
        assert not train & held_out
        assert len(train) + len(held_out) == 1_000 * len(packages.classes)

    def test_are_the_same_when_opened_again(self, packages):
        again = open_classes("python-stdlib", **NAMES)
        assert again.provenance == packages.provenance
        assert pairs(again, Split.TRAIN) == pairs(packages, Split.TRAIN)

    def test_their_provenance_names_the_python(self, packages):
        assert packages.provenance["python"] == platform.python_version()
        assert packages.provenance["held_out_samples"] == 1_000
        assert packages.provenance["num_classes"] == len(packages.classes)


def test_depths_are_those_of_the_lines():
    found = open_numbers("python-stdlib", **NAMES)
    depths = dict(pairs(found, Split.TRAIN) + pairs(found, Split.HELD_OUT))
    assert len(depths) == 12_000
    assert found.targets[Split.TRAIN].dtype == np.float32
    assert found.classes == ()
    top = [depth for line, depth in depths.items() if line.startswith(("import ", "class "))]
    inner = [depth for line, depth in depths.items() if line.startswith(("return ", "raise "))]
    assert max(depths.values()) == 6
    assert np.mean(top) < 0.5
    assert np.mean(inner) > 1.5


class TestFile:
    def test_labels_become_indices(self, tmp_path):
        found = open_classes(jsonl(tmp_path), **NAMES)
        assert found.classes == ("a", "b")
        for text, label in pairs(found, Split.TRAIN) + pairs(found, Split.HELD_OUT):
            assert label == int(text.removeprefix("word ")) % 2
        assert found.provenance["train_samples"] == 32
        assert found.provenance["held_out_samples"] == 8

    def test_numbers_stay_numbers(self, tmp_path):
        found = open_numbers(jsonl(tmp_path), **{**NAMES, "label": "n"})
        for text, number in pairs(found, Split.TRAIN):
            assert number == int(text.removeprefix("word ")) / 2

    def test_a_row_more_moves_no_other_to_the_other_side(self, tmp_path):
        before = open_classes(jsonl(tmp_path), **NAMES)
        added = [{"text": "a new one", "label": "a"}, *ROWS]
        after = open_classes(jsonl(tmp_path, added), **NAMES)
        kept = set(pairs(after, Split.HELD_OUT)) - {("a new one", 0)}
        assert kept <= set(pairs(before, Split.HELD_OUT))

    def test_any_character_may_be_in_a_text(self, tmp_path):
        rows = [{**row, "text": f"{row['text']} é \ud800"} for row in ROWS]
        assert open_classes(jsonl(tmp_path, rows), **NAMES).texts[Split.TRAIN]

    def test_one_label_is_refused(self, tmp_path):
        rows = [{**row, "label": "a"} for row in ROWS]
        with pytest.raises(InputError, match="column 'label' must hold at least 2 labels, found 1"):
            open_classes(jsonl(tmp_path, rows), **NAMES)

    def test_a_column_that_is_not_there_is_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"has no column 'body' .*name one of these"):
            open_classes(jsonl(tmp_path), **{**NAMES, "text": "body"})

    def test_too_few_rows_are_refused(self, tmp_path):
        with pytest.raises(InputError, match=r"a\.jsonl: too few to be split, found 9"):
            open_classes(jsonl(tmp_path, ROWS[:9]), **NAMES)


class TestPadded:
    def test_golden(self):
        pieces = Texts.of([b"\x00\x05", b"", b"\x01\x02\x03\x04"])
        found = padded(pieces, np.array([2, 0, 1]), 3)
        assert found.tolist() == [[2, 3, 4], [1, 6, 0], [0, 0, 0]]
        assert found.dtype == torch.int64

    @given(st.integers(1, 40))
    def test_a_longer_one_begins_with_the_shorter(self, length):
        pieces = Texts.of([bytes(range(20)), bytes(range(5))])
        one, other = (padded(pieces, np.array([0, 1]), each) for each in (length, 41))
        assert torch.equal(one, other[:, :length])
