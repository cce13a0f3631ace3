"""cpu:0 stands for a GPU in traces: what is made for it from Python's numbers must lie there."""

import pytest
import torch

from search.memory.target import Cpu
from search.memory.trace import record

GPU = torch.device("cpu", 0)


class Gpu(Cpu):
    device = GPU


def traced(run):
    results = []
    record(lambda _: results.append(run()), Gpu())
    return results[0]


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray])
@pytest.mark.parametrize("numbers", [[], 1.0, [1.0, 2.0]])
def test_numbers_lie_on_the_device_they_are_made_for(make, numbers):
    assert traced(lambda: make(numbers, device=GPU).device) == GPU
    assert traced(lambda: make(numbers, device="cpu:0").device) == GPU
    assert traced(lambda: make(numbers, device="cpu").device) == torch.device("cpu")
    assert traced(lambda: make(numbers).device) == torch.device("cpu")


@pytest.mark.parametrize("numbers", [[], 1.0, [1.0, 2.0]])
def test_numbers_go_where_they_are_sent(numbers):
    assert traced(lambda: torch.tensor(numbers).to(GPU).device) == GPU


def test_the_device_may_be_the_surrounding_one():
    def run():
        with GPU:
            return torch.tensor(1.0).device

    assert traced(run) == GPU


def test_an_empty_tensor_joins_others_of_its_device():
    def run():
        return torch.cat([torch.tensor([], device=GPU), torch.empty(3, device=GPU)]).device

    assert traced(run) == GPU


def test_new_numbers_lie_beside_the_tensor_they_are_made_from():
    def run():
        tensor = torch.empty(2, device=GPU)
        return tensor.new_tensor([1.0]).device, tensor.new_tensor([1.0], device="cpu").device

    assert traced(run) == (GPU, torch.device("cpu"))


def test_a_leaf_stays_a_leaf():
    def run():
        tensor = torch.tensor([1.0], device=GPU, requires_grad=True)
        return tensor.is_leaf, tensor.requires_grad

    assert traced(run) == (True, True)


def test_the_host_reads_what_it_made_and_no_more_what_it_sent_away():
    assert traced(lambda: torch.tensor(7.0).item()) == 7.0
    assert traced(lambda: torch.tensor(7.0, device=GPU).item()) == 1.0
