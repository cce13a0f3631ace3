"""The figures of a group against a worked example, and the margin from the other groups."""

import pytest

from benchmarks.accuracy_figures import figures_by_group, in_scale
from benchmarks.accuracy_rows import Judged
from search.memory.residuals import SCALES, Residual
from search.units import GIB, MIB

MEASURED = 10 * GIB


def row(percent, *, group="mine", **more):
    expected = round(MEASURED * (1 + percent / 100))
    sizes = {"expected_bytes": expected, "low_bytes": expected, "high_bytes": expected}
    return Judged(**{"group": group, "name": "x", "measured_bytes": MEASURED, **sizes, **more})


def test_a_worked_example():
    # Without signs 0, 0.5, 1, 3, 5: the middle is 1, all but a twentieth are within 5. One of five
    # lies more than 2 % under; a run out of memory has no error.
    judged = [row(0), row(-0.5), row(1), row(-3), row(5, fits=False)]
    judged += [row(20, ran_out=True, fits=False), row(-20, ran_out=True, fits=True)]
    assert figures_by_group(judged)["mine"].as_json() == {
        "rows": 7,
        "median_error_percent": 1,
        "p95_error_percent": 5,
        "max_error_percent": 5,
        "under_by_2_percent_share": 0.2,
        "called_fitting_but_oom": 1,
        "called_oom_but_fitting": 1,
    }


def test_of_twenty_rows_one_may_be_beyond_the_95th_percentile():
    judged = [row(number) for number in range(1, 21)]
    assert figures_by_group(judged)["mine"].p95_error_percent == pytest.approx(19)


def test_a_group_in_which_every_run_ran_out_has_no_figures():
    assert figures_by_group([row(0, ran_out=True, fits=False)]) == {}


def test_the_margin_is_that_of_the_other_groups():
    # 60 errors elsewhere of 3 % at most: 2 % more than predicted is within their margin, 5 % is
    # not. The group's own errors have no say.
    elsewhere = [row(-3 * number / 60, group="other") for number in range(60)]
    judged = [*elsewhere, row(-2), row(-5)]
    assert figures_by_group(judged)["mine"].failures == 1
    assert figures_by_group([*judged, *[row(-5)] * 3])["mine"].failures == 4


def test_what_the_mechanism_leaves_open_comes_on_top():
    elsewhere = [row(0, group="other") for _ in range(60)]
    assert figures_by_group([*elsewhere, row(-5)])["mine"].failures == 1
    open_ended = row(-5, high_bytes=MEASURED)
    assert figures_by_group([*elsewhere, open_ended])["mine"].failures == 0


def test_a_run_out_of_memory_fails_where_high_would_have_fitted():
    elsewhere = [row(0, group="other") for _ in range(60)]
    ran_out = [row(-5, ran_out=True, fits=True), row(5, ran_out=True, fits=False)]
    assert figures_by_group([*elsewhere, row(0), *ran_out])["mine"].failures == 1


def test_an_error_is_as_large_in_ordinary_errors_of_another_kind():
    found = row(-4, kind="cpu")
    residual = Residual(predicted_bytes=found.expected_bytes, measured_bytes=found.measured_bytes)
    assert in_scale(found, "cpu") == residual
    elsewhere = in_scale(found, "cuda")
    assert SCALES["cuda"].score(elsewhere) == pytest.approx(SCALES["cpu"].score(residual))
    assert elsewhere.error_bytes > residual.error_bytes > 300 * MIB
