"""What a process takes of a GPU outside its tensors: published values, and those measured.

That is the CUDA context, with the driver's own tables, and the kernels that were loaded into it.
Kernels are loaded when they are first used (torch sets `CUDA_MODULE_LOADING=LAZY` since 1.13,
pytorch/pytorch #86509), so it grows with the variety of what runs, and it differs with the driver
and the build of torch. What is published spreads fivefold: measure it where that matters.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from search.memory.device import ByteEstimate, WorkspaceBytes, workspace_setting
from search.memory.files import cache_folder, read_json, write_json

_MIB = 2**20
_KEPT = 32
"""The latest measurements of one device, driver and torch that are kept: enough for a spread."""

_SPREADS = {
    (8, 0): ByteEstimate(
        low_bytes=1411 * _MIB,
        expected_bytes=1429 * _MIB,
        high_bytes=1431 * _MIB,
        source="published: A100 40 GB, torch 2.5",
    ),
}
"""Of processes that train, by compute capability, where a spread is published: the one place.

Source: itu-rad/GPUMemNet, `mlp_data_step2.csv`: what the MLP rows measured beyond the memory that
torch reserved, their median and spread; the idle GPU's own few MiB are in it.
"""

_BARE = {(8, 6): 256 * _MIB, (8, 9): 426 * _MIB}
"""Of processes that had not run a kernel yet: a lower bound.

Source: invoke-ai/InvokeAI #9413 (RTX 3090, torch 2.7, CUDA 12.8); unslothai/unsloth-zoo #1053
(RTX 6000 Ada, torch 2.10, CUDA 13).
"""
_TYPICAL_BYTES = 750 * 10**6
"""Of a process that trains, with the CUDA that torch 2.13 is built for.

Source: vramcalc 0.1.2, its measurements on an RTX A6000 with CUDA 13; no other is published.
"""
_LEAST_BYTES, _MOST_BYTES = 256 * _MIB, 1431 * _MIB
"""The least and the most of all that is published for kernels loaded at their first use.

With all of them loaded at once, as before CUDA 11.7, it was no more: 1343 MiB on a V100.
Source: huggingface/transformers, `docs/source/performance.mdx`. What vLLM #12126 shows as memory
outside torch (0.16 GiB, H100) is no context: its baseline already counts that (vLLM #12059).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredContext:
    """What was measured on one device with one driver and one build of torch, latest last.

    `workspaces` are those of the latest measurement that looked at them.
    """

    device_name: str
    driver: str
    torch_version: str
    sizes_bytes: tuple[int, ...]
    workspaces: WorkspaceBytes | None = None

    @property
    def workspaces_here(self) -> WorkspaceBytes | None:
        """The workspaces, where this process's environment asks for them as that one's did."""
        known = self.workspaces
        return known if known and known.setting == workspace_setting() else None

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

    Where that is little, one value stands for all, between the least and the most of any GPU.
    """
    if (known := _SPREADS.get(architecture)) is not None:
        return known
    return ByteEstimate(
        low_bytes=_BARE.get(architecture, _LEAST_BYTES),
        expected_bytes=_TYPICAL_BYTES,
        high_bytes=_MOST_BYTES,
        source="published: RTX A6000, CUDA 13"
        + ("" if architecture == (8, 6) else "; not this one"),
    )


def record_context(
    device_name: str,
    *,
    driver: str,
    torch_version: str,
    num_bytes: int,
    workspaces: WorkspaceBytes | None = None,
) -> None:
    """Remembers one measurement for this user. A cache folder that cannot be written is no fault.

    Args:
        device_name: as the driver names it, `Device.name` of `device_here()`.
        driver: the driver's version.
        torch_version: `torch.__version__`, with its build label.
        num_bytes: what the process held of the GPU beyond the memory that torch reserved.
        workspaces: what the libraries of matrix products took; default: what is known of them.
    """
    content = read_json(_file())
    key = _key(device_name, driver=driver, torch_version=torch_version)
    known = _read(content.get(key))
    sizes_bytes = (*(known.sizes_bytes if known else ()), num_bytes)[-_KEPT:]
    entry: dict[str, Any] = {
        "device": device_name,
        "driver": driver,
        "torch": torch_version,
        "sizes_bytes": list(sizes_bytes),
    }
    if (workspaces := workspaces or (known.workspaces if known else None)) is not None:
        entry["workspaces"] = asdict(workspaces)
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
            workspaces=_workspaces(entry.get("workspaces")),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _workspaces(entry: Any) -> WorkspaceBytes | None:
    return WorkspaceBytes(**entry) if entry else None


def _file() -> Path:
    return cache_folder() / "contexts.json"


def _key(device_name: str, *, driver: str, torch_version: str) -> str:
    return f"{device_name.casefold()} | {driver} | {torch_version}"
