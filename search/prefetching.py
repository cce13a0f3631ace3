"""Batches that a thread makes while the step before them still runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search.objective import Batch

_STACK_BYTES = 2**20
"""Enough to gather arrays; the usual 8 MiB would count against the budget of a trial on a CPU."""


def prefetched(batches: Iterator[Batch], *, depth: int, pinned: bool) -> Iterator[Batch]:
    """The same batches in the same order, up to `depth` of them made before they are asked for.

    The thread begins with the first batch asked for, and ends with the last one or when the
    iterator is let go. What it meets, end or error, comes where the batch would have come.

    Args:
        batches: read by the thread alone; must not draw from the global generators.
        depth: how many may be made ahead, the one in the making among them; 0 for no thread.
        pinned: whether to put them in page-locked memory, from which a GPU copies by itself.
    """
    return _read_ahead(batches, depth, pinned=pinned) if depth else batches


def _read_ahead(batches: Iterator[Batch], depth: int, *, pinned: bool) -> Iterator[Batch]:
    made: SimpleQueue[list[Batch] | Exception] = SimpleQueue()
    free, stopped = threading.Semaphore(depth), threading.Event()

    def make() -> None:
        while free.acquire() and not stopped.is_set():
            found = _next(batches, pinned=pinned)
            made.put(found)
            if not found or isinstance(found, Exception):
                return
            del found

    thread = _started(make)
    try:
        while found := made.get():
            if isinstance(found, Exception):
                raise found
            free.release()
            yield found.pop()  # nobody holds it here while it is used
    finally:
        stopped.set()
        free.release()
        thread.join()


def _started(make: Callable[[], None]) -> threading.Thread:
    usual_bytes = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=make, name="prefetch", daemon=True)
        thread.start()
    finally:
        threading.stack_size(usual_bytes)
    return thread


def _next(batches: Iterator[Batch], *, pinned: bool) -> list[Batch] | Exception:
    """The next batch in a list, or what was raised in its place; an empty list at the end."""
    try:
        found = list(islice(batches, 1))
        if pinned:
            found = [
                {name: tensor.pin_memory() for name, tensor in batch.items()} for batch in found
            ]
    except Exception as error:  # noqa: BLE001 - raised again by who asks for the batch
        return error
    return found
