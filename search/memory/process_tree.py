"""The most memory that a process and its descendants took, measured from outside.

On a CPU it is looked at many times a second, so a peak that a single process reached between two
looks is known from the kernel's own high-water mark, and one that several reached together may be
missed. What a process took within the last look before its end is not seen.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from search.memory.device import Device

_SECONDS_BETWEEN_LOOKS = 0.02
_KIB = 1024
_PROC = Path("/proc")


class TreePeak:
    """The most bytes seen so far."""

    num_bytes = 0


@contextmanager
def measure_tree_peak(
    pid: int, device: Device, on_look: Callable[[int], None] = lambda _: None
) -> Iterator[TreePeak]:
    """The peak of a process and its descendants while the block runs.

    On a CPU private and shared memory, without the pages of files; on CUDA what they hold of the
    GPU, as its driver tells.

    Args:
        pid: of the first process.
        device: where its tensors are.
        on_look: is told the peak after each look, in another thread.
    """
    look = _gpu_look(pid) if device.kind == "cuda" else lambda: tree_bytes(pid)
    peak, stop = TreePeak(), threading.Event()

    def keep_looking() -> None:
        while True:
            peak.num_bytes = max(peak.num_bytes, look())
            on_look(peak.num_bytes)
            if stop.wait(_SECONDS_BETWEEN_LOOKS):
                return

    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def tree_bytes(pid: int) -> int:
    """What a process and its descendants hold now, or the most that one of them held before.

    Pages that forked processes share count once: in proportion to how many share them.
    """
    pids = family(pid)
    highest = max(map(_private_peak_bytes, pids), default=0)
    return max(highest, sum(map(_shared_out_bytes, pids))) if len(pids) > 1 else highest


def family(pid: int) -> list[int]:
    """The process and its descendants that live now."""
    found = [pid]
    for each in found:  # grows meanwhile
        found.extend(_children(each))
    return found


def _children(pid: int) -> Iterator[int]:
    """Source: proc_pid_task(5), `children`."""
    tasks = _PROC / str(pid) / "task"
    try:
        threads = os.listdir(tasks)  # noqa: PTH208 - the same, and its errors in one place
    except OSError:
        return
    for thread in threads:
        yield from map(int, _read(tasks / thread / "children").split())


def _private_peak_bytes(pid: int) -> int:
    """The highest resident size without file pages, as `search.memory.measurement` takes it.

    What lies in shared memory is left out: of it the kernel keeps no peak.
    """
    sizes = _sizes(_read(_PROC / str(pid) / "status"))
    return max(0, sizes.get("VmHWM", 0) - sizes.get("RssFile", 0) - sizes.get("RssShmem", 0))


def _shared_out_bytes(pid: int) -> int:
    """Source: the kernel's `Documentation/ABI/testing/procfs-smaps_rollup`."""
    sizes = _sizes(_read(_PROC / str(pid) / "smaps_rollup"))
    return sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0)


def _sizes(text: str) -> dict[str, int]:
    """The lines of a file of /proc that give a size, in bytes."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        number, _, unit = value.strip().partition(" ")
        if unit == "kB":
            found[name] = int(number) * _KIB
    return found


def _read(file: Path) -> str:
    """A file of a process; nothing once it has ended."""
    try:
        return file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _gpu_look(pid: int) -> Callable[[], int]:
    """What the tree holds of the GPU that this process sees first."""
    import torch

    from search.memory.nvml import bytes_held_by

    uuid = str(torch.cuda.get_device_properties(0).uuid)
    held_before = bytes_held_by(uuid, ()).in_all

    def look() -> int:
        held = bytes_held_by(uuid, family(pid))
        return held.by_processes or max(0, held.in_all - held_before)

    return look
