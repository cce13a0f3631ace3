import gc
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from search.memory import cuda_autocast
from search.memory.cuda import Cuda
from search.memory.trace import record

GPU = torch.device("cpu", 0)
HALF, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
A100 = Cuda(architecture=(8, 0))


@pytest.fixture(params=[BF16, HALF], ids=["bf16", "fp16"])
def lower(request):
    """A type to compute in, with the personality installed and autocast on."""
    with A100.installed(), FakeTensorMode(), torch.autocast("cpu", request.param):
        yield request.param


def numbers(*shape, dtype=FP32, device=GPU):
    return torch.empty(shape, dtype=dtype, device=device)


class TestTypes:
    """Against torch's documentation, `docs/source/amp.md`, CUDA Op-Specific Behavior."""

    @pytest.mark.parametrize(
        "operator",
        [
            lambda x: x @ x,
            lambda x: functional.linear(x, x, x[0]),
            lambda x: torch.addmm(x, x, x),
            lambda x: torch.mv(x, x[0]),
            lambda x: torch.einsum("ij,kj->ik", x, x),
            lambda x: torch.baddbmm(x[None], x[None], x[None]),
            lambda x: functional.conv1d(x[None], x[..., None]),
            lambda x: functional.conv1d(x[None], x[..., None], padding="same"),
            lambda x: functional.prelu(x, x[0, :1]),
            lambda x: functional.scaled_dot_product_attention(
                x[None, None], x[None, None], x[None, None]
            ),
            lambda x: nn.LSTMCell(8, 8, device=GPU)(x)[0],
        ],
    )
    def test_lower_precision(self, lower, operator):
        assert operator(numbers(8, 8)).dtype is lower

    @pytest.mark.parametrize(
        "operator",
        [
            lambda x: functional.layer_norm(x, (8,)),
            lambda x: functional.rms_norm(x, (8,)),
            lambda x: functional.group_norm(x, 2),
            lambda x: x.exp(),
            lambda x: x.rsqrt(),
            lambda x: x**2,
            lambda x: 2**x,
            lambda x: x.logsumexp(-1),
            lambda x: x.softmax(-1),
            lambda x: x.log_softmax(-1),
            lambda x: x.sum(),
            lambda x: x.sum(-1),
            lambda x: x.prod(),
            lambda x: x.cumsum(0),
            lambda x: x.norm(),
            lambda x: x.norm(dim=1),
            torch.linalg.vector_norm,
            lambda x: functional.mse_loss(x, x),
            lambda x: functional.l1_loss(x, x),
            lambda x: functional.kl_div(x, x),
            lambda x: functional.cross_entropy(x, torch.zeros(8, dtype=torch.int64, device=GPU)),
            lambda x: functional.binary_cross_entropy_with_logits(x, x),
            lambda x: functional.interpolate(x[None, None], scale_factor=2),
            lambda x: functional.cosine_similarity(x, x),
        ],
    )
    @pytest.mark.filterwarnings("ignore::UserWarning")
    def test_fp32(self, lower, operator):
        assert operator(numbers(8, 8, dtype=lower)).dtype is FP32

    @pytest.mark.parametrize(
        "operator",
        [
            lambda x: x + 1,
            lambda x: x.relu(),
            functional.gelu,
            lambda x: x.mean(),
            lambda x: x.sqrt(),
            lambda x: functional.dropout(x, 0.5),
            lambda x: functional.max_pool3d(x[None, None], 2),
            lambda x: functional.avg_pool3d(x[None, None], 2),
            lambda x: functional.pad(x, (1, 1), mode="reflect"),
        ],
    )
    def test_left_alone_though_the_cpu_lists_some(self, lower, operator):
        assert operator(numbers(8, 8, 8, dtype=lower)).dtype is lower

    def test_a_type_that_is_asked_for_is_given(self, lower):
        x = numbers(8, 8, dtype=lower)
        assert x.sum(dtype=lower).dtype is lower
        assert x.softmax(-1, dtype=torch.float64).dtype is torch.float64

    def test_the_widest_of_several(self, lower):
        x, y = numbers(8, dtype=lower), numbers(8)
        assert torch.dot(x, x).dtype is lower
        assert torch.dot(x, y).dtype is FP32
        assert torch.addcmul(x, x, y).dtype is FP32
        assert torch.cat([x, y]).dtype is FP32
        assert torch.cat([x, x]).dtype is lower

    def test_doubles_and_whole_numbers_stay(self, lower):  # noqa: ARG002 - turns autocast on
        x = numbers(8, 8, dtype=torch.float64)
        assert (x @ x).dtype is torch.float64
        assert numbers(8, dtype=torch.int64).sum().dtype is torch.int64

    def test_one_loss_is_refused(self, lower):
        x = numbers(8, dtype=lower)
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            functional.binary_cross_entropy(x, x)

    def test_the_host_is_passed_over(self, lower):  # noqa: ARG002 - turns autocast on
        x = numbers(8, 8, device="cpu")
        assert (x @ x).dtype is FP32

    def test_nothing_changes_without_autocast(self):
        with A100.installed(), FakeTensorMode():
            assert (numbers(8, 8) @ numbers(8, 8)).dtype is FP32
            assert numbers(8, 8, dtype=BF16).sum().dtype is BF16


class TestLists:
    def test_every_name_is_an_operator_of_torch(self):
        for name in cuda_autocast._cuda_policies():
            cuda_autocast._operator(name)

    def test_no_operator_has_two_rules(self):
        lists = (
            cuda_autocast.LOWER_PRECISION,
            cuda_autocast.FP32,
            cuda_autocast.FP32_RESULT,
            cuda_autocast.FP32_NORM,
            cuda_autocast.PROMOTED,
            cuda_autocast.RECURRENT,
        )
        assert len(cuda_autocast._cuda_policies()) == 1 + sum(map(len, lists))

    def test_they_are_those_of_the_header(self):
        header = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
        assert _listed(header.read_text(), "LOWER_PRECISION_FP") == set(
            cuda_autocast.LOWER_PRECISION
        )
        assert _listed(header.read_text(), "FP32") == set(cuda_autocast.FP32)
        assert _listed(header.read_text(), "FP32_SET_OPT_DTYPE") == set(cuda_autocast.FP32_RESULT)
        assert _listed(header.read_text(), "PROMOTE") == set(cuda_autocast.PROMOTED)


def _listed(header, name):
    lines = header.split(f"#define AT_FORALL_{name}(_)")[1].split("\n\n")[0].splitlines()[1:]
    names = (line.split("(", 1)[1].split(")")[0] for line in lines if "_(" in line)
    return {name.replace(", ", ".") for name in names}


class TestRestored:
    def test_the_cpu_has_its_own_rules_again(self):
        with A100.installed():
            pass
        with torch.autocast("cpu", BF16):
            x = torch.ones(4, 4)
            assert (x @ x).dtype is BF16
            assert (x @ x).sum().dtype is BF16
            assert functional.binary_cross_entropy(x, x).dtype is FP32

    def test_after_an_error_too(self):
        def fails():
            with A100.installed():
                msg = "in the middle"
                raise KeyError(msg)

        with pytest.raises(KeyError):
            fails()
        with torch.autocast("cpu", BF16):
            x = torch.ones(4, 4)
            assert (x @ x).dtype is BF16


def casts_alive(run):
    """Bytes in bf16 that were alive at once, of weights of 8 x 8 that `run` uses."""
    alive = most = 0
    for event in record(run, A100):
        if event.operator == "aten._to_copy.default" or (alive and abs(event.num_bytes) == 128):
            alive += event.num_bytes if abs(event.num_bytes) == 128 else 0
            most = max(most, alive)
    return most, alive


class TestWeightCache:
    """Sizes are chosen so that nothing but a cast weight is 8 x 8 x 2 = 128 bytes long."""

    @staticmethod
    def _twice(weight, x):
        return functional.linear(x, weight), functional.linear(x, weight)

    def run(self, *, frozen=False, grad=True):
        def traced(_):
            weight = nn.Parameter(numbers(8, 8), requires_grad=not frozen)
            x = numbers(3, 8)
            with torch.set_grad_enabled(grad), torch.autocast("cpu", BF16):
                self._twice(weight, x)
                gc.collect()
                self.inside = True
                torch.zeros(7, device=GPU)

        return traced

    def test_a_weight_is_cast_once_and_goes_with_the_region(self):
        assert casts_alive(self.run()) == (128, 0)
        num_casts = [
            event
            for event in record(self.run(), A100)
            if event.operator == "aten._to_copy.default" and event.num_bytes == 128
        ]
        assert len(num_casts) == 1

    def test_it_is_kept_under_no_grad_too(self):
        # pytorch #48049: evaluation keeps a cast of every weight until autocast ends.
        events = record(self.run(grad=False), A100)
        order = [(e.operator, e.num_bytes) for e in events]
        last_work = order.index(("aten.zeros.default", 28))
        assert order.index(("aten._to_copy.default", 128)) < last_work
        assert all(num_bytes != -128 for _, num_bytes in order[:last_work])

    def test_a_frozen_weight_is_cast_each_time(self):
        events = record(self.run(frozen=True), A100)
        assert sum(e.num_bytes == 128 and "_to_copy" in e.operator for e in events) == 2

    def test_the_cache_can_be_off(self):
        def run(_):
            weight, x = nn.Parameter(numbers(8, 8)), numbers(3, 8)
            with torch.autocast("cpu", BF16, cache_enabled=False):
                self._twice(weight, x)

        events = record(run, A100)
        assert sum(e.num_bytes == 128 and "_to_copy" in e.operator for e in events) == 2


class TestFusedSoftmax:
    def test_fp16_is_read_as_it_is_and_bf16_is_converted_first(self):
        def run(dtype):
            def traced(_):
                with torch.autocast("cpu", dtype):
                    numbers(4, 8, dtype=dtype).softmax(-1)

            return [e.operator for e in record(traced, A100) if e.num_bytes > 0]

        assert run(HALF) == ["aten.empty.memory_format", "aten._softmax.default"]
        assert run(BF16) == [
            "aten.empty.memory_format",
            "aten._to_copy.default",
            "aten._softmax.default",
        ]


class Casts(TorchDispatchMode):
    """Counts conversions."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def used(*, device, grad, frozen, cached, across):
    """Conversions of a weight that is used three times, the last perhaps in the other grad mode."""
    weight = nn.Parameter(torch.ones(4, 4, device=device), requires_grad=not frozen)
    x = torch.ones(4, 4, device=device, dtype=BF16)
    with Casts() as casts, torch.autocast("cpu", BF16, cache_enabled=cached):
        with torch.set_grad_enabled(grad):
            functional.linear(functional.linear(x, weight), weight)
        with torch.set_grad_enabled(grad is not across):
            functional.linear(x, weight)
    return casts.count


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("across", [True, False])
def test_weights_are_cast_as_often_as_by_torch_itself(grad, frozen, cached, across):
    options = {"grad": grad, "frozen": frozen, "cached": cached, "across": across}
    expected = used(device="cpu", **options)
    with A100.installed(), FakeTensorMode():
        assert used(device=GPU, **options) == expected
