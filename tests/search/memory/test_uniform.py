import pytest
import torch
from torch import nn

from search.memory.events import Phase
from search.memory.target import Cpu
from search.memory.trace import record
from search.memory.uniform import Uniform


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda mask: mask.all(), False),
        (lambda mask: mask.any(), False),
        (lambda mask: torch.all(mask == 1), False),
        (lambda mask: (mask == 0).all(), True),
        (lambda mask: (mask != 1).any(), True),
        (lambda mask: mask.bool().logical_not().all(), True),
        (lambda mask: mask[:, None, None, :].expand(2, 1, 5, 3).to(torch.bool).all(), False),
        (lambda mask: mask.clone().all(), False),
    ],
)
def test_zeros_answer_in_a_trace_as_they_do_outside(question, answer):
    found = []

    def run(recorder):
        mask = torch.zeros(2, 3, dtype=torch.int64)
        recorder.holds_zeros([mask])
        found.append(bool(question(mask)))

    record(run, Cpu())
    assert found == [answer] == [bool(question(torch.zeros(2, 3, dtype=torch.int64)))]


def test_of_what_was_written_to_nothing_is_known():
    def run(recorder):
        mask = torch.zeros(2, 3)
        recorder.holds_zeros([mask])
        mask.fill_(1)
        assert mask.all()

    record(run, Cpu())


def test_of_what_is_gone_nothing_is_known():
    known, tensor = Uniform(), torch.zeros(3)
    known.begin([tensor], 0.0)
    key = tensor.untyped_storage()._cdata
    assert known.value(tensor) == 0
    del tensor
    _, storage = known._values[key]
    assert storage() is None


def test_a_model_that_asks_whether_anything_is_padded_is_traced_with_its_mask():
    class Asks(nn.Module):
        def forward(self, mask):
            return None if mask.all() else torch.zeros(1000)

    def run(recorder):
        recorder.phase = Phase.STEP_1
        mask = torch.zeros(2, 3)
        recorder.holds_zeros([mask])
        return Asks()(mask)

    assert sum(event.num_bytes for event in record(run, Cpu())) >= 4000
