import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from objectives.data import Corpus
from objectives.windows import held_out_windows, training_windows, with_bytes
from search.errors import InputError


def corpus_of(train: bytes, held_out: bytes = b"held out") -> Corpus:
    arrays = (np.frombuffer(part, dtype=np.uint8) for part in (train, held_out))
    return Corpus(name="fake", train=next(arrays), held_out=next(arrays), provenance={})


def counting(length: int) -> bytes:
    return bytes(index % 256 for index in range(length))


def windows(corpus: Corpus, name: str = "inputs", **wanted) -> list[list[int]]:
    return [row for batch in training_windows(corpus, **wanted) for row in batch[name].tolist()]


class TestTrainingWindows:
    def test_targets_are_the_inputs_shifted_by_one(self):
        batches = training_windows(
            corpus_of(counting(100)), context=8, num_samples=4, num_tokens=99, seed=0
        )
        for batch in batches:
            assert batch["inputs"].dtype == batch["targets"].dtype == torch.int64
            assert torch.equal(batch["targets"], batch["inputs"] + 1)

    def test_full_batches_then_fewer_rows_then_a_shorter_window(self):
        # 75 = 2 batches of 4 windows of 8, 1 window of 8, 3 tokens
        shapes = [
            tuple(batch["inputs"].shape)
            for batch in training_windows(
                corpus_of(counting(100)), context=8, num_samples=4, num_tokens=75, seed=0
            )
        ]
        assert shapes == [(4, 8), (4, 8), (1, 8), (1, 3)]

    @given(st.integers(1, 20), st.integers(1, 9), st.integers(0, 500))
    def test_hold_exactly_the_tokens_asked_for(self, context, num_samples, num_tokens):
        batches = training_windows(
            corpus_of(counting(100)),
            context=context,
            num_samples=num_samples,
            num_tokens=num_tokens,
            seed=0,
        )
        assert sum(batch["targets"].numel() for batch in batches) == num_tokens

    @given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32))
    def test_do_not_depend_on_how_many_make_a_batch(self, num_samples, others, seed):
        corpus = corpus_of(counting(251))
        one, other = (
            windows(corpus, context=7, num_samples=size, num_tokens=300, seed=seed)
            for size in (num_samples, others)
        )
        assert one == other

    def test_depend_on_the_seed(self):
        corpus = corpus_of(counting(251))
        one, other = (
            windows(corpus, context=7, num_samples=4, num_tokens=300, seed=seed) for seed in (0, 1)
        )
        assert one != other

    def test_reach_the_first_and_the_last_byte(self):
        corpus = corpus_of(b"abcd")
        wanted = {"context": 2, "num_samples": 1, "num_tokens": 100, "seed": 0}
        assert {row[0] for row in windows(corpus, **wanted)} == set(b"ab")
        assert {row[-1] for row in windows(corpus, "targets", **wanted)} == set(b"cd")

    def test_without_a_number_of_tokens_there_are_as_many_as_in_the_corpus(self):
        corpus = corpus_of(counting(100))
        rows = windows(corpus, context=10, num_samples=4, num_tokens=None, seed=0)
        assert sum(map(len, rows)) == 99

    def test_one_that_fits_just_so_is_the_corpus(self):
        corpus = corpus_of(b"abcd")
        assert windows(corpus, context=3, num_samples=1, num_tokens=3, seed=0) == [[*b"abc"]]

    def test_a_corpus_that_is_too_small_is_refused_at_once(self):
        with pytest.raises(InputError, match=r"4 tokens to train on are too few .* at most 3"):
            training_windows(corpus_of(b"abcd"), context=4, num_samples=1, num_tokens=9, seed=0)


class TestHeldOutWindows:
    @given(st.integers(2, 200), st.integers(1, 20), st.integers(1, 5))
    def test_predict_every_byte_but_the_first_once_and_in_order(self, length, context, samples):
        corpus = corpus_of(b"train", counting(length))
        batches = list(held_out_windows(corpus, context=context, num_samples=samples))
        for name, wanted in (("inputs", corpus.held_out[:-1]), ("targets", corpus.held_out[1:])):
            found = torch.cat([batch[name].flatten() for batch in batches])
            assert found.tolist() == wanted.tolist()

    def test_no_batch_is_larger_than_asked(self):
        corpus = corpus_of(b"train", counting(100))
        shapes = [
            tuple(batch["inputs"].shape)
            for batch in held_out_windows(corpus, context=10, num_samples=4)
        ]
        assert shapes == [(4, 10), (4, 10), (1, 10), (1, 9)]


def test_bytes_of_the_targets_of_each_sample():
    batches = held_out_windows(
        corpus_of(b"train", bytes([0, 1, 2, 0, 1])), context=2, num_samples=2
    )
    piece_bytes = np.array([1, 10, 100])
    # targets are (1, 2) and (0, 1)
    assert next(with_bytes(batches, piece_bytes))["num_bytes"].tolist() == [110, 11]
