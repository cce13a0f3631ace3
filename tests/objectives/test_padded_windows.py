import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.packing import IGNORED
from objectives.padded_windows import PaddedWindows
from objectives.texts import Texts
from search.errors import InputError

ASKED = {"batch_size": 2, "bucketing": 1, "seed": 0}


def documents(*lengths):
    """Documents whose values count on through all of them."""
    ends = np.cumsum(lengths)
    return Texts(values=np.arange(ends[-1]), ends=ends)


def rows(batches):
    """The pairs of input and target that are there, batch by batch and row by row."""
    for batch in batches:
        for inputs, targets in zip(batch["inputs"], batch["targets"], strict=True):
            there = targets != IGNORED
            yield list(zip(inputs[there].tolist(), targets[there].tolist(), strict=True))


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(lambda all_: max(all_) > 1),
    st.integers(1, 6),
)
def test_every_target_is_there_once_beside_the_token_before_it(lengths, context):
    texts = documents(*lengths)
    windows = PaddedWindows.of(texts, context)
    found = list(windows.batches(num_samples=3, num_tokens=None, **ASKED))
    pairs = sorted(pair for row in rows(found) for pair in row)
    assert pairs == [
        (value, value + 1)
        for end, length in zip(texts.ends, lengths, strict=True)
        for value in range(end - length, end - 1)
    ]
    assert max(batch["inputs"].shape[1] for batch in found) == windows.longest <= context
    assert found[0]["inputs"].shape[1] == windows.longest


def test_golden_batch():
    windows = PaddedWindows.of(documents(3, 2), context=4)
    (batch,) = windows.batches(num_samples=2, num_tokens=None, **ASKED)
    assert batch["inputs"].tolist() == [[0, 1], [3, 0]]
    assert batch["targets"].tolist() == [[1, 2], [4, IGNORED]]


@pytest.mark.parametrize("num_tokens", [1, 7, 40])
def test_they_hold_as_many_targets_as_are_asked_for(num_tokens):
    windows = PaddedWindows.of(documents(9, 3, 2), context=4)
    found = windows.batches(num_samples=2, num_tokens=num_tokens, **ASKED)
    assert sum(map(len, rows(found))) == num_tokens


def test_a_corpus_without_a_target_is_refused():
    with pytest.raises(InputError, match=r"no document has two tokens \(add text\)"):
        PaddedWindows.of(documents(1, 1), context=4)
