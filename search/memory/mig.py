"""Slices of a GPU made by MIG (multi-instance GPU): their share of its memory and arithmetic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from search.memory.device import ByteEstimate
from search.memory.gpu_list import Gpu

_GIB = 2**30
_IN_NAME = re.compile(
    r"(?:\b(?P<part>\d)c[.\s-])?(?P<profile>\dg\.\d+gb)(?:\+[a-z.]+)*", re.IGNORECASE
)
_NOISE = re.compile(r"\b(?:mig|of|on)\b", re.IGNORECASE)
_LEAST_OF_SHARE = 0.91
"""The listed slices have at least this part of the memory that their share comes to (an H200's
smallest has 0.915): each carries the driver's own memory anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """What a name asks for: a profile such as `3g.20gb`, and how many of its compute slices."""

    profile: str
    num_computes: int

    @property
    def label(self) -> str:
        """As drivers write it: `MIG 3g.20gb`, or `MIG 1c.3g.20gb` for a part of its compute."""
        whole = self.profile.startswith(f"{self.num_computes}g")
        return f"MIG {'' if whole else f'{self.num_computes}c.'}{self.profile}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How one model of GPU is sliced.

    Attributes:
        num_computes: the compute slices of the whole GPU.
        num_memories: its memory slices; bandwidth goes with them.
        memories: how many of them each profile has.
        gib: the memory that drivers list for a profile, the least and the most; without an entry
            no listing is known.
    """

    num_computes: int
    num_memories: int
    memories: Mapping[str, int]
    gib: Mapping[str, tuple[float, float]]


def _seven(sizes: tuple[int, ...], gib: Mapping[str, tuple[float, float]]) -> Geometry:
    """The geometry of the large chips: 7 compute slices, 8 memory slices, six profiles."""
    computes, memories = (1, 1, 2, 3, 4, 7), (1, 2, 2, 4, 4, 8)
    names = [f"{num}g.{size}gb" for num, size in zip(computes, sizes, strict=True)]
    return Geometry(
        num_computes=7, num_memories=8, memories=dict(zip(names, memories, strict=True)), gib=gib
    )


def _four(sizes: tuple[int, ...], gib: Mapping[str, tuple[float, float]]) -> Geometry:
    """The geometry of the smaller ones: 4 of each, three profiles."""
    memories = {f"{num}g.{size}gb": num for num, size in zip((1, 2, 4), sizes, strict=True)}
    return Geometry(num_computes=4, num_memories=4, memories=memories, gib=gib)


_GEOMETRIES = {
    ((8, 0), 24): _four(
        (6, 12, 24), {"1g.6gb": (5.81, 5.81), "2g.12gb": (11.69, 11.69), "4g.24gb": (23.5, 23.5)}
    ),
    ((8, 0), 40): _seven(
        (5, 10, 10, 20, 20, 40),
        {
            "1g.5gb": (4.75, 4.95),
            "1g.10gb": (9.62, 9.75),
            "2g.10gb": (9.62, 9.9),
            "3g.20gb": (19.5, 19.79),
            "4g.20gb": (19.5, 19.79),
            "7g.40gb": (39.25, 39.59),
        },
    ),
    ((8, 0), 80): _seven(
        (10, 20, 20, 40, 40, 80),
        {
            "1g.10gb": (9.5, 9.62),
            "1g.20gb": (19.5, 19.5),
            "2g.20gb": (19.5, 19.5),
            "3g.40gb": (39.25, 39.5),
            "4g.40gb": (39.25, 39.5),
            "7g.80gb": (78.5, 79.25),
        },
    ),
    ((9, 0), 80): _seven(
        (10, 20, 20, 40, 40, 80),
        {
            "1g.10gb": (9.75, 9.75),
            "1g.20gb": (19.62, 19.62),
            "2g.20gb": (19.62, 19.62),
            "3g.40gb": (39.5, 39.5),
            "4g.40gb": (39.5, 39.5),
            "7g.80gb": (79.0, 79.25),
        },
    ),
    ((9, 0), 94): _seven((12, 24, 24, 47, 47, 94), {}),
    ((9, 0), 96): _seven((12, 24, 24, 48, 48, 96), {}),
    ((9, 0), 141): _seven(
        (18, 35, 35, 71, 71, 141),
        {"1g.18gb": (16.0, 16.0), "1g.35gb": (32.5, 32.5), "2g.35gb": (32.5, 32.5)},
    ),
    ((10, 0), 180): _seven((23, 45, 45, 90, 90, 180), {}),
    ((12, 0), 96): _four((24, 48, 96), {}),
}
"""By compute capability and nominal GB.

Source: NVIDIA Multi-Instance GPU User Guide, Supported MIG Profiles, for names and shares. For the
memory: listings of `nvidia-smi mig -lgip` in that guide (Getting Started; also its first editions),
in NVIDIA/go-nvml `pkg/nvml/mock/internal/shared/gpus/a100.go`, and in public notes of operators.
"""


def slice_in(name: str) -> tuple[str, Slice | None]:
    """A device's name without its slice, and the slice: `A100 40GB MIG 3g.20gb`, or parts of it."""
    if (match := _IN_NAME.search(name)) is None:
        return name, None
    rest = _NOISE.sub(" ", name[: match.start()] + " " + name[match.end() :])
    profile = match["profile"].lower()
    return rest.strip(" -,/"), Slice(profile=profile, num_computes=int(match["part"] or profile[0]))


def profiles(gpu: Gpu) -> tuple[str, ...]:
    """The profiles a GPU can be sliced into, from the smallest; empty where it cannot."""
    geometry = _GEOMETRIES.get((gpu.architecture, gpu.num_gb))
    return tuple(geometry.memories) if geometry else ()


def memory_share(gpu: Gpu, part: Slice) -> float:
    """The part of a GPU's memory and bandwidth that a slice has."""
    geometry = _GEOMETRIES[gpu.architecture, gpu.num_gb]
    return geometry.memories[part.profile] / geometry.num_memories


def compute_share(gpu: Gpu, part: Slice) -> float:
    """The part of a GPU's multiprocessors that a slice has, as the guide counts them.

    A few multiprocessors belong to no slice: seven slices of an A100 have 98 of its 108.
    """
    return part.num_computes / _GEOMETRIES[gpu.architecture, gpu.num_gb].num_computes


def slice_capacity(gpu: Gpu, whole: ByteEstimate, part: Slice) -> ByteEstimate:
    """The memory of a slice, of a GPU whose memory is `whole`."""
    listed = _GEOMETRIES[gpu.architecture, gpu.num_gb].gib.get(part.profile)
    if listed is None:
        share = memory_share(gpu, part)
        return ByteEstimate(
            low_bytes=int(whole.low_bytes * share * _LEAST_OF_SHARE),
            expected_bytes=int(whole.expected_bytes * share),
            high_bytes=int(whole.high_bytes * share),
            source="its share of the GPU's; the driver keeps a part of each slice",
        )
    low, high = (int(size * _GIB) for size in listed)
    return ByteEstimate(
        low_bytes=low, expected_bytes=low, high_bytes=high, source="listed by drivers"
    )
