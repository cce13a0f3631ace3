import pytest
from optuna.trial import TrialState
from tiny_sweep import BUDGET_BYTES, fits_up_to, predicted, tiny_sweep, trial

from search.errors import SweepStoppedError, UnpredictableError
from search.memory.feasibility import Unjudged, judge
from search.results import Outcome
from search.trials import domains
from search.trials.gate import DIVERGENCE, MEMORY, Gate, tell_of
from search.trials.ledger import LedgerState
from search.units import MIB

EMPTY = LedgerState(launched={})
WIDE = {"width": {"low": 1, "high": 100}, "learning_rate": {"low": 1e-4, "high": 1e-1, "log": True}}


def gate_of(sweep, *, fits=None, history=EMPTY, refusals=None, order=None):
    return Gate(
        sweep=sweep,
        fits=fits or fits_up_to(10**9),
        params_of=lambda point: {**sweep.fixed, **point},
        budget_bytes=BUDGET_BYTES,
        history=history,
        on_refused=(refusals if refusals is not None else []).append,
        order=order,
    )


def finish(gate, started, outcome=Outcome.COMPLETED, **metrics):
    values = {"bits_per_byte": 1.0 / started.number**2 if started.number else 2.0, **metrics}
    values |= {"tokens_per_second": 100.0, "peak_memory": 1.0}
    changes = {"metrics": values} if outcome is Outcome.COMPLETED else {}
    done = trial(started.number, started.params, outcome, **changes)
    gate.finished(done)
    return done


def run(gate, count):
    launched = []
    for _ in range(count):
        started = gate.next()
        finish(gate, started)
        launched.append(started)
    return launched


def test_the_same_seed_draws_the_same():
    draws = [run(gate_of(tiny_sweep(space=WIDE, seed=3)), 25) for _ in range(2)]
    other = run(gate_of(tiny_sweep(space=WIDE, seed=4)), 25)
    assert draws[0] == draws[1]
    assert draws[0] != other


def test_what_does_not_fit_is_refused_once_and_told_as_pruned_with_its_constraint():
    refusals = []
    gate = gate_of(tiny_sweep(space=WIDE), fits=fits_up_to(50), refusals=refusals)
    launched = run(gate, 15)
    assert all(started.params["width"] <= 50 for started in launched)
    assert refusals
    told = [each for each in gate._study.trials if each.constraints.get(MEMORY, 0) > 0]
    assert [each.state for each in told] == [TrialState.PRUNED] * len(refusals)
    for each, refusal in zip(told, refusals, strict=True):
        # a width of 50 fills the budget: the excess is width / 50 - 1 of it
        assert each.constraints[MEMORY] == pytest.approx(refusal.point["width"] / 50 - 1)
        assert refusal.trial.outcome is Outcome.PRUNED_BY_MEMORY
        assert refusal.trial.predicted is not None
    assert [refusal.trial.number for refusal in refusals] == list(range(len(refusals)))
    finished = [each for each in gate._study.trials if each.state is not TrialState.FAIL]
    assert {tuple(each.constraints) for each in finished} == {(MEMORY, DIVERGENCE)}


def _compiled(_params):
    msg = "the model is compiled"
    raise UnpredictableError(msg)


def test_what_would_be_predicted_wrongly_is_not_launched():
    with pytest.raises(UnpredictableError):
        gate_of(tiny_sweep(space=WIDE), fits=_compiled).next()


def test_without_the_gate_it_is_launched_without_a_prediction(caplog):
    sweep = tiny_sweep(space=WIDE, memory={"gate": False, "budget": BUDGET_BYTES})
    assert gate_of(sweep, fits=_compiled).next().predicted is None
    assert "the model is compiled" in caplog.text


def test_without_the_gate_everything_is_launched_with_its_prediction():
    refusals = []
    sweep = tiny_sweep(space=WIDE, memory={"gate": False, "budget": BUDGET_BYTES})
    gate = gate_of(sweep, fits=fits_up_to(1), refusals=refusals)
    launched = run(gate, 10)
    assert not refusals
    assert all(started.predicted is not None for started in launched)
    assert any(started.predicted.expected_bytes > BUDGET_BYTES for started in launched)


def test_what_was_changed_to_fit_is_launched_and_says_so():
    def fits(params):
        """Every sample of a micro-batch needs 32 MiB: 16 fill the budget."""
        return judge(params, samples_of_32_mib, BUDGET_BYTES, rescue=("micro_batch_size",))

    def samples_of_32_mib(params):
        size = params["micro_batch_size"]
        return predicted(32 * MIB * (params["batch_size"] if size == "equal" else size))

    refusals = []
    gate = gate_of(tiny_sweep(space={"batch_size": [8, 16, 48]}), fits=fits, refusals=refusals)
    launched = {started.point["batch_size"]: started for started in run(gate, 3)}
    assert refusals == []
    assert {size: started.params["micro_batch_size"] for size, started in launched.items()} == {
        8: "equal",
        16: "equal",
        48: 16,
    }
    assert all(started.params["batch_size"] == size for size, started in launched.items())
    assert launched[48].predicted.high_bytes == BUDGET_BYTES
    assert launched[48].details == {"rescued": "micro_batch_size 16"}
    assert launched[8].details == launched[16].details == {}


@pytest.mark.parametrize("fault", [ValueError("no heads"), SystemExit(3)])
def test_what_cannot_be_judged_is_launched_without_a_prediction(fault, caplog):
    def fits(_params):
        raise fault

    gate = gate_of(tiny_sweep(), fits=fits)
    for _ in range(3):
        started = gate.next()
        assert started.predicted is None
        assert started.params == started.point
    assert caplog.messages == [f"memory could not be predicted: {fault!r}"]


def test_no_point_of_a_finite_space_is_launched_or_refused_twice():
    sweep, refusals = tiny_sweep(), []
    gate = gate_of(sweep, fits=fits_up_to(4), refusals=refusals)
    launched = []
    while (started := gate.next()) is not None:
        launched.append(started)
        finish(gate, started)
    points = [domains.key(each.point) for each in (*launched, *refusals)]
    assert len(points) == len(set(points)) == sweep.space.num_points() == 8
    assert gate.message == "all 8 points of the space were tried: 6 trained, 2 do not fit"
    assert gate.next() is None


def test_trials_still_running_are_not_launched_twice():
    gate = gate_of(tiny_sweep())
    launched = [gate.next() for _ in range(8)]
    assert len({domains.key(each.point) for each in launched}) == 8
    assert gate.next() is None


def test_a_sweep_in_which_nothing_fits_names_the_smallest_and_the_budget():
    sweep = tiny_sweep(space={"width": [2, 4, 8]})
    with pytest.raises(SweepStoppedError) as stopped:
        gate_of(sweep, fits=fits_up_to(1)).next()
    # a width of 1 fills 512 MiB, so the smallest, 2, needs twice that
    assert "none of the 3 points of the space fits; the smallest needs 1 GiB" in str(stopped.value)
    assert "the budget is 512 MiB (raise memory.budget" in str(stopped.value)


def test_refusals_are_bounded():
    sweep, refusals = tiny_sweep(space=WIDE, refusals=7), []
    with pytest.raises(SweepStoppedError, match="used up its 7 refusals"):
        gate_of(
            sweep,
            fits=lambda params: fits_up_to(1)({"width": 2 + params["width"]}),
            refusals=refusals,
        ).next()
    assert len(refusals) == 7


def test_goes_on_from_a_ledger_without_drawing_anything_again():
    sweep, refusals = tiny_sweep(), []
    first = gate_of(sweep, fits=fits_up_to(4), refusals=refusals)
    launched = [first.next() for _ in range(4)]
    done = [finish(first, started) for started in launched[:3]]
    history = LedgerState(
        trials=tuple(done),
        refusals=tuple(refusals),
        launched={started.number: started for started in launched},
    )
    before = {domains.key(each.point) for each in (*launched, *refusals)}
    second = gate_of(sweep, fits=fits_up_to(4), history=history)
    finish(second, launched[3])
    after = []
    while (started := second.next()) is not None:
        after.append(started)
    assert not before & {domains.key(each.point) for each in after}
    assert [each.number for each in after] == [4, 5]


def test_a_study_rebuilt_from_the_ledger_knows_what_the_first_one_knew():
    sweep = tiny_sweep(space=WIDE)
    refusals = []
    first = gate_of(sweep, fits=fits_up_to(50), refusals=refusals)
    launched = [first.next() for _ in range(8)]
    ends = (Outcome.COMPLETED, Outcome.DIVERGED, Outcome.OUT_OF_MEMORY, Outcome.FAILED) * 2
    done = [finish(first, each, end) for each, end in zip(launched, ends, strict=True)]
    history = LedgerState(
        trials=tuple(done),
        refusals=tuple(refusals),
        launched={started.number: started for started in launched},
    )
    second = gate_of(sweep, fits=fits_up_to(50), history=history)

    def told(gate):
        return sorted(
            (str(each.params), each.state.name, each.values, sorted(each.constraints.items()))
            for each in gate._study.trials
        )

    assert told(first) == told(second)


@pytest.mark.parametrize(
    ("outcome", "state", "memory", "divergence"),
    [
        (Outcome.COMPLETED, TrialState.COMPLETE, -0.5, 0.0),
        (Outcome.OUT_OF_MEMORY, TrialState.PRUNED, 0.01, 0.0),
        (Outcome.DIVERGED, TrialState.PRUNED, -0.75, 1.0),
        (Outcome.TIMED_OUT, TrialState.PRUNED, -0.75, 0.0),
        (Outcome.STOPPED_EARLY, TrialState.PRUNED, -0.75, 0.0),
        (Outcome.FAILED, TrialState.FAIL, -0.75, 0.0),
    ],
)
def test_how_each_outcome_is_told(outcome, state, memory, divergence):
    # measured at half the budget where it completed, predicted at a quarter where it did not
    done = trial(0, {"width": 1}, outcome, predicted=predicted(BUDGET_BYTES // 4))
    told = tell_of(done, tiny_sweep(), BUDGET_BYTES)
    assert told.state is state
    assert told.constraints == {MEMORY: memory, DIVERGENCE: divergence}
    assert told.values == ([1.0, 100.0] if outcome is Outcome.COMPLETED else None)


def test_out_of_memory_beyond_its_prediction_is_told_by_how_much():
    done = trial(0, {"width": 1}, Outcome.OUT_OF_MEMORY, predicted=predicted(BUDGET_BYTES * 3 // 2))
    assert tell_of(done, tiny_sweep(), BUDGET_BYTES).constraints[MEMORY] == 0.5


def test_the_first_ones_are_launched_in_order_and_the_rest_as_they_are_drawn():
    def by_width(candidates):
        return sorted(range(len(candidates)), key=lambda place: candidates[place]["width"])

    sweep = tiny_sweep(space=WIDE, trials=30)
    gate = gate_of(sweep, order=by_width)
    widths = [started.point["width"] for started in run(gate, 30)]
    assert widths[:10] == sorted(widths[:10])
    assert len(set(widths[:10])) > 5
    plain = [started.point["width"] for started in run(gate_of(sweep), 10)]
    assert sorted(plain) == widths[:10]  # the same draws


def test_a_small_space_is_ordered_as_a_whole():
    gate = gate_of(tiny_sweep(space={"width": [4, 1, 2]}), order=lambda each: range(len(each)))
    assert len(run(gate, 3)) == 3
    assert gate.next() is None


def test_what_nobody_can_judge_is_launched_without_a_prediction():
    gate = gate_of(tiny_sweep(space=WIDE), fits=lambda params: Unjudged(params=params))
    assert gate.next().predicted is None
