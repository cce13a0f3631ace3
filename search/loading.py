"""Batches that processes of their own make, by torch's DataLoader, in the order they would have.

Left out: the memory of these processes, which is neither predicted nor counted: they are no part
of the process that trains. Nor are batches on their way, two for each worker in shared memory.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

if TYPE_CHECKING:
    from search.objective import Batch

_Asked = TypeVar("_Asked")


class MadeBatches(Iterator["Batch"]):
    """Batches each made by itself from what is asked, so that workers can share the making.

    An objective gives them in the place of a plain iterator where making a batch takes long, such
    as reading images, and saying which comes next does not. Of a plain iterator each worker makes
    all batches and passes on its share: the same batches, no sooner.
    """

    def __init__(self, make: Callable[[_Asked], Batch], asked: Iterable[_Asked]) -> None:
        """Makes nothing yet.

        Args:
            make: a batch, from what is asked alone.
            asked: what to make one batch after another from.
        """
        self._make: Callable[[Any], Batch] = make
        self._asked: Iterator[Any] = iter(asked)

    def __next__(self) -> Batch:
        """The next batch."""
        return self._make(next(self._asked))

    def share(self, number: int, count: int) -> Iterator[Batch]:
        """Every `count`-th batch, beginning with `number`; the others are not made."""
        return map(self._make, islice(self._asked, number, None, count))


class _Shares(IterableDataset[Any]):
    """In each worker every so-manieth batch; what is raised comes in the place of a batch."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Batch | Exception]:
        worker: Any = get_worker_info()
        try:
            if isinstance(self._batches, MadeBatches):
                yield from self._batches.share(worker.id, worker.num_workers)
            else:
                yield from islice(self._batches, worker.id, None, worker.num_workers)
        except Exception as error:  # noqa: BLE001 - raised again where batches are asked for
            yield error


def made_by_workers(batches: Iterator[Batch], *, workers: int, pinned: bool) -> Iterator[Batch]:
    """The same batches in the same order, made by `workers` processes, which start at once.

    They are forked, so that they share what the objective has in memory, and draw nothing from the
    generators of this process. They end with the last batch, when the iterator is let go, and
    seconds after this process died, however that was.

    Args:
        batches: read in the workers alone.
        workers: how many processes; 0 for none.
        pinned: whether to copy them to page-locked memory, from which a GPU copies by itself.
    """
    if not workers:
        return batches
    loader = DataLoader(
        _Shares(batches),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="fork",
        worker_init_fn=_free_of_the_budget,
        generator=torch.Generator(),  # or it would draw from the global one
    )
    return _received(iter(loader), pinned=pinned)


def _received(made: Iterator[Batch | Exception], *, pinned: bool) -> Iterator[Batch]:
    """Batches in memory of this process, as if it had made them; shared memory is given back."""
    for batch in made:
        if isinstance(batch, Exception):
            raise batch
        yield {
            name: tensor.pin_memory() if pinned else tensor.clone()
            for name, tensor in batch.items()
        }


def _free_of_the_budget(_: int) -> None:
    """Lifts the limit on memory that a trial's process has, and a fork of it inherits."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
