import pytest
import torch

from search.memory.reductions import mean_bytes, sum_bytes


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("tensor", "dimensions", "expected_bytes"),
    [
        # Samples and pixels of each channel are two runs: 4 x 3 x 5 x 5 numbers in fp32.
        (meta(4, 3, 5, 5), [0, 2, 3], 1_200),
        (meta(4, 3, 5, 5, dtype=torch.float16), [0, -1, -2], 1_200),
        (meta(4, 3, 5, 5, dtype=torch.float32), [0, 2, 3], 0),
        # One run: samples and positions follow one another; so do all places.
        (meta(4, 6, 8), [0, 1], 0),
        (meta(4, 6, 8), None, 0),
        (meta(4, 8), [0], 0),
        # Of one sample, the pixels alone are summed.
        (meta(1, 3, 5, 5), [0, 2, 3], 0),
        # The first columns alone leave gaps between the rows, so that all are two runs.
        (meta(4, 6)[:, :3], None, 48),
    ],
)
def test_a_sum_copies_what_is_no_single_run(tensor, dimensions, expected_bytes):
    assert sum_bytes(tensor, dimensions) == expected_bytes


def test_a_mean_of_16_bits_copies_all():
    assert mean_bytes(meta(10, 10)) == 400
    assert mean_bytes(meta(10, 10, dtype=torch.float32)) == 0


def test_is_what_they_really_need(fresh):
    found = fresh("""
        from search.memory.reductions import mean_bytes, sum_bytes
        found = []
        for shape, over in (((64, 16, 64, 64), (0, 2, 3)), ((64, 4096, 16), (0, 1))):
            numbers = torch.ones(shape, dtype=torch.bfloat16)
            with measure_peak(device) as peak:
                numbers.sum(over)
            found.append([sum_bytes(numbers, over), peak.num_bytes])
            with measure_peak(device) as peak:
                numbers.mean(over)
            found.append([mean_bytes(numbers), peak.num_bytes])
        print(json.dumps(found))
    """)
    assert [expected for expected, _ in found] == [2**24, 2**24, 0, 2**24]
    for expected, measured in found:
        assert measured == pytest.approx(expected, abs=2**20)
