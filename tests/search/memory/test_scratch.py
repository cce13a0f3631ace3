import pytest
import torch

from search.memory.scratch import scratch_bytes

aten = torch.ops.aten


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("operator", "args", "expected_bytes"),
    [
        # A bf16 tensor beside an fp32 one is converted whole: 4 B for each of its 100 numbers.
        (aten.add.Tensor, (meta(100), meta(100, dtype=torch.bfloat16)), 400),
        (aten.mul.Tensor, (meta(5, 20), meta(20, dtype=torch.bfloat16)), 80),
        (aten.add.Tensor, (meta(100), meta(100)), 0),
        (aten.add.Tensor, (meta(100, dtype=torch.bfloat16), meta()), 0),
        (aten.mm.default, (meta(9, 9), meta(9, 9)), 0),
        (aten.copy_.default, (meta(100), meta(100, dtype=torch.bfloat16)), 0),
        (aten.where.self, (meta(100, dtype=torch.bool), meta(100), meta(100)), 0),
        (aten.masked_fill.Scalar, (meta(100), meta(100, dtype=torch.bool), 0.0), 0),
        # One byte for each of 4 x 8 x 8 scores.
        (aten._safe_softmax.default, (meta(4, 8, 8), -1), 256),
        (aten.zeros.default, ([3],), 0),
        # 16-bit numbers are averaged, and the samples and pixels of a channel summed, in fp32.
        (aten.mean.dim, (meta(100, dtype=torch.bfloat16), [0]), 400),
        (aten.sum.dim_IntList, (meta(2, 5, 10, dtype=torch.bfloat16), [0, 2]), 400),
        (aten.sum.default, (meta(100, dtype=torch.bfloat16),), 0),
    ],
)
def test_what_grows_with_the_tensors(operator, args, expected_bytes):
    assert scratch_bytes(operator, args) == expected_bytes


def test_is_what_an_addition_really_needs(fresh):
    mixed, alike = fresh("""
        found = []
        for kind in (torch.bfloat16, torch.float32):
            left, right = torch.ones(2**24), torch.ones(2**24, dtype=kind)
            with measure_peak(device) as peak:
                total = left + right
            found.append(peak.num_bytes - total.nbytes)
        print(json.dumps(found))
    """)
    assert mixed == pytest.approx(2**24 * 4, abs=2**20)
    assert alike == pytest.approx(0, abs=2**20)
