import gc
import threading
import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from search.memory.events import Part
from search.memory.sample import Sample
from search.memory.trace import trace
from search.prefetching import prefetched
from search.training import TrainingRun
from search.training_params import TrainingParams

if TYPE_CHECKING:
    from search.objective import Batch

CPU = torch.device("cpu")


class Source:
    """Batches of one number, counting those that were made."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.num_made = 0

    def __iter__(self) -> "Iterator[Batch]":
        for number in range(self.count):
            self.num_made += 1
            yield {"values": torch.tensor([number])}


def numbers(batches: "Iterator[Batch]") -> list[int]:
    return [int(batch["values"]) for batch in batches]


def prefetching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def wait_until(holds) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@given(st.integers(0, 9), st.integers(0, 5))
def test_gives_the_same_in_the_same_order(count, depth):
    found = numbers(prefetched(iter(Source(count)), depth=depth, pinned=False))
    assert found == list(range(count))
    assert not prefetching_threads()


def test_without_depth_there_is_no_thread():
    batches = iter(Source(3))
    assert prefetched(batches, depth=0, pinned=False) is batches


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_makes_that_many_ahead_and_no_more(depth):
    source = Source(20)
    batches = prefetched(iter(source), depth=depth, pinned=False)
    assert source.num_made == 0
    for taken in range(1, 4):
        next(batches)
        wait_until(lambda taken=taken: source.num_made >= taken + depth)
        time.sleep(0.01)  # time enough to make one too many
        assert source.num_made == taken + depth
    batches.close()


def test_an_error_comes_where_its_batch_would_have_come():
    def failing() -> "Iterator[Batch]":
        yield from iter(Source(2))
        msg = "no third"
        raise KeyError(msg)

    batches = prefetched(failing(), depth=4, pinned=False)
    assert numbers(islice(batches, 2)) == [0, 1]
    with pytest.raises(KeyError, match="no third"):
        next(batches)
    assert not prefetching_threads()


def test_the_thread_ends_when_it_is_let_go():
    batches = prefetched(iter(Source(10**9)), depth=2, pinned=False)
    next(batches)
    assert prefetching_threads()
    del batches
    gc.collect()
    assert not prefetching_threads()


def test_stacks_of_other_threads_stay_as_they_were():
    before = threading.stack_size()
    numbers(prefetched(iter(Source(2)), depth=1, pinned=False))
    assert threading.stack_size() == before


class Counting(Sample):
    """The sample on batches that differ."""

    def data(self, params, split, *, seed, num_tokens=None):
        generator = torch.Generator().manual_seed(seed)
        for batch in super().data(params, split, seed=seed, num_tokens=num_tokens):
            shape = batch["values"].shape
            yield {"values": torch.randint(64, shape, generator=generator)}


@pytest.mark.parametrize("depth", [1, 3])
def test_what_is_trained_is_the_same(depth):
    def losses(prefetch: int) -> list[float]:
        params = {"batch_size": 8, "micro_batch_size": 2, "width": 16, "prefetch": prefetch}
        run = TrainingRun(Counting(), params, num_tokens=2_000, device=CPU)
        return [float(run.step().loss) for _ in range(4)]

    assert losses(depth) == losses(0)
    gc.collect()
    assert not prefetching_threads()


def test_what_is_made_ahead_is_predicted():
    params = {"batch_size": 8, "micro_batch_size": 2, "width": 16}
    one = trace(Sample(), params)
    other = trace(Sample(), {**params, "prefetch": 3})
    ahead_bytes = 3 * 2 * 32 * 8  # three micro-batches of 2 samples of 32 int64
    assert other.peak_bytes - one.peak_bytes == ahead_bytes
    assert other.parts[Part.INPUTS] - one.parts[Part.INPUTS] == ahead_bytes


def test_a_negative_depth_is_refused():
    with pytest.raises(ValueError, match="prefetch must not be negative"):
        TrainingParams(prefetch=-1)
