import pytest
import torch
from torch.nn import functional

from search.memory.cuda import Cuda
from search.memory.cuda_workspaces import cublas_workspace_bytes
from search.memory.events import Part
from search.memory.trace import record

GPU = torch.device("cpu", 0)


def numbers(*shape, needs_grad=False):
    return torch.empty(shape, device=GPU, requires_grad=needs_grad)


def workspaces(run, architecture=(8, 0)):
    events = record(lambda _: run(), Cuda(architecture=architecture))
    return [event.num_bytes for event in events if event.part is Part.WORKSPACE]


class TestSize:
    @pytest.mark.parametrize(
        ("architecture", "num_bytes"),
        [
            ((7, 0), 8_519_680),  # :4096:2:16:8
            ((8, 0), 8_519_680),  # confirmed on an A100: pytorch #95668
            ((8, 9), 8_519_680),
            ((9, 0), 33_554_432),
            ((10, 0), 33_554_432),
            ((12, 0), 33_554_432),
        ],
    )
    def test_by_architecture(self, architecture, num_bytes):
        assert cublas_workspace_bytes(architecture) == num_bytes

    def test_as_configured(self, monkeypatch):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        assert cublas_workspace_bytes((8, 0)) == 8 * 4096 * 1024
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8:4096:2")
        assert cublas_workspace_bytes((9, 0)) == 8_519_680
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "nonsense")
        assert cublas_workspace_bytes((8, 0)) == 8_519_680


class TestThreads:
    def test_each_asks_once_and_keeps_it(self):
        def run():
            x, weight = numbers(4, 8), numbers(8, 8, needs_grad=True)
            for _ in range(2):
                functional.linear(functional.linear(x, weight), weight).sum().backward()

        assert workspaces(run) == [8_519_680] * 2

    def test_without_a_backward_pass_there_is_one(self):
        assert workspaces(lambda: numbers(4, 8) @ numbers(8, 8)) == [8_519_680]

    def test_none_before_the_first_product(self):
        assert workspaces(lambda: numbers(4, 8) + 1) == []

    def test_an_empty_product_asks_for_none(self):
        assert workspaces(lambda: numbers(0, 8) @ numbers(8, 8)) == []

    def test_the_host_asks_for_none(self):
        assert workspaces(lambda: torch.ones(4, 4) @ torch.ones(4, 4)) == []

    def test_a_second_trace_starts_anew(self):
        target = Cuda(architecture=(8, 0))
        for _ in range(2):
            events = record(lambda _: numbers(4, 8) @ numbers(8, 8), target)
            assert sum(event.part is Part.WORKSPACE for event in events) == 1


class TestLt:
    @staticmethod
    def linear():
        return functional.linear(numbers(4, 8), numbers(8, 8), numbers(8))

    def test_shares_the_workspace_of_cublas(self):
        assert workspaces(self.linear) == [8_519_680]

    def test_has_its_own_on_request(self, monkeypatch):
        monkeypatch.setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0")
        assert workspaces(self.linear) == [8_519_680, 2**20]
        assert workspaces(lambda: numbers(4, 8) @ numbers(8, 8)) == [8_519_680]
        monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "2048")
        assert workspaces(self.linear) == [8_519_680, 2 * 2**20]
        monkeypatch.setenv("DISABLE_ADDMM_CUDA_LT", "1")
        assert workspaces(self.linear) == [8_519_680]


def test_a_matrix_no_kernel_can_read_is_copied():
    def run(_):
        spread = numbers(4, 8, 2)[..., 0]
        return spread @ numbers(8, 8), numbers(8, 4).t() @ numbers(8, 8)

    events = record(run, Cuda(architecture=(8, 0)))
    found = [e.num_bytes for e in events if e.operator == "aten.mm.default" and e.num_bytes > 0]
    assert found == [4 * 8 * 4, 4 * 8 * 4, 8_519_680, 4 * 8 * 4]


@pytest.mark.parametrize(
    ("batch", "copied"),
    [
        (lambda x: x, False),
        (lambda x: x.transpose(1, 2), False),
        (lambda x: x[:1].expand(3, 8, 8), False),
        (lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), False),
        (lambda x: x[:, :, :1].expand(3, 8, 8), True),
    ],
)
def test_a_batch_too(batch, copied):
    def run(_):
        return torch.bmm(batch(numbers(3, 8, 8)), numbers(3, 8, 8))

    events = record(run, Cuda(architecture=(8, 0)))
    found = [e.num_bytes for e in events if e.operator == "aten.bmm.default" and e.num_bytes > 0]
    assert found == [3 * 8 * 8 * 4] * (2 if copied else 1) + [8_519_680]
