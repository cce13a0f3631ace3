"""How much of a GPU's memory CUDA can give out: the driver keeps some, and so do error codes."""

from __future__ import annotations

from search.memory.device import ByteEstimate
from search.memory.gpu_list import Gpu

_MIB = 2**20

_REPORTED_MIB = {
    "A10G": (22_513, 22_587),
    "A100 PCIe 40 GB": (40_339, 40_654),
    "A100 PCIe 80 GB": (81_038, 81_251),
    "A100 SXM4 40 GB": (40_339, 40_654),
    "A100 SXM4 80 GB": (81_038, 81_251),
    "A40 PCIe": (45_416, 45_416),
    "B200": (182_631, 182_642),
    "GeForce RTX 2080 Ti": (10_825, 11_020),
    "GeForce RTX 3060 12 GB": (11_910, 12_045),
    "GeForce RTX 3090": (24_124, 24_268),
    "GeForce RTX 4070 Ti SUPER": (16_069, 16_069),
    "GeForce RTX 4090": (24_081, 24_217),
    "GeForce RTX 5090": (32_102, 32_123),
    "H100 PCIe 80 GB": (81_008, 81_008),
    "H100 SXM5 80 GB": (81_082, 81_121),
    "H200 SXM 141 GB": (143_156, 143_156),
    "L4": (22_563, 22_693),
    "L40S": (45_589, 45_589),
    "RTX 6000 Ada Generation": (48_509, 48_539),
    "RTX A4000": (15_980, 15_990),
    "RTX A6000": (48_670, 48_676),
    "Tesla T4": (14_912, 15_110),
    "Tesla V100 SXM2 16 GB": (16_130, 16_160),
    "Tesla V100 SXM2 32 GB": (32_494, 32_494),
}
"""The least and the most that a driver for Linux reported as `total_memory` to torch, in MiB.

It differs between drivers: on a GeForce newer ones keep more for themselves, on an A100 less. On
server cards with GDDR memory a sixteenth holds error codes (A10G, A40, L4, L40S, T4).
A driver for Windows reports the nominal size, as it moves memory out to the host.

Source: torch's device properties as printed in public training logs (the first line of
Ultralytics' YOLO, torch 1.7 to 2.13) and in these threads: bottlerocket-os/bottlerocket #3873 and
ultralytics/yolov5 #3360 (A100 40 GB), ultralytics/ultralytics #22877 (A100 80 GB), #7673 (A10G),
#19084 (RTX A6000), unslothai/unsloth-zoo #1053 (RTX 6000 Ada), aikitoria/open-gpu-kernel-modules
#1 and Wan-Video/Wan2.1 #465 (RTX 5090), DengKaiCQ/VGGT-Long #6 (RTX A4000),
vllm-project/vllm #12126 (H100 80 GB).
"""

LEAST_SHARE = 0.91
"""No GPU of the table reported less of its nominal size; the T4 did this much, rounded down."""


def capacity(gpu: Gpu) -> ByteEstimate:
    """All the memory CUDA can give out on a GPU with nothing on it, used or not.

    Expected is the least that a driver reported: a plan must hold with any of them. Where no
    report is known, it is the nominal size, and the truth lies below.
    """
    if (reported := _REPORTED_MIB.get(gpu.name)) is None:
        return ByteEstimate(
            low_bytes=int(gpu.memory_bytes * LEAST_SHARE),
            expected_bytes=gpu.memory_bytes,
            high_bytes=gpu.memory_bytes,
            source="nominal; the driver keeps 1 to 9 % of it",
        )
    low, high = (size * _MIB for size in reported)
    return ByteEstimate(
        low_bytes=low, expected_bytes=low, high_bytes=high, source="reported by drivers"
    )
