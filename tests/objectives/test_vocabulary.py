import shutil

import numpy as np
import pytest

from objectives import kept_texts
from objectives.kept_texts import cache_folder
from objectives.texts import Texts
from objectives.vocabulary import tokenized
from search.errors import InputError, MachineError
from search.memory import files

TRAIN = Texts.of([b"low lower lowest", b"new newer newest"] * 20)
HELD_OUT = Texts.of([b"slow", b"\xff\0", b""])
TEXTS = {"train": TRAIN, "held_out": HELD_OUT}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "paretune" / "vocabularies"


def test_it_is_kept_where_everything_else_is(cache):
    assert cache_folder() == cache == files.cache_folder() / "vocabularies"


def test_texts_come_back_from_their_pieces():
    found = tokenized(TEXTS, trained_on=["train"], size=270)
    assert len(found.pieces) == 270
    for name, texts in TEXTS.items():
        again = [found.decoded(tokens) for tokens in found.texts[name]]
        assert again == [text.tobytes() for text in texts]


def test_fewer_pieces_than_bytes_tell_the_same_number_of_bytes():
    found = tokenized(TEXTS, trained_on=["train"], size=270)
    tokens = found.texts["train"].values
    assert len(tokens) < len(TRAIN.values) / 2
    assert found.piece_bytes[tokens].sum() == len(TRAIN.values)


def test_256_are_the_bytes_themselves_and_nothing_is_kept(cache):
    found = tokenized(TEXTS, trained_on=["train"], size=256)
    assert found.texts is TEXTS
    assert found.piece_bytes.tolist() == [1] * 256
    assert found.decoded(HELD_OUT[1]) == b"\xff\0"
    assert not cache.exists()


def test_what_is_held_out_decides_no_piece():
    others = {**TEXTS, "held_out": Texts.of([b"quite other words, quite other words"] * 9)}
    one, other = (tokenized(each, trained_on=["train"], size=270) for each in (TEXTS, others))
    assert np.array_equal(one.pieces.values, other.pieces.values)


def test_it_is_made_once_and_found_by_its_content(cache, monkeypatch):
    first = tokenized(TEXTS, trained_on=["train"], size=270)
    monkeypatch.setattr(kept_texts, "_do", lambda *_: pytest.fail("made again"))
    again = tokenized(dict(TEXTS), trained_on=["train"], size=270)
    assert np.array_equal(first.texts["train"].values, again.texts["train"].values)
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"size": 269},
        {"trained_on": ["train", "held_out"]},
        {"texts": {**TEXTS, "held_out": Texts.of([b"slo", b"w\xff\0", b""])}},
    ],
)
def test_another_content_has_another_name(cache, change):
    asked = {"texts": TEXTS, "trained_on": ["train"], "size": 270}
    for each in (asked, {**asked, **change}):
        tokenized(each["texts"], trained_on=each["trained_on"], size=each["size"])
    assert len(list(cache.iterdir())) == 2


def test_it_is_the_same_when_it_is_made_again(cache):
    first = tokenized(TEXTS, trained_on=["train"], size=268)
    before = first.pieces.values.tobytes(), first.texts["train"].values.tobytes()
    shutil.rmtree(cache)
    again = tokenized(TEXTS, trained_on=["train"], size=268)
    assert (again.pieces.values.tobytes(), again.texts["train"].values.tobytes()) == before


def test_nothing_half_made_is_left(cache, monkeypatch):
    monkeypatch.setattr(kept_texts.sys, "executable", "false")
    with pytest.raises(MachineError, match="training a vocabulary of 270 failed"):
        tokenized(TEXTS, trained_on=["train"], size=270)
    assert not list(cache.iterdir())


def test_it_works_where_nothing_can_be_kept(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = tokenized(TEXTS, trained_on=["train"], size=270)
    assert found.decoded(found.texts["train"][0]) == b"low lower lowest"


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (255, "vocabulary must be at least 256, the bytes, found 255"),
        (5_000, r"vocabulary 5000 is more than these texts give: .* \(choose at most \d+\)"),
    ],
)
def test_sizes_that_cannot_be_had_are_refused(size, message):
    with pytest.raises(InputError, match=message):
        tokenized(TEXTS, trained_on=["train"], size=size)
