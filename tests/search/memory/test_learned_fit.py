import pytest

from search.memory.feasibility import DoesNotFit, Fits, Unjudged
from search.memory.learned_fit import NOT_PREDICTED, LearnedFit
from search.results import Outcome, Trial
from search.units import MIB

BUDGET_BYTES = 512 * MIB


def at(batch_size, width=1, **others):
    return {"batch_size": batch_size, "width": width, "seed": 0, **others}


def true_mib(params):
    return 20 + 2 * params["batch_size"] * params["width"]


def trial(params, outcome=Outcome.COMPLETED, mib=None):
    mib = true_mib(params) if mib is None else mib
    return Trial(number=0, params=params, outcome=outcome, metrics={"peak_memory": mib * MIB})


def learned(*trials, dimensions=("batch_size", "width"), **changes):
    fit = LearnedFit(
        dimensions, **{"budget_bytes": BUDGET_BYTES, "risk": 0.02, "kind": "cpu", **changes}
    )
    for each in trials:
        fit.learn(each)
    return fit


def out_of_memory(params):
    return trial(params, Outcome.OUT_OF_MEMORY)


FIVE = [at(1, 1), at(8, 1), at(2, 8), at(8, 8), at(16, 8)]


def test_of_what_was_never_seen_nothing_is_said():
    assert learned()(at(4)) == Unjudged(params=at(4))
    assert learned(trial(at(1)))(at(4)) == Unjudged(params=at(4))
    assert isinstance(learned(*map(trial, FIVE))(at(4, precision="bf16")), Unjudged)


def test_what_ran_out_rules_out_all_that_is_nowhere_smaller():
    fit = learned(trial(at(2, 2)), out_of_memory(at(64, 8)))
    for params in (at(64, 8), at(65, 8), at(64, 9), at(100, 100)):
        verdict = fit(params)
        assert isinstance(verdict, DoesNotFit)
        assert verdict.excess_bytes > 0
        assert verdict.budget_bytes == BUDGET_BYTES
        assert verdict.reason == (
            f"{NOT_PREDICTED}: batch_size 64, width 8 ran out of 512 MiB, this is no smaller; "
            "memory.gate: false tries it all the same"
        )
    assert isinstance(fit(at(63, 100)), Unjudged)
    assert isinstance(fit(at(100, 7)), Unjudged)
    assert isinstance(fit(at(64, 8, precision="bf16")), Unjudged)


def test_what_took_more_than_there_is_rules_out_as_well():
    verdict = learned(trial(at(4, 4), mib=600))(at(4, 5))
    assert isinstance(verdict, DoesNotFit)
    assert "a trial nowhere larger took 600 MiB of 512 MiB" in verdict.reason
    assert isinstance(learned(trial(at(4, 4), mib=600))(at(3, 3)), Unjudged)


def test_what_a_larger_trial_fitted_in_fits():
    verdict = learned(trial(at(2, 2)), trial(at(8, 8)))(at(4, 4))
    assert isinstance(verdict, Fits)
    assert verdict.predicted.phase == NOT_PREDICTED
    assert verdict.predicted.low_bytes == true_mib(at(2, 2)) * MIB
    assert verdict.predicted.high_bytes == true_mib(at(8, 8)) * MIB


def test_what_is_expected_to_need_too_much_is_refused_once_the_dimensions_are_told_apart():
    # 20 + 2 x 32 x 8 MiB = 532 MiB
    assert isinstance(learned(*map(trial, FIVE[:3]))(at(32, 8)), Unjudged)
    verdict = learned(*map(trial, FIVE))(at(32, 8))
    assert isinstance(verdict, DoesNotFit)
    assert verdict.predicted.expected_bytes == pytest.approx(532 * MIB, rel=0.05)
    assert verdict.reason.startswith(f"{NOT_PREDICTED}: expected to need ")
    fits = learned(*map(trial, FIVE))(at(20, 8))
    assert isinstance(fits, Fits)
    assert fits.predicted.expected_bytes == pytest.approx(340 * MIB, rel=0.05)
    assert fits.predicted.expected_bytes < fits.predicted.high_bytes <= BUDGET_BYTES


def test_a_wrong_guess_widens_the_interval():
    before = learned(*map(trial, FIVE))(at(18, 8)).predicted
    after = learned(*map(trial, FIVE), trial(at(17, 8), mib=420))(at(18, 8)).predicted
    spread = [each.high_bytes - each.expected_bytes for each in (before, after)]
    assert spread[1] > spread[0]


@pytest.mark.parametrize(
    "outcome", [Outcome.FAILED, Outcome.DIVERGED, Outcome.TIMED_OUT, Outcome.STOPPED_EARLY]
)
def test_what_ended_before_its_time_says_nothing(outcome):
    assert learned(trial(at(4), outcome)).observations == ()


def test_without_dimensions_nothing_is_learned_and_nothing_refused():
    fit = learned(out_of_memory(at(4)), dimensions=())
    assert fit(at(4)) == Unjudged(params=at(4))
    assert fit.order([at(3), at(1)]) == (0, 1)


def test_the_seed_decides_nothing():
    assert isinstance(learned(out_of_memory(at(4)))({**at(4), "seed": 1}), DoesNotFit)


def test_the_order_is_from_small_to_large():
    assert learned().order([at(8, 8), at(1, 1), at(4, 4)]) == (1, 2, 0)
