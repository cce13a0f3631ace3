"""What is remembered of operators, against torch's own answer each time."""

from unittest import mock

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from search.memory.cuda import Cuda
from search.memory.memo import Memo
from search.memory.sample import Sample
from search.memory.target import Cpu
from search.memory.trace import record, trace

aten = torch.ops.aten


def torch_alone(_, operator, args, kwargs, run=None):
    return (run or operator)(*args, **kwargs)


def images():
    """Layers with buffers, pieces of one storage, writing in place, numbers the host knows."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2)
    )
    for _ in range(2):
        x = model(torch.zeros(2, 3, 16, 16)).flatten(1)
        first, second = x.chunk(2, dim=1)
        x = first[second[:, 0].argsort()] * torch.tensor(2.0)
        x.square().sum().backward()
    return model


def recurrent():
    model = nn.LSTM(8, 16, num_layers=2, batch_first=True)
    for _ in range(2):
        model(torch.zeros(4, 6, 8))[0].sum().backward()
    return model


@pytest.mark.parametrize("target", [Cpu(), Cuda(architecture=(8, 0))])
@pytest.mark.parametrize("run", [images, recurrent])
def test_the_events_are_those_without_it(run, target):
    with mock.patch.object(Memo, "__call__", torch_alone):
        record(lambda _: run(), target)  # the first call of an operator in a process differs
        expected = record(lambda _: run(), target)
    assert record(lambda _: run(), target) == expected


@pytest.mark.parametrize("target", [Cpu(), Cuda(architecture=(9, 0))])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "32-true"])
def test_a_step_is_the_one_without_it(precision, target):
    params = {"batch_size": 4, "micro_batch_size": 2, "precision": precision}
    with mock.patch.object(Memo, "__call__", torch_alone):
        expected = trace(Sample(), params, target=target)
    assert trace(Sample(), params, target=target) == expected


@pytest.fixture
def fake():
    with FakeTensorMode() as mode:
        yield mode


def kind(tensor):
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_conj()


@pytest.mark.parametrize(
    ("operator", "more"),
    [
        (aten.t.default, ()),
        (aten.select.int, (0, 1)),
        (aten._conj.default, ()),
        (aten.mul.Scalar, (2,)),
        (aten._to_copy.default, ()),
    ],
)
def test_a_remembered_tensor_is_of_the_same_kind(fake, operator, more):
    memo = Memo(fake)
    x, y = (torch.zeros(3, 4, dtype=torch.complex64) for _ in range(2))
    first, second = memo(operator, (x, *more), {}), memo(operator, (y, *more), {})
    assert kind(second) == kind(first)
    assert (second.untyped_storage()._cdata == y.untyped_storage()._cdata) == operator.is_view


def test_pieces_are_views_of_what_is_cut(fake):
    memo = Memo(fake)
    memo(aten.split.Tensor, (torch.zeros(4, 2), 2), {})
    cut = torch.zeros(4, 2)
    pieces = memo(aten.split.Tensor, (cut, 2), {})
    assert [piece.storage_offset() for piece in pieces] == [0, 4]
    assert {p.untyped_storage()._cdata for p in pieces} == {cut.untyped_storage()._cdata}


def test_what_is_written_in_place_comes_back_itself(fake):
    memo = Memo(fake)
    memo(aten.add_.Tensor, (torch.zeros(3), torch.zeros(3)), {})
    x = torch.zeros(3)
    assert memo(aten.add_.Tensor, (x, torch.zeros(3)), {}) is x


def test_numbers_of_another_type_are_another_call(fake):
    memo, x = Memo(fake), torch.zeros(3, dtype=torch.int64)
    types = [memo(aten.mul.Scalar, (x, number), {}).dtype for number in (1, 1.0, 1)]
    assert types == [torch.int64, torch.float32, torch.int64]


def test_a_number_the_host_knows_stays_known(fake):
    memo = Memo(fake)
    memo(aten.add.Scalar, (torch.zeros(()), 1), {})
    known = [memo(aten.add.Scalar, (torch.tensor(value), 1), {}) for value in (2.0, 5.0)]
    assert [tensor.item() for tensor in known] == [3.0, 6.0]


def test_another_fake_mode_gets_tensors_of_its_own(fake):
    Memo(fake)(aten.neg.default, (torch.zeros(3),), {})
    with FakeTensorMode() as other:
        made = Memo(other)(aten.neg.default, (torch.zeros(3),), {})
    assert made.fake_mode is other
