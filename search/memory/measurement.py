"""Peak memory measured round a block of code, and this machine's overhead.

On a CPU the truth is the resident memory of this process, on CUDA the allocator's reserved bytes
and the context. Left out: what other processes use.
"""

from __future__ import annotations

import gc
import hashlib
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from search.memory.budget import enforce_budget, is_out_of_memory
from search.memory.device import Device, cuda_context_bytes, device_here
from search.memory.elsewhere import measured_by
from search.memory.files import cache_folder, read_json, write_json
from search.memory.process import (
    LEAK_TOLERANCE_BYTES,
    prepare_process,
    process_bytes,
    release_memory,
    return_freed_memory,
)
from search.memory.sample import Sample
from search.memory.trace import trace
from search.training import TrainingRun

if TYPE_CHECKING:
    from search.results import Params

__all__ = [
    "LEAK_TOLERANCE_BYTES",
    "Peak",
    "enforce_budget",
    "is_out_of_memory",
    "measure_peak",
    "overhead_bytes",
    "prepare_process",
    "release_memory",
]

_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""What to write to `clear_refs` so that VmHWM starts from the present.

Source: proc_pid_clear_refs(5).
"""
_SAMPLING_SECONDS = 0.002


class Peak:
    """The most bytes used since `measure_peak` began; up to date while it runs, final after it."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._final_bytes: int | None = None
        self.allocated_bytes: int | None = None

    @property
    def num_bytes(self) -> int:
        """Resident bytes above the start on a CPU; reserved and context bytes on CUDA."""
        return self._read() if self._final_bytes is None else self._final_bytes

    def finish(self) -> None:
        """Keeps the present value."""
        self._final_bytes = self._read()


@contextmanager
def measure_peak(device: Device) -> Iterator[Peak]:
    """The peak of what the block uses; on CUDA its tensors' own peak, `allocated_bytes`, too."""
    gc.collect()
    measuring = _cuda_peak() if device.kind == "cuda" else _resident_peak()
    with measuring as peak:
        try:
            yield peak
        finally:
            peak.finish()


@contextmanager
def _cuda_peak() -> Iterator[Peak]:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    context_bytes = cuda_context_bytes()
    torch.cuda.reset_peak_memory_stats()
    peak = Peak(lambda: context_bytes + torch.cuda.max_memory_reserved())
    try:
        yield peak
    finally:
        peak.allocated_bytes = torch.cuda.max_memory_allocated()


@contextmanager
def _resident_peak() -> Iterator[Peak]:
    return_freed_memory()
    before_bytes = process_bytes("RssAnon")
    if _reset_high_water():
        yield Peak(lambda: max(0, _highest_private_bytes() - before_bytes))
        return
    with _sampled_maximum() as maximum:
        yield Peak(lambda: max(0, maximum() - before_bytes))


def _highest_private_bytes() -> int:
    """The resident peak without the pages of files, such as code and mapped data.

    The kernel gives the peak of all alone. File pages only grow in number here, so what there is
    of them now is what there was at the peak, or more.
    """
    return process_bytes("VmHWM") - process_bytes("RssFile") - process_bytes("RssShmem")


def _reset_high_water() -> bool:
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


@contextmanager
def _sampled_maximum() -> Iterator[Callable[[], int]]:
    """The largest private size seen by a thread that looks every 2 ms; misses shorter peaks."""
    largest, stop = [0], threading.Event()

    def look() -> int:
        largest[0] = max(largest[0], process_bytes("RssAnon"))
        return largest[0]

    def keep_looking() -> None:
        while not stop.wait(_SAMPLING_SECONDS):
            look()

    thread = threading.Thread(target=keep_looking, daemon=True)
    thread.start()
    try:
        yield look
    finally:
        stop.set()
        thread.join()


_MEASURING_CODE = (
    "composed.py",
    "device.py",
    "elsewhere.py",
    "events.py",
    "memo.py",
    "measurement.py",
    "process.py",
    "recorder.py",
    "sample.py",
    "scratch.py",
    "trace.py",
)
_OVERHEAD_RUNS: tuple[Params, ...] = (
    {"precision": "32-true", "width": 64, "depth": 4, "batch_size": 16, "sequence_length": 256},
    {"precision": "bf16-mixed", "width": 256, "depth": 4, "batch_size": 8, "sequence_length": 128},
)
"""Small runs, about 75 MiB each. The second has the scratch of compiled bf16 products too."""


def overhead_bytes(device: Device) -> int:
    """What a run needs on this machine beyond its tensors: one constant, measured once and kept.

    On a CPU: heap, page rounding, objects. On CUDA: context, workspaces, rounding. Measured in a
    process of its own, as a worker is, and kept in the user's cache folder by machine.

    Raises:
        MachineError: when the measuring process fails.
    """
    file = cache_folder() / "devices.json"
    known = read_json(file)
    key = _machine_key(device)
    if key not in known:
        known[key] = _measured_elsewhere()
        with suppress(OSError):  # where nothing can be kept, it is measured each time
            write_json(file, known)
    return int(known[key])


def _machine_key(device: Device) -> str:
    """Everything the overhead hangs on; the code that sets the process up is among it."""
    sources = (Path(__file__).parent / name for name in _MEASURING_CODE)
    version = hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:8]
    parts = (device.name, device.kind, platform.release(), str(torch.__version__), version)
    return " | ".join(parts)


def _measured_elsewhere() -> int:
    return measured_by(__name__, what="this machine's memory overhead")


def _measured_here() -> int:
    """The largest excess of the measured over the traced peak, over a few small runs.

    All are measured before the first is traced, which leaves much on the heap.
    """
    device = device_here()
    prepare_process()
    torch.set_num_threads(1)
    measured = [_measured_peak(params, device) for params in _OVERHEAD_RUNS]
    traced = [trace(Sample(), params).peak_bytes for params in _OVERHEAD_RUNS]
    return max(0, *(real - bare for real, bare in zip(measured, traced, strict=True)))


def _measured_peak(params: Params, device: Device) -> int:
    with measure_peak(device) as peak:
        run = TrainingRun(Sample(), params, num_tokens=10**9, device=device.torch_device)
        run.step()
        run.step()
        run.evaluate()
        del run
    release_memory(device)
    return peak.num_bytes


if __name__ == "__main__":
    print(_measured_here())  # noqa: T201 - the answer to the process that asked
