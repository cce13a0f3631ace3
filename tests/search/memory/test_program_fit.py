from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from search.memory.program import Box, EventProgram, Point
from search.memory.program_fit import (
    NoProgram,
    fit_program,
    halves,
    length_dimension,
    num_sure_traces,
    regimes,
)
from search.memory.sample import Sample
from search.memory.trace import Event, Part, Phase, trace, trace_of
from search.training_params import micro_batch_size

_BOX = Box(micro_batch_sizes=range(2, 33), lengths=range(2, 129))


def _traced(*sizes, operator="aten.add"):
    """Blocks that appear one after another and stay."""
    return trace_of(
        [
            Event(
                phase=Phase.STEP_1,
                storage=number,
                num_bytes=num_bytes,
                operator=operator,
                part=Part.ACTIVATIONS,
            )
            for number, num_bytes in enumerate(sizes)
        ]
    )


class _Counted:
    def __init__(self, trace_at) -> None:
        self.points = []
        self._trace_at = trace_at

    def __call__(self, point):
        self.points.append(point)
        return self._trace_at(point)


class TestFit:
    def test_traces_corners_and_one_point_inside(self):
        trace_at = _Counted(lambda at: _traced(4 * at.micro_batch_size * at.length, 100))
        program = fit_program(trace_at, _BOX)
        assert program.peak_bytes(np.array([[20, 100, 0]])) == 4 * 2000 + 100
        assert len(trace_at.points) == num_sure_traces(_BOX) == 5
        corners = {(2, 2), (2, 128), (32, 2), (32, 128)}
        assert corners < {(b, s) for b, s, _ in trace_at.points}

    def test_needs_three_without_a_length(self):
        trace_at = _Counted(lambda at: _traced(64 * at.micro_batch_size, 100))
        program = fit_program(trace_at, Box(micro_batch_sizes=range(8, 65, 8)))
        assert isinstance(program, EventProgram)
        assert len(trace_at.points) == 3

    def test_takes_more_for_sizes_of_more_terms(self):
        trace_at = _Counted(lambda at: _traced(64 * at.micro_batch_size + 40))
        program = fit_program(trace_at, Box(micro_batch_sizes=range(8, 65, 8)))
        assert program.peak_bytes(np.array([[16, 1, 0]])) == 64 * 16 + 40
        assert len(trace_at.points) == 4

    def test_says_that_points_are_too_few(self):
        found = fit_program(lambda _: _traced(4), Box(micro_batch_sizes=range(8, 17, 8)))
        assert found == NoProgram(reason="2 points are too few to confirm anything")

    @pytest.mark.parametrize(
        "switched",
        [
            lambda at: at.length > 64,
            lambda at: at.micro_batch_size < 5,
            lambda at: at.micro_batch_size * at.length > 4000,
            lambda at: at.length > 50 * at.micro_batch_size,
            lambda at: at.micro_batch_size > 10 * at.length,
        ],
    )
    def test_finds_out_a_switch_that_grows_or_falls_with_each_size(self, switched):
        def trace_at(at):
            return _traced(4 * at.length, *([8] * switched(at)))

        assert "differs" in fit_program(trace_at, _BOX).reason

    def test_finds_out_another_operator_of_the_same_size(self):
        def trace_at(at):
            return _traced(4 * at.length, operator="aten.bmm" if at.length > 64 else "aten.mm")

        assert "aten.bmm" in fit_program(trace_at, _BOX).reason

    @pytest.mark.parametrize(
        "num_bytes",
        [
            lambda at: 4 * at.micro_batch_size * -(-at.length // 8) * 8,
            lambda at: min(4 * at.micro_batch_size * at.length, 4096),
            lambda at: 2 ** min(at.micro_batch_size, 60),
        ],
    )
    def test_finds_out_a_size_that_is_no_polynomial(self, num_bytes):
        found = fit_program(lambda at: _traced(100, num_bytes(at)), _BOX)
        assert "no polynomial" in found.reason

    def test_names_the_point_that_a_model_refuses(self):
        def trace_at(at):
            if at.length > 100:
                message = "at most 100 positions"
                raise ValueError(message)
            return _traced(4)

        assert "at most 100 positions" in fit_program(trace_at, _BOX).reason


class _Switching(nn.Module):
    """Takes another way for long inputs, as attention kernels do."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.longest = longest
        self.linear = nn.Linear(8, 8)

    def forward(self, x_BTC):
        if x_BTC.shape[1] > self.longest:
            x_BTC = x_BTC.exp()
        return self.linear(x_BTC)


class _SwitchingObjective(Sample):
    def model(self, params) -> nn.Module:
        return _Switching(params["longest"])

    def batch(self, params, split) -> Mapping[str, Tensor]:  # noqa: ARG002 - as the contract has it
        return {"x": torch.zeros(micro_batch_size(params), params["sequence_length"], 8)}

    def num_tokens(self, batch) -> int:
        return len(batch["x"])

    def loss(self, model, batch) -> Tensor:
        return functional.mse_loss(model(batch["x"]), batch["x"])


@pytest.mark.parametrize(("longest", "holds"), [(64, False), (2, False), (128, True)])
def test_a_model_that_switches_inside_the_box_has_no_program(longest, holds):
    def trace_at(at):
        sizes = {"batch_size": at.micro_batch_size, "sequence_length": at.length}
        return trace(_SwitchingObjective(), {"longest": longest, **sizes})

    found = fit_program(trace_at, _BOX)
    assert isinstance(found, EventProgram) is holds
    if holds:
        point = Point(7, 65)
        assert found.trace_at(point) == trace_at(point)
    else:
        assert "differs" in found.reason


class TestRegimes:
    def test_keep_sizes_of_one_apart(self):
        points = [Point(b, s) for b in (1, 8, 24) for s in (64, 256)]
        assert regimes(points) == (
            Box(micro_batch_sizes=range(1, 2), lengths=range(64, 257, 64)),
            Box(micro_batch_sizes=range(8, 25, 8), lengths=range(64, 257, 64)),
        )

    def test_hold_every_point_in_one_box(self):
        points = [Point(b, s, u) for b in (1, 2, 6) for s in (1, 48, 72) for u in (0, 1, 6)]
        boxes = regimes(points)
        assert all(sum(box.covers(np.array([at])) for box in boxes) == 1 for at in points)


class TestLengthDimension:
    def test_is_what_changes_the_batch(self):
        assert length_dimension(Sample(), {"batch_size": 4, "width": 32}) == "sequence_length"

    def test_may_be_missing(self):
        @dataclass(frozen=True)
        class Widths:
            width: int = 8
            checked: bool = True
            rate: float = 0.1

        class Flat(Sample):
            def batch(self, params, split):  # noqa: ARG002 - as the contract has it
                return {"x": torch.zeros(micro_batch_size(params), 8)}

        flat = Flat()
        flat.parameters = Widths
        assert length_dimension(flat, {"batch_size": 4}) is None

    def test_is_found_behind_dimensions_that_cannot_be_doubled(self):
        @dataclass(frozen=True)
        class Heads:
            heads: int = 3
            frames: int = 10

        class Picky(Sample):
            def batch(self, params, split):  # noqa: ARG002 - as the contract has it
                if params.get("heads", 3) > 4:
                    message = "too many heads"
                    raise ValueError(message)
                return {"x": torch.zeros(micro_batch_size(params), params.get("frames", 10))}

        picky = Picky()
        picky.parameters = Heads
        assert length_dimension(picky, {"batch_size": 4}) == "frames"

    def test_needs_no_resolved_micro_batch(self):
        params = {"batch_size": 4, "micro_batch_size": "auto"}
        assert length_dimension(Sample(), params) == "sequence_length"


class TestHalves:
    def test_lengths_come_before_batches(self):
        points = [Point(size, length) for size in (2, 4, 8) for length in (16, 32, 64)]
        small, large = halves(points)
        assert (small.low, small.high) == (Point(2, 16), Point(8, 16))
        assert (large.low, large.high) == (Point(2, 32), Point(8, 64))

    def test_batches_of_one_length_are_divided(self):
        small, large = halves([Point(size, 16) for size in (2, 4, 8)])
        assert (small.high, large.low) == (Point(2, 16), Point(4, 16))

    def test_one_point_is_not(self):
        assert halves([Point(2, 16)]) == ()


def test_one_length_costs_three_traces():
    assert num_sure_traces(Box(micro_batch_sizes=range(2, 33), lengths=range(16, 17))) == 3
