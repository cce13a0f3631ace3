import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.memory.program import Box, EventProgram, Point
from search.memory.program_fit import fit_program
from search.memory.trace import Event, Part, Phase, trace_of
from search.memory.work import Arithmetic, OperatorWork, Work
from search.memory.work_program import WorkProgram, fit_work

BOX = Box(micro_batch_sizes=range(2, 33), lengths=range(2, 129))
AXES = (31, 127, 1)
POINTS = ((2, 2, 0), (32, 128, 0), (32, 2, 0), (2, 128, 0), (15, 77, 0))


def layer(point, *, kind=Arithmetic.BF16) -> Work:
    """A product of 8 by 4 weights, and scores between all positions."""
    b, s, waiting = point
    product = OperatorWork(kind, 2 * b * s * 32, 2 * (b * s * 8 + 32 + b * s * 4))
    scores = OperatorWork(Arithmetic.NONE, 0, 4 * b * s * s + 4 * b * s)
    return Work(
        operators=(product, scores, product),
        repeated_from=1,
        repeated_to=3,
        num_waiting=waiting,
    )


def program() -> WorkProgram:
    found = fit_work(POINTS, [layer(point) for point in POINTS], axes=AXES)
    assert found is not None
    return found


@given(st.tuples(st.integers(2, 32), st.integers(2, 128), st.integers(0, 9)))
def test_equals_the_work_of_every_point(point):
    assert program().at(point) == layer(point)


def test_equal_operators_share_their_polynomials():
    # FLOPs and bytes of a product, no FLOPs and bytes of scores
    assert len(program().polynomials) == 4


def test_is_read_back():
    record = json.loads(json.dumps(program().to_json()))
    assert WorkProgram.from_json(record) == program()


@pytest.mark.parametrize(
    "differs",
    [
        lambda point: layer(point, kind=Arithmetic.FP32 if point[0] > 20 else Arithmetic.BF16),
        lambda point: Work(operators=layer(point).operators * (1 + (point[1] > 100))),
        # a length that is padded to a multiple of 48
        lambda point: layer((point[0], -(-point[1] // 48) * 48, 0)),
    ],
)
def test_what_is_no_polynomial_has_no_program(differs):
    assert fit_work(POINTS, [differs(point) for point in POINTS], axes=AXES) is None


@pytest.mark.parametrize(("padded", "num_traces"), [(1, 5), (48, 7)])
def test_memory_keeps_its_program_where_the_work_has_none(padded, num_traces):
    asked = []

    def trace_at(point):
        asked.append(point)
        event = Event(
            phase=Phase.STEP_2,
            storage=0,
            num_bytes=4 * point.micro_batch_size * point.length,
            operator="aten.mm",
            part=Part.ACTIVATIONS,
        )
        length = -(-point.length // padded) * padded
        traced = trace_of([event])
        return replace(traced, work=layer((point.micro_batch_size, length, 0)))

    found = fit_program(trace_at, BOX)
    assert isinstance(found, EventProgram)
    assert (found.work is None) == (padded > 1)
    assert len(asked) == num_traces
    at = found.trace_at(Point(7, 9))
    assert at.peak_bytes == 4 * 63
    assert at.work == (layer((7, 9, 0)) if padded == 1 else None)
