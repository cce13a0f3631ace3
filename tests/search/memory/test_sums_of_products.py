import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.memory.sums_of_products import fitted_sum, nonnegative_least_squares

SEEDS = st.integers(0, 10**6)


def language_model_bytes(batch, length, width):
    """AdamW in fp32: 16 bytes a parameter of four blocks, and activations kept for backward."""
    parameters = 4 * 12 * width**2 + 2 * 256 * width
    return 16 * parameters + 4 * batch * length * (4 * 17 * width + 3 * 256)


def naive_nonnegative_least_squares(matrix, target):
    """Least squares over every set of columns; the best without a negative factor."""
    best, least = np.zeros(matrix.shape[1]), np.linalg.norm(target)
    for columns in itertools.product([False, True], repeat=matrix.shape[1]):
        free = np.array(columns)
        found = np.zeros(matrix.shape[1])
        found[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        distance = np.linalg.norm(matrix @ found - target)
        if (found >= 0).all() and distance < least:
            best, least = found, distance
    return best


@given(num_rows=st.integers(1, 12), num_columns=st.integers(1, 5), seed=SEEDS)
def test_nonnegative_least_squares_is_the_best_of_all_sets_of_columns(num_rows, num_columns, seed):
    rng = np.random.default_rng(seed)
    matrix = np.vstack([rng.normal(size=(num_rows, num_columns)), 0.1 * np.eye(num_columns)])
    target = np.concatenate([rng.normal(size=num_rows), np.zeros(num_columns)])
    found = nonnegative_least_squares(matrix, target)
    assert (found >= 0).all()
    assert found == pytest.approx(naive_nonnegative_least_squares(matrix, target), abs=1e-8)


def test_two_runs_give_a_line():
    fitted = fitted_sum(np.array([[8.0], [16.0]]), np.array([18e6, 26e6]))
    # 10 MB and 1 MB a sample
    assert fitted.at(np.array([8.0])) == pytest.approx(18e6, rel=1e-3)
    assert fitted.at(np.array([64.0])) == pytest.approx(74e6, rel=0.05)


def test_three_runs_give_a_square():
    widths = np.array([[64.0], [128.0], [256.0]])
    fitted = fitted_sum(widths, 1e6 + 500 * widths[:, 0] ** 2)
    assert fitted.at(np.array([512.0])) == pytest.approx(1e6 + 500 * 512**2, rel=0.01)


def test_one_run_is_met_and_more_is_more():
    fitted = fitted_sum(np.array([[8.0, 128.0]]), np.array([1e9]))
    assert fitted.at(np.array([8.0, 128.0])) == pytest.approx(1e9, rel=1e-3)
    assert 1.1e9 < fitted.at(np.array([16.0, 128.0])) < 2e9


@pytest.mark.parametrize(("num_runs", "largest_error"), [(8, 0.2), (12, 0.05), (20, 0.02)])
def test_a_models_memory_is_learned_from_few_runs(num_runs, largest_error):
    points = np.array(
        list(itertools.product([1, 2, 4, 8, 16, 32, 64], [64, 128, 256, 512], [64, 128, 256])),
        dtype=np.float64,
    )
    truth = np.array([language_model_bytes(*point) for point in points])
    worst = []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(points))
        fitted = fitted_sum(points[order[:num_runs]], truth[order[:num_runs]])
        errors = [fitted.at(points[i]) / truth[i] - 1 for i in order[num_runs:]]
        worst.append(np.abs(errors).max())
    assert np.median(worst) < largest_error


@given(
    runs=st.lists(
        st.tuples(st.integers(0, 64), st.integers(0, 9), st.integers(1, 10**11)),
        min_size=1,
        max_size=12,
    ),
    point=st.tuples(st.integers(0, 100), st.integers(0, 20)),
    more=st.tuples(st.integers(0, 50), st.integers(0, 5)),
)
def test_never_falls(runs, point, more):
    table = np.array(runs, dtype=np.float64)
    fitted = fitted_sum(table[:, :2], table[:, 2])
    at = np.array(point, dtype=np.float64)
    assert 0 <= fitted.at(at) <= fitted.at(at + np.array(more))
