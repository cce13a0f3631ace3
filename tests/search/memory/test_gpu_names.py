import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.errors import InputError
from search.memory.gpu_list import gpus
from search.memory.gpu_names import gpu_named, has_words, nearest

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("rtx4090", "GeForce RTX 4090"),
        ("4090", "GeForce RTX 4090"),
        ("RTX 4090 24GB", "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "GeForce RTX 4090 Mobile"),
        ("rtx 4070ti super", "GeForce RTX 4070 Ti SUPER"),
        ("RTX 3080", "GeForce RTX 3080"),
        ("RTX 3080 12 GiB", "GeForce RTX 3080 12 GB"),
        ("A100 40GB", "A100 SXM4 40 GB"),
        ("a100-sxm4-80gb", "A100 SXM4 80 GB"),
        ("A100-SXM-80GB", "A100 SXM4 80 GB"),
        ("H100", "H100 SXM5 80 GB"),
        ("H100 SXM 80GB", "H100 SXM5 80 GB"),
        ("A10", "A10 PCIe"),
        ("T4", "Tesla T4"),
        ("V100 32GB", "Tesla V100 SXM2 32 GB"),
        ("A6000", "RTX A6000"),
        ("RTX 6000 Ada", "RTX 6000 Ada Generation"),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell"),
        ("TITAN X (Pascal)", "TITAN X Pascal"),
        # what drivers print
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40 GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80 GB"),
        ("NVIDIA H100 PCIe", "H100 PCIe 80 GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94 GB"),
        ("NVIDIA H200", "H200 SXM 141 GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GH200 480GB", "GH200 96 GB"),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2 16 GB"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada Generation"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000 Blackwell Server"),
    ],
)
def test_a_name_means_a_gpu(name, meant):
    gpu, part = gpu_named(name)
    assert (gpu.name, part) == (meant, None)


@given(
    st.sampled_from(gpus()),
    st.sampled_from([" ", "-", "_", "  "]),
    st.sampled_from([str.upper, str.lower, str.title]),
    st.sampled_from(["", "NVIDIA ", "nvidia-"]),
)
def test_every_name_is_understood_in_any_dress(gpu, between, case, maker):
    dressed = maker + case(gpu.name).replace(" ", between)
    assert gpu_named(dressed)[0] == gpu


@pytest.mark.parametrize(
    ("name", "meant", "profile", "num_computes"),
    [
        ("A100 40GB MIG 3g.20gb", "A100 SXM4 40 GB", "3g.20gb", 3),
        ("NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb", "A100 SXM4 80 GB", "3g.40gb", 1),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "A100 SXM4 40 GB", "1g.5gb", 1),
        ("MIG 1g.10gb of A100 80GB", "A100 SXM4 80 GB", "1g.10gb", 1),
        ("H100 1g.10gb", "H100 SXM5 80 GB", "1g.10gb", 1),
        ("A100 MIG 3g.20gb", "A100 SXM4 40 GB", "3g.20gb", 3),  # the 80 GB one has no such slice
        ("MIG 1g.5gb+me", "A100 SXM4 40 GB", "1g.5gb", 1),
    ],
)
def test_a_slice_is_found_in_a_name(name, meant, profile, num_computes):
    gpu, part = gpu_named(name)
    assert (gpu.name, part.profile, part.num_computes) == (meant, profile, num_computes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("A100", ["may be any of", "'A100 PCIe 40 GB'", "'A100 SXM4 80 GB'"]),
        ("RTX 3060", ["'GeForce RTX 3060 12 GB'", "'GeForce RTX 3060 8 GB'"]),
        ("RTX 6000", ["'Quadro RTX 6000'", "'RTX 6000 Ada Generation'"]),
        ("MIG 1g.10gb", ["'A100 SXM4 40 GB MIG 1g.10gb'", "name one of them"]),
        ("RTX 4091", ["is no GPU that is known", "'GeForce RTX 4090'"]),
        ("RX 7900 XTX", ["Radeon RX 7900 XTX is made by AMD and has no CUDA"]),
        ("Tesla K80", ["compute capability 3.7"]),
        ("A100 40GB MIG 3g.40gb", ["has no slice 3g.40gb", "3g.20gb"]),
        ("RTX 4090 MIG 1g.10gb", ["GeForce RTX 4090 has no slice", "none"]),
        ("nothing at all like it", ["is no GPU that is known", "paretune devices"]),
        ("", ["is no GPU"]),
        ("NVIDIA", ["is no GPU"]),
    ],
)
def test_a_name_that_means_none_or_several_is_refused_with_the_mend(name, words):
    with pytest.raises(InputError) as refused:
        gpu_named(name)
    assert [word for word in words if word not in str(refused.value)] == []


def test_what_a_driver_reports_tells_models_apart_that_share_a_name():
    name = "NVIDIA GeForce RTX 3060"
    assert gpu_named(name, total_bytes=12_036 * 2**20)[0].name == "GeForce RTX 3060 12 GB"
    assert gpu_named(name, total_bytes=7_900 * 2**20)[0].name == "GeForce RTX 3060 8 GB"
    same_name = gpu_named("NVIDIA GeForce RTX 3080", total_bytes=12_000 * 2**20)[0]
    assert same_name.name == "GeForce RTX 3080 12 GB"


def test_a_list_is_filtered_by_parts_of_words():
    found = [gpu.name for gpu in gpus() if has_words(gpu, "nvidia h100 pcie")]
    assert found == ["H100 PCIe 80 GB", "H100 PCIe 96 GB"]
    assert all(has_words(gpu, "") for gpu in gpus())


def test_near_names_are_like_what_was_written():
    assert nearest("GTX 1081")[0] == "GeForce GTX 1080"
    assert nearest("~") == ()
