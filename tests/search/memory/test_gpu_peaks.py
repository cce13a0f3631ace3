import pytest

from search.memory.gpu_list import gpus
from search.memory.gpu_peaks import peak_flops

BY_NAME = {gpu.name: gpu for gpu in gpus()}


@pytest.mark.parametrize(
    ("name", "fp32", "tf32", "bf16", "fp16"),
    [
        # NVIDIA's datasheets and whitepapers, dense, TFLOPS, sums in fp32
        ("Tesla V100 SXM2 16 GB", 15.7, None, None, 125),
        ("Tesla T4", 8.1, None, None, 65),
        ("A100 SXM4 40 GB", 19.5, 156, 312, 312),
        ("GeForce RTX 2080 Ti", 13.4, None, None, 53.8),
        ("GeForce RTX 3090", 35.6, 35.6, 71, 71),
        ("RTX A6000", 38.7, 77.4, 154.8, 154.8),
        ("GeForce RTX 4090", 82.6, 82.6, 165.2, 165.2),
        ("GeForce RTX 5090", 104.8, 104.8, 209.5, 209.5),
        ("RTX PRO 6000 Blackwell", 126, 251.9, 503.8, 503.8),
    ],
)
def test_the_peaks_are_those_that_are_published(name, fp32, tf32, bf16, fp16):
    peak = peak_flops(BY_NAME[name])
    for found, published in zip(
        (peak.fp32, peak.tf32, peak.bf16, peak.fp16), (fp32, tf32, bf16, fp16), strict=True
    ):
        if published is None:
            assert found is None
        else:
            assert found == pytest.approx(published * 1e12, rel=0.01)


@pytest.mark.parametrize(("name", "bf16"), [("H100 SXM5 80 GB", 989.4), ("B200", 2250)])
def test_figures_printed_for_a_lower_clock_lie_a_little_below(name, bf16):
    assert 1 < peak_flops(BY_NAME[name]).bf16 / (bf16 * 1e12) < 1.09


@pytest.mark.parametrize("name", ["GeForce GTX 1660 Ti", "Tesla P100 SXM2", "GH200 96 GB"])
def test_without_tensor_cores_or_their_number_there_is_no_figure(name):
    peak = peak_flops(BY_NAME[name])
    assert (peak.tf32, peak.bf16, peak.fp16) == (None, None, None)
