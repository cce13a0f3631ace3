import itertools
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from search.memory import programs, trace
from search.memory.machine import CpuMemory
from search.memory.prediction import Predictor, predict
from search.memory.sample import Sample
from search.training_params import micro_batch_size

MACHINE = CpuMemory(overhead_bytes=1000)
_BASE = {"learning_rate": 1e-3, "depth": 1, "width": 16}


def _space(batches=(8, 16, 32, 64), lengths=(32, 64, 128), **others):
    return [
        {**_BASE, "batch_size": batch, "sequence_length": length, **others}
        for batch, length in itertools.product(batches, lengths)
    ]


@pytest.fixture
def num_traces(monkeypatch):
    """The configurations that were really traced."""
    asked = []

    def counted(objective, params, **kwargs):
        asked.append(params)
        return trace.trace(objective, params, **kwargs)

    monkeypatch.setattr(programs, "trace", counted)
    return asked


def test_a_structure_takes_five_traces(tmp_path, num_traces):
    space = _space()
    predicts = Predictor(Sample(), MACHINE, tmp_path, space)
    predicted = [predicts(params) for params in space]
    assert len(num_traces) == 5
    for index in (4, 9):
        assert predicted[index] == predict(Sample(), space[index], MACHINE)
    assert predicts.point_by_point == ()


def test_is_found_again_by_another_process(tmp_path, num_traces):
    space = _space()
    first = Predictor(Sample(), MACHINE, tmp_path, space)
    first(space[0])
    first(space[1])
    second = Predictor(Sample(), MACHINE, tmp_path, space)
    assert [second(params) for params in space[:2]] == [first(params) for params in space[:2]]
    second(space[6])
    second(space[7])
    assert len(num_traces) == 5  # those of the first


def test_a_damaged_program_is_found_again(tmp_path, num_traces):
    space = _space()
    for _ in range(2):
        predicts = Predictor(Sample(), MACHINE, tmp_path, space)
        for params in space[:3]:
            predicts(params)
        for file in tmp_path.rglob("*.json"):
            file.write_text('{"box": 3}')
    assert len(num_traces) == 10


def test_few_points_are_traced_one_by_one(tmp_path, num_traces):
    space = _space(batches=(8, 16), lengths=(32, 64))
    predicts = Predictor(Sample(), MACHINE, tmp_path, space)
    for params in space:
        predicts(params)
    assert num_traces == space


def test_what_nobody_announced_is_traced(tmp_path, num_traces):
    predicts = Predictor(Sample(), MACHINE, tmp_path, _space())
    predicts({**_space()[0], "batch_size": 12})
    assert len(num_traces) == 1


def test_steps_of_one_two_and_more_micro_batches_are_apart(tmp_path, num_traces):
    space = _space(batches=(8, 16, 24, 32, 40, 48), lengths=(32, 64), micro_batch_size=8)
    predicts = Predictor(Sample(), MACHINE, tmp_path, space)
    for params in space[4:]:
        expected = predict(Sample(), params, MACHINE)
        assert predicts(params) == expected
    assert len(num_traces) <= 6


def test_a_micro_batch_size_to_be_found_is_announced(tmp_path, num_traces):
    space = _space(batches=(8, 16, 32, 64), lengths=(32, 64, 128), micro_batch_size="auto")
    predicts = Predictor(Sample(), MACHINE, tmp_path, space)
    asked = {**space[0], "batch_size": 64, "micro_batch_size": 4}
    for length in (32, 64, 128):
        params = {**asked, "sequence_length": length}
        assert predicts(params) == predict(Sample(), params, MACHINE)
    assert len(num_traces) == 6


class _Padded(Sample):
    """Fills every batch up to a multiple of 48 samples."""

    def batch(self, params, split) -> Mapping[str, Tensor]:  # noqa: ARG002 - as the contract has it
        samples = -(-micro_batch_size(params) // 48) * 48
        return {"values": torch.zeros(samples, params["sequence_length"], dtype=torch.int64)}


def test_what_has_no_program_is_traced_and_said(tmp_path, num_traces):
    space = _space()
    predicts = Predictor(_Padded(), MACHINE, tmp_path, space)
    predicted = [predicts(params) for params in space]
    assert predicts.point_by_point
    assert all("no polynomial" in reason for reason in predicts.point_by_point)
    direct = [predict(_Padded(), params, MACHINE) for params in space]
    assert predicted == direct
    asked = {(micro_batch_size(params), params["sequence_length"]) for params in space}
    assert asked <= {(micro_batch_size(params), params["sequence_length"]) for params in num_traces}


class _Sorts(Sample):
    """Takes another way where a batch has more than 64 values, as CUDA's kernels do."""

    def loss(self, model, batch):
        found = super().loss(model, batch)
        if batch["values"].numel() > 64:
            found = found + found.detach().sort().values * 0
        return found


def test_programs_hold_on_either_side_of_a_threshold(tmp_path, num_traces):
    space = [
        {**_BASE, "batch_size": size, "sequence_length": length}
        for size, length in itertools.product((2, 4, 6, 8, 16, 18, 20, 22), (6, 8))
    ]
    predicts = Predictor(_Sorts(), MACHINE, tmp_path, space)
    predicted = [predicts(params) for params in space]
    assert predicts.point_by_point == ()
    assert len(num_traces) < len(space)
    for index in range(0, len(space), 5):
        assert predicted[index] == predict(_Sorts(), space[index], MACHINE)
    again = Predictor(_Sorts(), MACHINE, tmp_path, space)
    num_before = len(num_traces)
    assert [again(params) for params in space] == predicted
    assert len(num_traces) == num_before


def test_work_comes_from_the_same_traces_and_is_kept(tmp_path, num_traces):
    space = _space()
    predicts = Predictor(Sample(), MACHINE, tmp_path, space)
    for params in space:
        predicts(params)
    works = [predicts.work(params) for params in space]
    assert len(num_traces) == 5
    assert works[4].counts() == trace.trace(Sample(), space[4]).work.counts()
    again = Predictor(Sample(), MACHINE, tmp_path, space)
    assert [again.work(params).counts() for params in space] == [each.counts() for each in works]
    assert len(num_traces) == 5


def test_a_box_that_no_program_fits_is_divided_by_length(tmp_path, num_traces):
    """Sizes that follow no polynomial in the length take three traces for each length."""

    class Uneven(Sample):
        def loss(self, model, batch) -> Tensor:
            num_samples, length = batch["values"].shape
            kept = torch.zeros(num_samples, 2**length % 1_009)
            return super().loss(model, batch) + kept.sum()

    space = _space(batches=(8, 16, 24, 32, 40, 48), lengths=(30, 40))
    predicts = Predictor(Uneven(), MACHINE, tmp_path, space)
    predicted = [predicts(params) for params in space]
    assert len(num_traces) < len(space)
    assert predicted[3] == predict(Uneven(), space[3], MACHINE)
    assert predicts.point_by_point == ()
