import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from objectives.packing import IGNORED, packed, packed_windows, positions_in
from objectives.texts import Texts
from search.errors import InputError

LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=30)


def documents_of(lengths: list[int]) -> Texts:
    """Documents whose tokens all differ."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return Texts(values=np.arange(ends[-1]), ends=ends)


@given(LENGTHS, st.integers(1, 12))
def test_each_token_but_the_first_of_a_document_is_a_target_once(lengths, context):
    documents = documents_of(lengths)
    windows = packed(documents, context)
    found = [
        token + 1
        for window in range(len(windows))
        for start, length in windows.parts(window)
        for token in range(start, start + length)
    ]
    assert sorted(found) == [int(token) for text in documents for token in text[1:]]


@given(LENGTHS, st.integers(1, 12))
def test_windows_hold_no_more_than_fits_and_cut_long_documents_alone(lengths, context):
    documents = documents_of(lengths)
    windows = packed(documents, context)
    parts = [list(windows.parts(window)) for window in range(len(windows))]
    assert all(sum(length for _, length in window) <= context for window in parts)
    begins = dict(zip((documents.ends - documents.lengths).tolist(), lengths, strict=True))
    for start, length in (part for window in parts for part in window):
        if start in begins and begins[start] - 1 <= context:
            assert length == begins[start] - 1


def test_golden():
    # targets 7, 5, 3, 2, 2, 1 in windows of 8: 7 + 1, 5 + 3, 2 + 2
    windows = packed(documents_of([3, 6, 2, 8, 4, 3]), 8)
    found = [sorted(length for _, length in windows.parts(each)) for each in range(3)]
    assert len(windows) == 3
    assert sorted(found) == [[1, 7], [2, 2], [3, 5]]


def test_a_long_document_is_cut():
    windows = packed(documents_of([12]), 4)
    assert [list(windows.parts(each)) for each in range(3)] == [[(0, 4)], [(4, 4)], [(8, 3)]]


def batches_of(lengths, **changed) -> list[dict[str, torch.Tensor]]:
    asked = {"context": 8, "num_samples": 2, "num_tokens": None, "seed": 0, **changed}
    return list(packed_windows(documents_of(lengths), **asked))


class TestWindows:
    LENGTHS = (3, 6, 2, 8, 4, 3, 30)

    def test_a_target_follows_its_input_in_one_document(self):
        for batch in batches_of(self.LENGTHS):
            real = batch["targets"] != IGNORED
            assert torch.equal(batch["targets"][real], batch["inputs"][real] + 1)
            assert (batch["documents"][real] >= 0).all()
            assert (batch["documents"][~real] == -1).all()

    def test_parts_are_numbered_apart(self):
        ends = np.cumsum(self.LENGTHS)
        for batch in batches_of(self.LENGTHS):
            for inputs, numbers in zip(batch["inputs"], batch["documents"], strict=True):
                owners = np.searchsorted(ends, inputs[numbers >= 0].numpy(), side="right")
                pairs = set(zip(owners.tolist(), numbers[numbers >= 0].tolist(), strict=True))
                assert len(pairs) == len(set(owners.tolist())) == len(set(dict(pairs).values()))

    @given(st.integers(1, 300), st.integers(1, 5))
    def test_hold_exactly_the_tokens_asked_for(self, num_tokens, num_samples):
        batches = batches_of(self.LENGTHS, num_tokens=num_tokens, num_samples=num_samples)
        assert sum(int((batch["targets"] != IGNORED).sum()) for batch in batches) == num_tokens
        assert all(batch["inputs"].shape[1] == 8 for batch in batches)

    def test_without_a_number_each_is_given_once(self):
        found = sum(int((b["targets"] != IGNORED).sum()) for b in batches_of(self.LENGTHS))
        assert found == sum(length - 1 for length in self.LENGTHS)

    def test_do_not_depend_on_how_many_make_a_batch(self):
        one, other = (
            torch.cat([b["inputs"] for b in batches_of(self.LENGTHS, num_samples=n, num_tokens=99)])
            for n in (1, 3)
        )
        assert torch.equal(one, other)

    def test_documents_without_a_target_are_refused(self):
        with pytest.raises(InputError, match="no document has two tokens"):
            packed_windows(documents_of([1, 1]), context=4, num_samples=1, num_tokens=None, seed=0)


def test_golden_positions():
    documents_BT = torch.tensor([[0, 0, 0, 1, 1, -1], [0, 1, 2, 2, 2, 2]])
    assert positions_in(documents_BT).tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 2, 3]]
