import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.cleaning import Cleaning, cleaned
from search.errors import InputError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"as it is\n", b"as it is\n"),
        (b"\xef\xbb\xbfone\r\ntwo\rthree", b"one\ntwo\nthree\n"),
        (b"a \t\n\tb  \n", b"a\n\tb\n"),
        (b"a\x00b\x0c\x7f\n", b"ab\n"),
        (b"a\n\n\nb\n\n\n\n\n\nc\n\n", b"a\n\n\nb\n\n\nc\n"),
        (b" \r\n \r\n", b""),
        ("\u00e9\u4e2d\n".encode(), "\u00e9\u4e2d\n".encode()),
    ],
)
def test_golden(text, wanted):
    assert cleaned(text) == wanted


@given(st.binary(max_size=40))
def test_what_is_clean_stays_so(text):
    assert cleaned(cleaned(text)) == cleaned(text)


def test_by_default_nothing_is_done_and_nothing_recorded():
    documents = {"a": b"x \r\n", "b": b"x \r\n"}
    assert Cleaning().does_nothing
    assert Cleaning().applied(documents) == (documents, {})


def test_what_is_saved_is_recorded():
    words = b"one two three four five six seven eight nine ten eleven twelve " * 3
    documents = {"a": words, "b": words, "c": words + b"more", "d": b"other\r\n"}
    kept, record = Cleaning(clean=True, duplicates="near").applied(documents)
    assert list(kept) == ["a", "d"]
    assert record == {
        "bytes_saved_by_cleaning": 0 + 0 - 1 + 1,  # c gained a line end, d lost a sign
        "num_repeated_files": 1,
        "num_nearly_repeated_files": 1,
        "bytes_saved_by_deduplication": len(words) + len(words + b"more\n"),
    }


@pytest.mark.parametrize("similarity", [0.0, 1.1, -1.0])
def test_a_similarity_that_is_no_share_is_refused(similarity):
    with pytest.raises(InputError, match="similarity must be above 0 and at most 1"):
        Cleaning(similarity=similarity)
