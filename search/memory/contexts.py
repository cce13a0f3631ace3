"""What a process takes of a GPU outside torch's allocator: published values, and those measured.

That is the CUDA context, with the driver's own tables, and the kernels that were loaded into it.
Kernels are loaded when they are first used (torch sets `CUDA_MODULE_LOADING=LAZY` since 1.13,
pytorch/pytorch #86509), so it grows with the variety of what runs, and it differs with the driver
and the build of torch. What is published spreads tenfold: measure it where that matters.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.memory.device import ByteEstimate
from search.memory.files import cache_folder, read_json, write_json

_MIB = 2**20
_KEPT = 32
"""The latest measurements of one device, driver and torch that are kept: enough for a spread."""

_TRAINING = {
    (8, 0): ByteEstimate(
        low_bytes=1411 * _MIB,
        expected_bytes=1429 * _MIB,
        high_bytes=1431 * _MIB,
        source="published: A100 40 GB",
    ),
}
"""Of a process that trains, on an idle GPU, by compute capability: one entry, in one place.

Source: itu-rad/GPUMemNet, `mlp_data_step2.csv`: what the MLP rows measured beyond the memory that
torch reserved, their median and spread; the idle GPU's own few MiB are in it.
"""

_SINGLE = {
    (7, 0): (1343 * _MIB, "published: V100, CUDA 11.2, all kernels loaded"),
    (8, 6): (750 * 10**6, "published: RTX A6000, CUDA 13"),
    (8, 9): (426 * _MIB, "published: RTX 6000 Ada, CUDA 13, no kernels loaded"),
    (9, 0): (164 * _MIB, "published: H100, no kernels loaded"),
}
"""Single values, whose spread is not known.

Source: huggingface/transformers, `docs/source/performance.mdx` (V100); unslothai/unsloth-zoo #1053
(RTX 6000 Ada); vramcalc's measurements (RTX A6000); reports of 0.16 GiB (H100).
"""

_LOW_BYTES, _HIGH_BYTES = 164 * _MIB, 1431 * _MIB
"""The least and the most of all that is published above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredContext:
    """What was measured on one device with one driver and one build of torch, latest last."""

    device_name: str
    driver: str
    torch_version: str
    sizes_bytes: tuple[int, ...]

    @property
    def estimate(self) -> ByteEstimate:
        """The median of what was measured, between the least and the most of it."""
        return ByteEstimate(
            low_bytes=min(self.sizes_bytes),
            expected_bytes=round(statistics.median(self.sizes_bytes)),
            high_bytes=max(self.sizes_bytes),
            source="measured here",
        )


def published_context(architecture: tuple[int, int]) -> ByteEstimate:
    """What a process that trains takes on a GPU of a compute capability, as far as is published.

    Where it is not, the median of the published values stands in; low and high are then the
    least and the most of them.
    """
    if (known := _TRAINING.get(architecture)) is not None:
        return known
    typical = statistics.median(
        [
            *(size for size, _ in _SINGLE.values()),
            *(one.expected_bytes for one in _TRAINING.values()),
        ]
    )
    expected_bytes, source = _SINGLE.get(
        architecture, (round(typical), "nothing published; the median of other GPUs")
    )
    return ByteEstimate(
        low_bytes=_LOW_BYTES, expected_bytes=expected_bytes, high_bytes=_HIGH_BYTES, source=source
    )


def record_context(device_name: str, *, driver: str, torch_version: str, num_bytes: int) -> None:
    """Remembers one measurement for this user. A cache folder that cannot be written is no fault.

    Args:
        device_name: as the driver names it, `Device.name` of `device_here()`.
        driver: the driver's version.
        torch_version: `torch.__version__`, with its build label.
        num_bytes: what the process held of the GPU beyond the memory that torch reserved.
    """
    content = read_json(_file())
    key = _key(device_name, driver=driver, torch_version=torch_version)
    known = _read(content.get(key))
    sizes_bytes = (*(known.sizes_bytes if known else ()), num_bytes)[-_KEPT:]
    entry = {
        "device": device_name,
        "driver": driver,
        "torch": torch_version,
        "sizes_bytes": list(sizes_bytes),
    }
    with suppress(OSError):
        write_json(_file(), {**content, key: entry})


def measured_context(
    device_name: str, *, driver: str, torch_version: str
) -> MeasuredContext | None:
    """What was measured on a device with this driver and build of torch; None before that."""
    key = _key(device_name, driver=driver, torch_version=torch_version)
    return _read(read_json(_file()).get(key))


def measured_contexts() -> tuple[MeasuredContext, ...]:
    """All that this user measured on this machine, or on those that share the cache folder."""
    return tuple(_all(read_json(_file())))


def _all(content: Mapping[str, Any]) -> Iterator[MeasuredContext]:
    for entry in content.values():
        if (known := _read(entry)) is not None:
            yield known


def _read(entry: Any) -> MeasuredContext | None:
    """One entry of the file; None where it is missing or of another form."""
    try:
        return MeasuredContext(
            device_name=str(entry["device"]),
            driver=str(entry["driver"]),
            torch_version=str(entry["torch"]),
            sizes_bytes=tuple(int(size) for size in entry["sizes_bytes"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _file() -> Path:
    return cache_folder() / "contexts.json"


def _key(device_name: str, *, driver: str, torch_version: str) -> str:
    return f"{device_name.casefold()} | {driver} | {torch_version}"
