import functools
import json
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from objectives.language_model import LanguageModel
from search.memory.cuda import Cuda
from search.memory.program import Box, EventProgram, Point
from search.memory.program_fit import fit_program
from search.memory.sample import Sample
from search.memory.trace import Phase, trace
from search.training_params import micro_batch_size


class Regression(Sample):
    """A small net without a length, with a square of similarities between samples."""

    def model(self, params) -> nn.Module:  # noqa: ARG002 - as the contract has it
        return nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4))

    def batch(self, params, split) -> Mapping[str, Tensor]:  # noqa: ARG002 - the same
        return {"inputs": torch.zeros(micro_batch_size(params), 8)}

    def num_tokens(self, batch) -> int:
        return len(batch["inputs"])

    def loss(self, model, batch) -> Tensor:
        embedded_BC = model(batch["inputs"])
        targets_B = torch.arange(len(embedded_BC), device=embedded_BC.device)
        return functional.cross_entropy(embedded_BC @ embedded_BC.T, targets_B)


class Images(Regression):
    """Squares whose side is the length, through one convolution."""

    def model(self, params) -> nn.Module:  # noqa: ARG002 - as the contract has it
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
        )

    def batch(self, params, split) -> Mapping[str, Tensor]:  # noqa: ARG002 - the same
        side = params["sequence_length"]
        return {"inputs": torch.zeros(micro_batch_size(params), 3, side, side)}

    def loss(self, model, batch) -> Tensor:
        return model(batch["inputs"]).square().mean()


_BOX = Box(micro_batch_sizes=range(2, 65), lengths=range(2, 1025))
_WAITING = Box(micro_batch_sizes=range(2, 65), lengths=range(2, 1025), num_waiting=range(1, 31))
_SMALL = {"width": 16, "depth": 1, "heads": 2}
_CASES = {
    "plain": (_BOX, 1, _SMALL),
    "mixed": (_BOX, 1, {**_SMALL, "precision": "bf16-mixed", "optimizer": "sgd"}),
    "checkpointed": (
        _BOX,
        1,
        {**_SMALL, "depth": 2, "activation_checkpointing": True, "dropout": 0.1},
    ),
    "two micro-batches": (_BOX, 2, {**_SMALL, "precision": "16-mixed"}),
    "many micro-batches": (_WAITING, 3, {**_SMALL, "precision": "bf16-true", "dropout": 0.1}),
    "no length": (Box(micro_batch_sizes=range(8, 4097, 8)), 1, {}),
    "on a GPU": (_BOX, 1, {**_SMALL, "precision": "bf16-mixed", "dropout": 0.1}),
}
_CASES["convolutions on a GPU"] = (
    Box(micro_batch_sizes=range(2, 65), lengths=range(8, 129, 8)),
    1,
    {"precision": "16-mixed"},
)
_ON_GPUS = {"on a GPU", "convolutions on a GPU"}
_GROWING = sorted(_CASES.keys() - _ON_GPUS)
"""Where more never needs less; kernels of a GPU share work in other ways from some sizes on."""


@functools.cache
def _objective(case):
    if case == "no length":
        return Regression()
    if case == "convolutions on a GPU":
        return Images()
    return LanguageModel(held_out_tokens=2_000, evaluation_context=64)


def _direct(case, point):
    _, num_micro_batches, params = _CASES[case]
    return trace(
        _objective(case),
        {
            **params,
            "micro_batch_size": point.micro_batch_size,
            "batch_size": point.micro_batch_size
            * (num_micro_batches + max(0, point.num_waiting - 1)),
            "sequence_length": point.length,
        },
        target=Cuda(architecture=(8, 0)) if case in _ON_GPUS else None,
    )


@functools.cache
def _program(case) -> EventProgram:
    program = fit_program(functools.partial(_direct, case), _CASES[case][0])
    assert isinstance(program, EventProgram), program.reason
    return program


def _points(box: Box):
    return st.builds(Point, *(st.sampled_from(axis) for axis in box.axes))


def _some(box: Box, count=50):
    generator = np.random.default_rng(0)
    return np.stack([generator.choice(np.array(axis), count) for axis in box.axes], axis=1)


@pytest.mark.parametrize("case", _CASES)
class TestEquals:
    def test_the_direct_trace_of_any_point(self, case):
        @settings(max_examples=2)
        @given(point=_points(_CASES[case][0]))
        def equal(point):
            direct, program = _direct(case, point), _program(case)
            assert program.trace_at(point) == direct
            assert program.peak_bytes(np.array([point])) == direct.peak_bytes
            by_phase = program.peak_bytes_by_phase(np.array([point]))
            assert {phase: int(by_phase[phase][0]) for phase in Phase} == direct.peak_bytes_by_phase

        equal()

    def test_itself_point_by_point(self, case):
        program, points = _program(case), _some(_CASES[case][0])
        traces = [program.trace_at(Point(*row)) for row in points.tolist()]
        assert program.peak_bytes(points).tolist() == [traced.peak_bytes for traced in traces]
        by_phase = program.peak_bytes_by_phase(points)
        for phase in Phase:
            expected = [traced.peak_bytes_by_phase[phase] for traced in traces]
            assert by_phase[phase].tolist() == expected
        rounded = program.rounded_peak_bytes(points, unit_bytes=512)
        assert rounded.tolist() == [_rounded_peak(traced.events) for traced in traces]

    def test_itself_read_back(self, case):
        program = _program(case)
        assert EventProgram.from_json(json.loads(json.dumps(program.to_json()))) == program


@pytest.mark.parametrize("case", _GROWING)
def test_nothing_smaller_for_a_larger_point(case):
    box, program = _CASES[case][0], _program(case)
    points = _some(box)
    for column, axis in enumerate(box.axes):
        larger = points.copy()
        larger[:, column] = np.minimum(points[:, column] + axis.step, axis[-1])
        assert (program.peak_bytes(larger) >= program.peak_bytes(points)).all()


class TestRuled:
    def test_thresholds_lie_inside_the_box(self):
        # An embedding sorts from 3,073 indices on, and the sums of a bias are shared by blocks of
        # threads where rows are many: below, such blocks are empty, above, they are not.
        program = _program("on a GPU")
        small, large = (program.trace_at(Point(size, 512)) for size in (2, 64))
        assert len(small.all_events) == len(large.all_events) == len(program.steps)
        assert len(small.events) < len(large.events)

    def test_what_cudnn_keeps_to_itself_grows_with_the_batch(self):
        program = _program("convolutions on a GPU")
        small, large = (program.trace_at(Point(size, 64)).unsure for size in (2, 64))
        assert 0 < 16 * small.above_bytes < large.above_bytes

    def test_a_rule_that_is_none_of_today_is_not_read(self):
        record = _program("on a GPU").to_json()
        renamed = [["of_yesterday", numbers] for _, numbers in record["ruled"]]
        with pytest.raises(ValueError, match="rule"):
            EventProgram.from_json({**record, "ruled": renamed})


def _rounded_peak(events):
    """The most bytes alive when each block takes whole units of 512 B, counted block by block."""
    alive_bytes = peak_bytes = 0
    for event in events:
        block_bytes = -(-abs(event.num_bytes) // 512) * 512
        alive_bytes += block_bytes if event.num_bytes > 0 else -block_bytes
        peak_bytes = max(peak_bytes, alive_bytes)
    return peak_bytes


class TestGolden:
    def test_similarities_grow_with_the_square_of_the_batch(self):
        # 1,000,000 similarities of 4 B each; with their gradients, their log-probabilities and
        # the like at most a few times that, and all else together is smaller than one of them.
        alive = _program("no length").trace_at(Point(1000)).alive_at_peak
        assert max(alive) == 4_000_000
        assert 2 <= alive.count(4_000_000) <= 4


class TestBox:
    @pytest.mark.parametrize(
        "outside", [(1, 64, 0), (65, 64, 0), (8, 1, 0), (8, 1025, 0), (8, 64, 1)]
    )
    def test_a_point_outside_is_refused(self, outside):
        points = np.array([[8, 64, 0], outside])
        with pytest.raises(ValueError, match="outside"):
            _program("plain").peak_bytes(points)
        with pytest.raises(ValueError, match="outside"):
            _program("plain").rounded_peak_bytes(points, unit_bytes=512)
        with pytest.raises(ValueError, match="outside"):
            _program("plain").trace_at(Point(*outside))

    def test_a_point_between_the_steps_is_refused(self):
        with pytest.raises(ValueError, match="outside"):
            _program("no length").peak_bytes(np.array([[12, 1, 0]]))

    def test_no_points_have_no_peaks(self):
        assert _program("plain").peak_bytes(np.zeros((0, 3), dtype=np.int64)).shape == (0,)


def test_sums_beyond_what_floats_hold_are_exact():
    program = _program("plain")
    huge = EventProgram(
        box=program.box,
        sizes=tuple(
            tuple(10**9 * factor + (factor > 0) for factor in size) for size in program.sizes
        ),
        steps=program.steps,
    )
    points = _some(program.box, 5)
    expected = [huge.trace_at(Point(*row)).peak_bytes for row in points.tolist()]
    assert max(expected) > 2**53
    assert huge.peak_bytes(points).tolist() == expected


def test_a_program_of_other_terms_is_not_read():
    record = _program("plain").to_json()
    with pytest.raises(ValueError, match="terms"):
        EventProgram.from_json({**record, "exponents": record["exponents"][:-1]})
