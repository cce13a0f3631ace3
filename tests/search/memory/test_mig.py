import pytest

from search.memory.device import ByteEstimate
from search.memory.gpu_list import gpus
from search.memory.gpu_totals import capacity
from search.memory.mig import (
    Slice,
    compute_share,
    memory_share,
    profiles,
    slice_capacity,
    slice_in,
)

GIB = 2**30
BY_NAME = {gpu.name: gpu for gpu in gpus()}
SLICED = [gpu for gpu in gpus() if profiles(gpu)]
ALL = [
    (gpu, Slice(profile=name, num_computes=int(name[0])))
    for gpu in SLICED
    for name in profiles(gpu)
]


@pytest.mark.parametrize(
    ("name", "profile", "memory", "compute", "gib"),
    [
        # NVIDIA MIG User Guide, Supported MIG Profiles: fractions of memory and multiprocessors;
        # the memory as `nvidia-smi mig -lgip` lists it there
        ("A100 SXM4 40 GB", "1g.5gb", 1 / 8, 1 / 7, 4.75),
        ("A100 SXM4 40 GB", "3g.20gb", 4 / 8, 3 / 7, 19.5),
        ("A100 SXM4 80 GB", "1g.10gb", 1 / 8, 1 / 7, 9.5),
        ("A100 SXM4 80 GB", "7g.80gb", 1, 1, 78.5),
        ("H100 SXM5 80 GB", "1g.20gb", 1 / 4, 1 / 7, 19.62),
        ("A30 PCIe", "2g.12gb", 2 / 4, 2 / 4, 11.69),
    ],
)
def test_a_slice_has_the_share_that_the_guide_states(name, profile, memory, compute, gib):
    gpu, part = BY_NAME[name], Slice(profile=profile, num_computes=int(profile[0]))
    assert memory_share(gpu, part) == memory
    assert compute_share(gpu, part) == compute
    assert slice_capacity(gpu, capacity(gpu), part).expected_bytes == int(gib * GIB)


@pytest.mark.parametrize(("gpu", "part"), ALL, ids=lambda one: getattr(one, "name", None))
def test_a_slice_is_part_of_its_gpu(gpu, part):
    whole = capacity(gpu)
    size = slice_capacity(gpu, whole, part)
    share = memory_share(gpu, part)
    assert size.low_bytes <= size.expected_bytes <= size.high_bytes
    # one slice of eight may have a little more than an eighth of what is left of the whole
    assert 0.9 * share * whole.low_bytes < size.low_bytes < 1.02 * share * gpu.memory_bytes
    nominal = int(part.profile.split(".")[1].removesuffix("gb"))
    assert size.high_bytes <= nominal * GIB


def test_bounds_hold_where_no_listing_is_known():
    whole = ByteEstimate(low_bytes=180, expected_bytes=182, high_bytes=184, source="")
    part = Slice(profile="3g.90gb", num_computes=3)
    found = slice_capacity(BY_NAME["B200"], whole, part)
    assert (found.low_bytes, found.expected_bytes, found.high_bytes) == (81, 91, 92)


@pytest.mark.parametrize(
    ("name", "rest", "label"),
    [
        ("A100 40GB MIG 3g.20gb", "A100 40GB", "MIG 3g.20gb"),
        ("NVIDIA-A100-SXM4-40GB-MIG-3G.20GB", "NVIDIA-A100-SXM4-40GB", "MIG 3g.20gb"),
        ("A100 MIG 1c.3g.20gb", "A100", "MIG 1c.3g.20gb"),
        ("1g.5gb+me", "", "MIG 1g.5gb"),
    ],
)
def test_a_name_is_taken_apart(name, rest, label):
    found, part = slice_in(name)
    assert (found, part.label) == (rest, label)


def test_a_name_without_a_slice_stays():
    assert slice_in("RTX 4090") == ("RTX 4090", None)


def test_a_consumer_gpu_cannot_be_sliced():
    assert profiles(BY_NAME["GeForce RTX 4090"]) == ()
