import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.memory.feasibility import judge
from search.memory.machine import CpuMemory
from search.memory.prediction import Predictor
from search.memory.sample import Sample
from search.plan_screens import plan_summary
from search.results import PredictedMemory
from search.sweep.space import Choices, FloatRange, IntRange, Space
from search.training_params import micro_batch_size
from search.wide_plan import MAX_BORDERS, last_that_holds, plan_wide
from search.wide_space import WideSpace

_BATCHES, _LENGTHS = IntRange(low=1, high=24), IntRange(low=8, high=400, step=8)
_SIZES = {"batch_size": _BATCHES, "sequence_length": _LENGTHS}


def _wide(dimensions, **fixed):
    base = {"batch_size": 1, "micro_batch_size": "equal", "sequence_length": 8, "width": 1, **fixed}
    return WideSpace(
        space=Space(dimensions), params_of=lambda point: {**base, **point}, length="sequence_length"
    )


def _predict(params):
    """A byte a value of a micro-batch, a hundredth of that for each waiting one, and some holes."""
    samples = micro_batch_size(params)
    values = samples * params["sequence_length"] * params["width"]
    waiting = params["batch_size"] * params["sequence_length"] // 100
    needed = 100 * values + waiting + _holes(params)
    return PredictedMemory(
        expected_bytes=needed, low_bytes=needed, high_bytes=needed, phase="step_2", parts={}
    )


def _holes(params):
    """What the order does not know of: it hangs on the length, at most 800 bytes."""
    return 100 * (params["sequence_length"] * 7 % 9)


def _peak_bytes(params, numbers):
    batch, micro_batch, length = numbers.T
    return 100 * micro_batch * length * params["width"] + batch * length // 100


def _planned(wide, budget_bytes, peak_bytes=_peak_bytes):
    return plan_wide(
        wide,
        fits=lambda params: judge(params, _predict, budget_bytes),
        peak_bytes=peak_bytes,
        budget_bytes=budget_bytes,
        on_point=lambda _done, _all: None,
        mend=lambda _: None,
        speed=lambda _: None,
    )


def _fits(wide, point, budget_bytes):
    params = wide.params_of(point)
    try:
        verdict = judge(params, _predict, budget_bytes)
    except ValueError:  # sizes that do not go together
        return None
    return verdict.predicted.high_bytes <= budget_bytes


@pytest.mark.parametrize("budget_bytes", [1, 100_000, 300_000, 10_000_000_000])
@pytest.mark.parametrize(
    "dimensions",
    [
        _SIZES,
        {**_SIZES, "width": Choices((1, 2, 3))},
        {"batch_size": _BATCHES, "micro_batch_size": Choices((1, 3, "equal", "auto"))} | _SIZES,
    ],
)
def test_counts_bracket_what_judging_each_finds(dimensions, budget_bytes):
    wide = _wide(dimensions)
    found = _planned(wide, budget_bytes)
    each = [_fits(wide, point, budget_bytes) for point in wide.space.points()]
    counts = found.counts
    assert counts.num_points == len(each) - each.count(None)
    assert counts.num_fitting <= each.count(True)
    assert each.count(True) <= counts.num_fitting + counts.num_undecided
    assert counts.num_undecided <= 0.03 * counts.num_points
    assert found.complete


def test_what_is_shown_is_the_largest_that_fits_and_the_next():
    wide = _wide({"batch_size": IntRange(low=1, high=1000)}, sequence_length=80)
    budget_bytes = 100 * 80 * 617
    found = _planned(wide, budget_bytes)
    # 616 samples take 616 x 8,000 bytes, 616 x 80 / 100 waiting and 200 of holes
    assert [(row.point["batch_size"], row.fits) for row in found.points] == [
        (616, True),
        (617, False),
    ]
    assert (found.counts.num_fitting, found.share_that_fits) == (616, 0.616)
    assert found.to_json()["counts"] == {
        "num_points": 1000,
        "num_fitting": 616,
        "num_undecided": 0,
    }
    assert plan_summary(found).startswith("616 of 1,000 structures fit into ")


def test_few_judgements_decide_many_structures():
    asked = []
    wide = _wide({**_SIZES, "width": Choices((1, 2))})
    found = _planned(wide, 1_000_000, lambda *given: asked.append(given) or _peak_bytes(*given))
    assert len(asked) == 2
    assert len(found.points) <= 2 * MAX_BORDERS


def test_where_no_order_is_known_sizes_give_it():
    wide = _wide({"batch_size": IntRange(low=1, high=1000)}, sequence_length=80)
    found = _planned(wide, 100 * 80 * 617, lambda _, numbers: np.full(len(numbers), -1))
    assert (found.counts.num_fitting, found.counts.num_undecided) == (616, 0)


def test_what_cannot_be_judged_stays_undecided():
    wide = _wide({"batch_size": IntRange(low=1, high=600)}, sequence_length=0)

    def fits(_params):
        raise ValueError

    found = plan_wide(
        wide,
        fits=fits,
        peak_bytes=_peak_bytes,
        budget_bytes=1,
        on_point=lambda _done, _all: None,
        mend=lambda _: None,
        speed=lambda _: None,
    )
    assert found.counts.num_undecided == 600
    assert len(found.unpredicted) == 1


def test_a_space_is_wide_where_it_has_many_sizes_and_few_models():
    assert _wide(_SIZES).is_wide
    assert not _wide({"batch_size": _BATCHES}).is_wide  # 24 are judged one by one
    assert not _wide({**_SIZES, "width": IntRange(low=1, high=5000)}).is_wide
    assert not _wide({**_SIZES, "depth": FloatRange(low=0, high=1)}).is_wide
    huge = IntRange(low=1, high=10_000)
    assert not _wide({"batch_size": huge, "sequence_length": huge}).is_wide


def test_each_process_of_a_trial_has_its_share_of_the_batch():
    # of 1 to 12 samples, the even ones go over two processes; 3 must divide what each has
    sizes = {"batch_size": IntRange(low=1, high=12), "micro_batch_size": Choices((3, "equal"))}
    rows = _wide(sizes, world_size=2).grid({}).numbers.tolist()
    plain = [[samples, samples, 8] for samples in range(1, 7)]
    assert sorted(rows) == sorted([*plain, [3, 3, 8], [6, 3, 8]])


def test_programs_are_made_for_the_ends_of_each_size():
    spread = list(_wide({**_SIZES, "width": Choices((1, 2))}).spread())
    assert len(spread) == 2 * 6 * 6
    for name, ends in {"batch_size": {1, 2, 24}, "sequence_length": {8, 16, 400}}.items():
        assert ends <= {point[name] for point in spread}


@given(st.integers(1, 60), st.data())
def test_the_border_is_found_from_any_guess(count, data):
    border = data.draw(st.integers(-1, count - 1))
    guess = data.draw(st.integers(-5, count + 5))
    asked = []

    def holds(place):
        asked.append(place)
        return place <= border

    assert last_that_holds(holds, count, guess=guess) == border
    assert len(set(asked)) == len(asked) <= 2 * np.log2(count) + 3


def test_peaks_of_many_sizes_are_those_of_their_traces(tmp_path):
    base = {"learning_rate": 1e-3, "depth": 1, "width": 16, "micro_batch_size": 4}
    space = Space(
        {
            "batch_size": IntRange(low=4, high=64, step=4),
            "sequence_length": IntRange(low=8, high=128, step=8),
        }
    )
    wide = WideSpace(
        space=space, params_of=lambda point: {**base, **point}, length="sequence_length"
    )
    predicts = Predictor(
        Sample(), CpuMemory(overhead_bytes=0), tmp_path, map(wide.params_of, wide.spread())
    )
    grid = wide.grid({})
    found = predicts.peak_bytes(grid.params, grid.numbers)
    known = np.flatnonzero(found >= 0)
    assert len(known) > 0.9 * len(found)
    for row in np.random.default_rng(0).choice(known, 3):
        names = ("batch_size", "micro_batch_size", "sequence_length")
        point = dict(zip(names, grid.values(row), strict=True))
        assert predicts(wide.params_of(point)).allocated_bytes == found[row]


def test_sizes_that_do_not_go_together_have_no_peak(tmp_path):
    predicts = Predictor(Sample(), CpuMemory(overhead_bytes=0), tmp_path)
    params = {"learning_rate": 1e-3, "batch_size": 8}
    assert predicts.peak_bytes(params, np.array([[8, 3, 32]])).tolist() == [-1]
