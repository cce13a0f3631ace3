"""How fast a device computes and moves bytes: by its data sheet, or measured where it is here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from search.memory.device import Device
from search.memory.files import cache_folder, read_json, write_json
from search.memory.speed import Rates, Shares
from search.memory.work import Arithmetic

_DTYPES = {
    Arithmetic.FP32: torch.float32,
    Arithmetic.BF16: torch.bfloat16,
    Arithmetic.FP16: torch.float16,
}
_LARGE = {"cpu": 256, "cuda": 4096}
_SMALL = {"cpu": 64, "cuda": 512}
"""Rows of square matrices: of the large ones a product reaches what the device can, of the small
ones what layers of small models reach."""
_COPIED_BYTES = {"cpu": 64 * 2**20, "cuda": 512 * 2**20}
"""More than the caches hold."""
_OPERATORS_OF_A_STEP = 7
"""Of `_smallest_step`: two forward, four backward, one that adds up the gradient."""
_LEAST_SECONDS = 0.02
_REPEATS = 3


class Basis(StrEnum):
    """Where the rates of a device come from. Estimates by one are not compared with the other's."""

    MEASURED = "measured"
    DATA_SHEET = "data_sheet"


def rates_by(basis: Basis, device: Device) -> Rates | None:
    """The rates of a device; None where its maker's are asked for and not known."""
    return rates_here(device) if basis is Basis.MEASURED else rates_by_data_sheet(device)


def rates_here(device: Device) -> Rates:
    """The rates of this device, measured once by machine, torch and threads, and then kept.

    `fast` is what the largest product and copy reached, all of it, and an operator by itself;
    `slow` what a small product did, and an operator of a training step.
    """
    file = cache_folder() / "rates.json"
    known = read_json(file)
    key = f"{device.name} | {torch.__version__} | {torch.get_num_threads()}"
    if key not in known:
        known[key] = _measured(device)
        with suppress(OSError):  # where nothing can be kept, it is measured each time
            write_json(file, known)
    return _rates(known[key])


def rates_by_data_sheet(device: Device) -> Rates | None:
    """The rates that the maker of a GPU states; None where fp32 or the bandwidth is not known."""
    peaks, bandwidth = device.peak_flops, device.bandwidth_bytes_per_second
    if peaks is None or peaks.fp32 is None or bandwidth is None:
        return None
    known = {
        Arithmetic.FP32: peaks.fp32,
        Arithmetic.TF32: peaks.tf32,
        Arithmetic.BF16: peaks.bf16,
        Arithmetic.FP16: peaks.fp16,
    }
    return Rates(
        flops_per_second={kind.value: rate for kind, rate in known.items() if rate is not None},
        bandwidth_bytes_per_second=bandwidth,
    )


def _rates(record: Mapping[str, Any]) -> Rates:
    return Rates(
        flops_per_second=record["flops_per_second"],
        bandwidth_bytes_per_second=record["bandwidth_bytes_per_second"],
        slow=Shares(**record["slow"]),
        fast=Shares(**record["fast"]),
    )


def _measured(device: Device) -> dict[str, Any]:
    rates = {
        kind.value: _flops_per_second(device, dtype, _LARGE[device.kind])
        for kind, dtype in _DTYPES.items()
    }
    small = _flops_per_second(device, torch.float32, _SMALL[device.kind])
    one = torch.ones(1, device=device.torch_device, requires_grad=True)
    operator_seconds = _seconds(device, one.detach().neg)
    step_seconds = _seconds(device, lambda: _smallest_step(one)) / _OPERATORS_OF_A_STEP
    return {
        "flops_per_second": rates,
        "bandwidth_bytes_per_second": _bandwidth(device),
        "fast": asdict(Shares(flops=1.0, bandwidth=1.0, operator_seconds=operator_seconds)),
        "slow": asdict(
            Shares(
                flops=min(1.0, small / rates[Arithmetic.FP32.value]),
                bandwidth=1.0,
                operator_seconds=max(operator_seconds, step_seconds),
            )
        ),
    }


def _smallest_step(one: Tensor) -> None:
    """A forward and a backward pass that compute next to nothing."""
    (one * one).sum().backward()  # type: ignore[no-untyped-call]


def _flops_per_second(device: Device, dtype: torch.dtype, num_rows: int) -> float:
    matrix = torch.zeros(num_rows, num_rows, dtype=dtype, device=device.torch_device)
    return 2 * num_rows**3 / _seconds(device, lambda: matrix @ matrix)


def _bandwidth(device: Device) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.zeros(_COPIED_BYTES[device.kind], dtype=torch.uint8, device=device.torch_device)
    target = torch.empty_like(source)
    return 2 * source.numel() / _seconds(device, lambda: target.copy_(source))


def _seconds(device: Device, action: Callable[[], object]) -> float:
    """The least mean of a few runs of many calls: others on the machine only add to it."""
    action()
    num_calls = 1
    while (seconds := _run_seconds(device, action, num_calls)) < _LEAST_SECONDS:
        num_calls *= 2
    others = (_run_seconds(device, action, num_calls) for _ in range(_REPEATS - 1))
    return min(seconds, *others) / num_calls


def _run_seconds(device: Device, action: Callable[[], object], num_calls: int) -> float:
    _wait_for(device)
    start = time.perf_counter()
    for _ in range(num_calls):
        action()
    _wait_for(device)
    return time.perf_counter() - start


def _wait_for(device: Device) -> None:
    if device.kind == "cuda":
        torch.cuda.synchronize()
