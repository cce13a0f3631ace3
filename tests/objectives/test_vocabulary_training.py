import itertools
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.texts import Texts
from objectives.vocabulary_training import chunks_of, encoded, pieces, trained

TEXT = "low lower lowest new newer newest wide wider widest é è\n    if low:\n" * 3


def naive_pieces(text: str, size: int) -> list[str]:
    """Byte-pair encoding as in the paper: the most frequent pair of all words, merged everywhere.

    Of equally frequent pairs the one whose pieces were made first.
    """
    words = re.findall("\n[ \t]*| ?[A-Za-z_\x80-\xff]+| ?[0-9]+| ?[^\\sA-Za-z0-9_\x80-\xff]+", text)
    counts = Counter(tuple(word) for word in words)
    known = [chr(byte) for byte in range(256)]
    while len(known) < size:
        pairs = Counter()
        for word, count in counts.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], *map(known.index, pair)))
        known.append("".join(best))
        counts = Counter({merged(word, best): count for word, count in counts.items()})
    return known


def merged(word: tuple[str, ...], pair: tuple[str, ...]) -> tuple[str, ...]:
    result: list[str] = []
    for piece in word:
        if result and (result[-1], piece) == pair:
            result[-1] += piece
        else:
            result.append(piece)
    return tuple(result)


@pytest.mark.parametrize("size", [256, 257, 270, 278])
def test_the_pieces_are_those_of_the_paper(size):
    text = TEXT.encode().decode("latin-1")
    found = [piece.decode("latin-1") for piece in pieces(trained([text], size))]
    assert found == naive_pieces(text, size)


def test_the_first_256_are_the_bytes():
    assert pieces(trained([TEXT], 270))[:256] == [bytes([byte]) for byte in range(256)]


def test_the_same_texts_give_the_same_pieces_in_any_order():
    words = TEXT.split(" ")
    one, other = (pieces(trained(each, 300)) for each in (words, words[::-1]))
    assert one == other


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=5))
def test_any_bytes_are_put_together_again(texts):
    if not any(texts):
        return
    tokenizer = trained([TEXT], 280)
    found = encoded(tokenizer, Texts.of(texts))
    spelled = pieces(tokenizer)
    assert [b"".join(spelled[token] for token in text) for text in found] == texts


def test_no_piece_reaches_beyond_its_word():
    spelled = pieces(trained(["a b1 c\n  d\n  d" * 100], 275))
    assert all(
        re.fullmatch(rb"\n\s*|\s?[a-z]+|\s?[0-9]+|.|\s", each, re.DOTALL) for each in spelled
    )


@pytest.mark.parametrize("line", [1, 70, 100_000])
def test_long_texts_are_cut_before_lines(line):
    text = np.frombuffer((b"x" * line + b"\n") * (200_000 // line), dtype=np.uint8)
    chunks = list(chunks_of(text))
    assert "".join(chunks).encode("latin-1") == text.tobytes()
    assert max(map(len, chunks)) <= 65_536
    if line < 65_536:
        assert all(chunk.startswith("\n") for chunk in chunks[1:])


def test_cutting_a_text_changes_no_piece():
    text = (TEXT * 1_500).encode()
    tokenizer = trained([TEXT], 300)
    whole = tokenizer.encode(text.decode("latin-1")).ids
    assert encoded(tokenizer, Texts.of([text])).values.tolist() == whole


def test_many_pieces_take_wider_numbers():
    assert encoded(trained([TEXT], 300), Texts.of([b"low"])).values.dtype == np.uint16
