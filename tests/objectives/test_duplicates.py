import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.duplicates import NUM_HASHES, shingles, signature, without_duplicates


def document(seed: int, num_words: int = 400) -> list[bytes]:
    numbers = np.random.default_rng(seed).integers(5_000, size=num_words)
    return [b"w%d" % number for number in numbers]


def naive_shingles(text: bytes) -> set[tuple[bytes, ...]]:
    words = re.findall(rb"[0-9A-Za-z_\x80-\xff]+|[^\s0-9A-Za-z_\x80-\xff]", text)
    return {tuple(words[at : at + 5]) for at in range(max(1, len(words) - 4))}


def resemblance(one: bytes, other: bytes) -> float:
    a, b = naive_shingles(one), naive_shingles(other)
    return len(a & b) / len(a | b)


@given(st.text(alphabet="ab .\n", max_size=60), st.text(alphabet="ab .\n", max_size=60))
def test_shingles_equal_the_naive_ones(one, other):
    one, other = one.encode(), other.encode()
    found, others = set(shingles(one).tolist()), set(shingles(other).tolist())
    assert len(found) == len(naive_shingles(one))
    assert len(found & others) == len(naive_shingles(one) & naive_shingles(other))


@pytest.mark.parametrize("num_changed", [0, 1, 5, 15, 60])
def test_signatures_agree_as_often_as_shingles_are_shared(num_changed):
    words = document(0)
    changed = list(words)
    for at in range(num_changed):
        changed[at * 400 // 60] = b"changed"
    one, other = b" ".join(words), b" ".join(changed)
    agreeing = (signature(shingles(one)) == signature(shingles(other))).mean()
    assert agreeing == pytest.approx(resemblance(one, other), abs=4 * (0.25 / NUM_HASHES) ** 0.5)


def test_a_long_text_is_signed_in_parts():
    hashes = shingles(b" ".join(document(1, 10_000)))
    assert len(hashes) > 4_096
    parts = [signature(part) for part in np.array_split(hashes, 3)]
    assert np.array_equal(signature(hashes), np.min(parts, axis=0))


def test_a_later_document_that_repeats_an_earlier_one_goes():
    words = document(2)
    documents = {
        "first": b" ".join(words),
        "other": b" ".join(document(3)),
        "copy": b" ".join(words),
        "near": b" ".join([*words[:390], *document(4, 10)]),
        "spaced": b"\n  ".join(words),
        "half": b" ".join([*words[:200], *document(5, 200)]),
    }
    found = without_duplicates(documents, near=0.7)
    assert list(found.kept) == ["first", "other", "half"]
    assert found.repeated == ("copy",)
    assert found.nearly_repeated == ("near", "spaced")


def test_exact_duplicates_alone():
    documents = {"a": b"x y", "b": b"x  y", "c": b"x y"}
    found = without_duplicates(documents, near=None)
    assert list(found.kept) == ["a", "b"]
    assert found.repeated == ("c",)
    assert found.nearly_repeated == ()


def test_what_is_near_is_found_as_comparing_all_finds_it():
    generator = np.random.default_rng(0)
    bases = [document(seed) for seed in range(8)]
    documents = {}
    for number in range(60):
        words = list(bases[generator.integers(8)])
        for at in generator.integers(400, size=int(generator.choice([0, 2, 40, 120]))):
            words[at] = b"v%d" % generator.integers(9_999)
        documents[str(number)] = b" ".join(words)
    found = without_duplicates(documents, near=0.7)
    kept: list[str] = []
    for name, text in documents.items():
        if max((resemblance(text, documents[each]) for each in kept), default=0) < 0.7:
            kept.append(name)
    assert list(found.kept) == kept


def test_short_and_empty_documents_have_signatures():
    documents = {"a": b"", "b": b" ", "c": b"one", "d": b"one two"}
    assert list(without_duplicates(documents, near=0.9).kept) == ["a", "c", "d"]


def test_the_order_of_words_counts():
    assert not set(shingles(b"a b c d e").tolist()) & set(shingles(b"e d c b a").tolist())
