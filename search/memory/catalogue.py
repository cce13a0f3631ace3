"""Devices by name: any GPU that torch can train on, here or not. Needs no torch and no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from search.errors import SearchError
from search.memory.contexts import MeasuredContext, measured_context, published_context
from search.memory.device import Device, PeakFlops
from search.memory.gpu_list import Gpu, gpus
from search.memory.gpu_names import gpu_named, has_words
from search.memory.gpu_peaks import peak_flops
from search.memory.gpu_totals import capacity
from search.memory.mig import (
    Slice,
    compute_share,
    memory_share,
    profiles,
    slice_capacity,
    slice_in,
)


def device_named(name: str) -> Device:
    """The GPU that a name means, or the MIG slice of one, as the catalogue knows it.

    Its name becomes the catalogue's own. Nothing of it is measured: `Device.capacity` and
    `Device.context` tell between which bounds the truth lies.

    Args:
        name: such as `RTX 4090`, `NVIDIA A100-SXM4-80GB` or `A100 40GB MIG 3g.20gb`; capitals,
            spaces, dashes and the maker's names do not matter.

    Raises:
        InputError: with the nearest names, when it means no GPU, several, or one without CUDA.
        MachineError: when the catalogue is not installed.
    """
    return _device(*gpu_named(name))


def devices_known(name_part: str = "", *, least_bytes: int = 0) -> Iterator[Device]:
    """The GPUs whose names have all the words of a text, with at least a nominal memory, by name.

    Where the text speaks of MIG, their slices instead.
    """
    rest, asked = slice_in(name_part)
    for gpu in gpus():
        if has_words(gpu, rest):
            for part in _parts(gpu, asked, sliced="mig" in name_part.lower()):
                share = memory_share(gpu, part) if part else 1
                if gpu.memory_bytes * share >= least_bytes:
                    yield _device(gpu, part)


def is_named(device: Device, name: str) -> bool:
    """Whether a name means a device: the driver's own name, or any for the same model."""
    if device.name.casefold() == name.casefold():
        return True
    wanted, found = _known(name, None), _known(device.name, device.capacity_bytes)
    return device.kind == "cuda" and wanted is not None and wanted == found


def described(
    name: str,
    *,
    capacity_bytes: int,
    architecture: tuple[int, int],
    held_bytes: int = 0,
    driver: str | None = None,
    torch_version: str | None = None,
) -> Device:
    """A GPU that a driver told of, with what the catalogue knows and what was measured of it.

    Args:
        name: as the driver names it.
        capacity_bytes: as the driver reports it.
        architecture: its compute capability.
        held_bytes: what others hold.
        driver: the driver's version.
        torch_version: `torch.__version__`; without it and the driver no measurement is looked up.
    """
    known = _known(name, capacity_bytes)
    facts = _device(*known) if known else None
    measured = _measured(name, driver=driver, torch_version=torch_version)
    return Device(
        name=name,
        kind="cuda",
        capacity_bytes=capacity_bytes,
        architecture=architecture,
        memory_type=facts.memory_type if facts else None,
        bandwidth_bytes_per_second=facts.bandwidth_bytes_per_second if facts else None,
        peak_flops=facts.peak_flops if facts else None,
        context=measured.estimate if measured else published_context(architecture),
        workspaces=measured.workspaces_here if measured else None,
        held_bytes=held_bytes,
        driver=driver,
    )


def _measured(
    name: str, *, driver: str | None, torch_version: str | None
) -> MeasuredContext | None:
    if driver is None or torch_version is None:
        return None
    return measured_context(name, driver=driver, torch_version=torch_version)


def _known(name: str, total_bytes: int | None) -> tuple[Gpu, Slice | None] | None:
    """The model that a name means; None for one nobody knows, or without a catalogue."""
    try:
        return gpu_named(name, total_bytes=total_bytes)
    except SearchError:
        return None


def _parts(gpu: Gpu, asked: Slice | None, *, sliced: bool) -> Iterator[Slice | None]:
    if not sliced and asked is None:
        yield None
    for profile in profiles(gpu) if sliced or asked else ():
        if asked is None or asked.profile == profile:
            yield asked or Slice(profile=profile, num_computes=int(profile[0]))


def _device(gpu: Gpu, part: Slice | None) -> Device:
    whole = Device(
        name=gpu.name,
        kind="cuda",
        capacity_bytes=capacity(gpu).expected_bytes,
        capacity=capacity(gpu),
        architecture=gpu.architecture,
        memory_type=gpu.memory_type,
        bandwidth_bytes_per_second=gpu.bandwidth_bytes_per_second,
        peak_flops=peak_flops(gpu),
        context=published_context(gpu.architecture),
    )
    return whole if part is None else _sliced(whole, gpu, part)


def _sliced(whole: Device, gpu: Gpu, part: Slice) -> Device:
    room = slice_capacity(gpu, capacity(gpu), part)
    bandwidth = _times(whole.bandwidth_bytes_per_second, memory_share(gpu, part))
    return replace(
        whole,
        name=f"{gpu.name} {part.label}",
        capacity_bytes=room.expected_bytes,
        capacity=room,
        bandwidth_bytes_per_second=bandwidth,
        peak_flops=_share(peak_flops(gpu), compute_share(gpu, part)),
    )


def _share(peak: PeakFlops, share: float) -> PeakFlops:
    return PeakFlops(
        fp32=_times(peak.fp32, share),
        tf32=_times(peak.tf32, share),
        bf16=_times(peak.bf16, share),
        fp16=_times(peak.fp16, share),
    )


def _times(value: float | None, share: float) -> float | None:
    return None if value is None else value * share
