import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.memory.calibration import Calibration, _high_score, trials_needed, window_trials
from search.memory.residuals import SCALES, ErrorScale, Residual
from search.units import GIB, MIB

ONE = ErrorScale(constant_bytes=1, share=0.0)
"""An ordinary error is one byte: scores and bytes are the same."""
CENTRE = 10**9
RISKS = st.sampled_from([0.02, 0.05, 0.1, 0.25, 0.4])
ERRORS = st.integers(-1000, 1000)


def residual(error, *, censored=False) -> Residual:
    return Residual(predicted_bytes=CENTRE, measured_bytes=CENTRE + error, censored=censored)


def residuals(errors) -> list[Residual]:
    return [residual(int(error)) for error in errors]


def above(prior, seen, risk) -> int:
    """Bytes of `high` above the prediction, from errors or residuals."""
    rows = [each if isinstance(each, Residual) else residual(int(each)) for each in seen]
    return Calibration(residuals(prior), rows, risk, ONE).interval(CENTRE)[1] - CENTRE


# Numbers worked by hand


@pytest.mark.parametrize(
    ("risk", "needed", "window"), [(0.02, 49, 98), (0.1, 9, 18), (0.05, 19, 38), (0.3, 3, 5)]
)
def test_so_many_trials_are_needed_and_counted(risk, needed, window):
    assert (trials_needed(risk), window_trials(risk)) == (needed, window)


@given(risk=st.floats(0.001, 0.49))
def test_the_conformal_rank_exists_from_the_needed_and_is_the_largest_in_the_window(risk):
    def rank(count):
        return count + 1 - math.floor((count + 1) * risk + 1e-9)

    needed, window = trials_needed(risk), window_trials(risk)
    assert rank(needed) == needed
    assert rank(needed - 1) == needed
    assert rank(window) == window
    assert rank(window + 1) == window


def test_the_prior_alone_gives_its_conformal_quantile():
    # risk 0.1: of 99 errors that of rank ceil(100 x 0.9) = 90; below: the same of their negatives
    calibration = Calibration(residuals(range(1, 100)), [], 0.1, ONE)
    assert calibration.interval(CENTRE) == (CENTRE, CENTRE + 90)
    calibration = Calibration(residuals(range(-49, 50)), [], 0.1, ONE)
    assert calibration.interval(CENTRE) == (CENTRE - 40, CENTRE + 40)


def test_enough_trials_need_no_prior():
    assert above([500] * 200, range(9), 0.1) == 8
    assert above([500] * 200, range(8), 0.1) == 500
    assert above([], [5] * 49, 0.02) == 5


def test_with_nothing_known_cantelli_decides():
    # sqrt(0.98 / 0.02) = 7 ordinary errors: 7 x 64 MiB and 7 %
    calibration = Calibration([], [], 0.02)
    assert calibration.above.constant_bytes == pytest.approx(448 * MIB)
    assert calibration.above.share == pytest.approx(0.07)
    low, high = calibration.interval(10 * GIB)
    assert high - 10 * GIB == pytest.approx(448 * MIB + 0.7 * GIB, abs=1)
    assert 10 * GIB - low == high - 10 * GIB


def test_the_priors_share_is_as_worked_out():
    # 1 trial, risk 0.3: r = 1 - sqrt(1 - 0.6) = 0.3675; of 9 errors rank 10 - floor(3.675) = 7
    assert above(range(1, 10), [0], 0.3) == 7
    # without a trial rank 10 - 3 = 7 too; with 2: r = 1 - 0.1 ** (1 / 3) = 0.536, rank 5
    assert above(range(1, 10), [], 0.3) == 7
    assert above(range(1, 10), [0, 0], 0.3) == 5


def test_a_constant_and_a_growing_error_are_both_carried_to_other_sizes():
    scale = SCALES["cuda"]
    at_2_gib = Residual(predicted_bytes=2 * GIB, measured_bytes=2 * GIB + 60 * MIB)
    calibration = Calibration([], [at_2_gib] * 49, 0.02, scale)
    assert calibration.interval(2 * GIB)[1] == pytest.approx(2 * GIB + 60 * MIB, abs=1)
    # Taken as relative it would be 1,200 MiB at 40 GiB; as constant, 60.
    beyond = calibration.interval(40 * GIB)[1] - 40 * GIB
    assert beyond == pytest.approx(60 * MIB * scale.at(40 * GIB) / scale.at(2 * GIB), abs=1)
    assert 300 * MIB < beyond < 350 * MIB


def test_says_where_the_margin_comes_from():
    scale = ErrorScale(constant_bytes=64 * MIB, share=0.01)
    row = Residual(predicted_bytes=GIB, measured_bytes=GIB + round(2 * scale.at(GIB)))
    assert Calibration([row] * 60, [], 0.02, scale).explain() == (
        "high is 128 MiB + 2 % above the prediction (risk 0.02): from 0 trials on this device, "
        "of 49 needed, and 60 published errors"
    )
    assert "from 1 trial on this device, of 49 needed, and no prior" in (
        Calibration([], [row], 0.02, scale).explain()
    )
    assert Calibration([row], [row] * 200, 0.02, scale).explain() == (
        "high is 128 MiB + 2 % above the prediction (risk 0.02): "
        "from the latest 98 trials on this device alone"
    )


# What always holds


@given(
    prior=st.lists(ERRORS, max_size=80),
    seen=st.lists(ERRORS, max_size=60),
    expected=st.integers(0, 10**11),
    risk=RISKS,
)
def test_the_prediction_lies_in_its_interval(prior, seen, expected, risk):
    low, high = Calibration(residuals(prior), residuals(seen), risk).interval(expected)
    assert 0 <= low <= expected <= high


@given(prior=st.lists(ERRORS, max_size=80), seen=st.lists(ERRORS, max_size=60), risk=RISKS)
def test_the_errors_reversed_reverse_the_interval(prior, seen, risk):
    forth = Calibration(residuals(prior), residuals(seen), risk, ONE)
    back = Calibration(
        residuals([-each for each in prior]), residuals([-each for each in seen]), risk, ONE
    )
    assert (forth.above, forth.below) == (back.below, back.above)


@given(
    prior=st.lists(ERRORS, max_size=80),
    seen=st.lists(ERRORS, max_size=97),
    more=ERRORS,
    risk=RISKS,
)
def test_a_right_prediction_never_widens_and_a_wrong_one_always_does(prior, seen, more, risk):
    seen = seen[-window_trials(risk) + 1 :]
    before, after = above(prior, seen, risk), above(prior, [*seen, more], risk)
    if more > before:
        assert after >= more > before
    else:
        assert after <= before


@given(prior=st.lists(ERRORS, max_size=80), seen=st.lists(ERRORS, max_size=120), risk=RISKS)
def test_a_smaller_risk_is_never_a_smaller_margin(prior, seen, risk):
    assert above(prior, seen, risk / 2) >= above(prior, seen, risk)


@given(seen=st.lists(ERRORS, min_size=1, max_size=120), risk=RISKS)
def test_the_latest_trials_are_all_covered(seen, risk):
    assert above([], seen, risk) >= max(seen[-window_trials(risk) :])


@given(first=ERRORS, risk=RISKS)
def test_trials_are_forgotten_after_the_window(first, risk):
    full = [0] * window_trials(risk)
    assert above([], [first, *full], risk) == 0
    assert above([], [first, *full[1:]], risk) == max(0, first)


# Out of memory


def test_an_out_of_memory_counts_as_its_bound_and_the_margin_once_more():
    seen = [*residuals([3] * 9), residual(10, censored=True)]
    assert above([], seen, 0.1) == 13


def test_an_out_of_memory_elsewhere_counts_likewise():
    # rank 90 of 99; with the one whose bound lies beyond, at 95 + 90, rank 101 - 10 = 91 of 100
    published = [*residuals(range(1, 100)), residual(95, censored=True), residual(2, censored=True)]
    assert Calibration(published[:99], [], 0.1, ONE).above.constant_bytes == 90
    assert Calibration(published, [], 0.1, ONE).above.constant_bytes == 91
    assert Calibration([residual(95, censored=True)], [], 0.02, ONE).above.constant_bytes == 102


def test_an_out_of_memory_that_was_predicted_says_nothing():
    seen = residuals([3] * 9)
    for bound in (-100, 0, 3):
        assert above([], [*seen, residual(bound, censored=True)], 0.1) == 3
    calibration = Calibration([], [*seen, residual(3, censored=True)], 0.1, ONE)
    assert "latest 9 trials" in calibration.explain()


@given(
    prior=st.lists(ERRORS, max_size=80),
    seen=st.lists(st.builds(residual, ERRORS, censored=st.booleans()), max_size=60),
    bound=ERRORS,
    risk=RISKS,
)
def test_an_out_of_memory_never_narrows_and_is_covered(prior, seen, bound, risk):
    ran_out = residual(bound, censored=True)
    complete = [each for each in seen if not each.censored]
    before, after = above(prior, complete, risk), above(prior, [*complete, ran_out], risk)
    assert after >= before
    assert above(prior, [*seen, ran_out], risk) >= bound
    if bound > before:
        assert after > bound


@given(seen=st.lists(ERRORS, min_size=1, max_size=60), risk=RISKS, index=st.integers(0, 59))
def test_to_have_run_out_of_memory_is_worse_than_to_have_needed_just_that(seen, risk, index):
    place = index % len(seen)
    rows = residuals(seen)
    censored = [*rows[:place], replace(rows[place], censored=True), *rows[place + 1 :]]
    others = rows[:place] + rows[place + 1 :]
    if seen[place] > above([], others, risk):
        assert above([], censored, risk) >= above([], rows, risk)


# A naive twin


def naive(prior, seen, risk):
    """The high error in bytes: the definitions, over lists."""

    def conformal(errors, risk, otherwise):
        ranked = sorted(errors)
        for rank in range(1, len(ranked) + 1):
            if rank / (len(ranked) + 1) >= 1 - risk - 1e-12:
                return ranked[rank - 1]
        # The tail r for which max(the largest, the prior's quantile) is exceeded with the risk,
        # by bisection of the mean of min(r, u) where the largest of n leaves u above it.
        count, low, high = len(ranked), 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            exceeded = (1 - (1 - middle) ** (count + 1)) / (count + 1)
            low, high = (middle, high) if exceeded < risk else (low, middle)
        return max([*ranked, otherwise(low)])

    def published(risk):
        return conformal(prior, risk, lambda left: math.sqrt(1 / left - 1))

    latest = seen[-window_trials(risk) :]
    return max(0.0, conformal(latest, risk, published))


@given(
    prior=st.lists(ERRORS, max_size=80),
    seen=st.lists(ERRORS, max_size=120),
    risk=st.sampled_from([0.021, 0.052, 0.11, 0.23, 0.41]),
)
def test_is_the_naive_twin(prior, seen, risk):
    calibration = Calibration(residuals(prior), residuals(seen), risk, ONE)
    assert calibration.above.constant_bytes == pytest.approx(naive(prior, seen, risk), rel=1e-6)


# Coverage, by simulation

ERROR_LAWS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "skewed": lambda rng, size: rng.exponential(size=size) - 0.5,
    "heavy tail": lambda rng, size: rng.standard_t(3, size=size),
    # one run in twenty needs a block more
    "block": lambda rng, size: 0.2 * rng.normal(size=size) + 8 * (rng.random(size) < 0.05),
}
TIMES = 2000


def share_above(draw, num_prior, num_seen, risk, device_factor=1.0):
    """The share of runs that need more than `high`, each with new priors and trials."""
    rng = np.random.default_rng(0)
    above_high = 0
    for _ in range(TIMES):
        prior = draw(rng, num_prior).tolist()
        *seen, error = (device_factor * draw(rng, num_seen + 1)).tolist()
        above_high += error > _high_score(prior, seen, risk)
    return above_high / TIMES


def tolerance(risk):
    """Three standard deviations of a share."""
    return 3 * math.sqrt(risk * (1 - risk) / TIMES)


@pytest.mark.parametrize("law", ERROR_LAWS)
@pytest.mark.parametrize("num_seen", [0, 3, 8, 9, 18])
def test_no_more_runs_need_more_than_high_than_the_risk_says(law, num_seen):
    share = share_above(ERROR_LAWS[law], 60, num_seen, 0.1)
    assert share <= 0.1 + tolerance(0.1)


@pytest.mark.parametrize("law", ERROR_LAWS)
def test_nor_at_the_default_risk(law):
    assert share_above(ERROR_LAWS[law], 0, 49, 0.02) <= 0.02 + tolerance(0.02)


@pytest.mark.parametrize("num_seen", [1, 4, 9])
def test_on_a_device_worse_than_the_prior_at_most_one_in_n_plus_1(num_seen):
    share = share_above(ERROR_LAWS["normal"], 60, num_seen, 0.1, device_factor=20)
    assert share <= 1 / (num_seen + 1) + tolerance(1 / (num_seen + 1))


def test_a_device_better_than_the_prior_keeps_less():
    prior = range(-1000, 1000, 10)
    margins = [above(prior, [5] * count, 0.1) for count in range(10)]
    assert margins == sorted(margins, reverse=True)
    assert (margins[0], margins[-1]) == (800, 5)
    # after 5: r = 1 - 0.4 ** (1 / 6) = 0.1416, of 200 errors rank 201 - floor(28.5) = 173
    assert margins[5] == 720


def test_of_runs_let_through_and_stopped_at_the_budget_no_more_fail():
    """The errors change for the worse midway; what is stopped is known to its bound alone."""
    rng = np.random.default_rng(1)
    budget, risk, failed, admitted = CENTRE, 0.1, 0, 0
    seen: list[Residual] = []
    for number in range(2400):
        error = 1000 * (rng.exponential() - 0.5) * (1 if number < 1200 else 5)
        predicted = budget - int(rng.integers(0, 12_000))
        if Calibration([], seen[-60:], risk, ONE).above.constant_bytes > budget - predicted:
            continue
        admitted += 1
        needed = predicted + int(error)
        failed += needed > budget
        seen.append(
            Residual(
                predicted_bytes=predicted,
                measured_bytes=min(needed, budget),
                censored=needed > budget,
            )
        )
    assert admitted > 800
    assert failed / admitted <= risk
