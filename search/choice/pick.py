"""One configuration for production, and why it is this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from search.choice.condition import Condition
from search.choice.front import Front, best_value, front_of, trial_json
from search.choice.knee import knee_order
from search.errors import InputError
from search.metric import Goal, Metric
from search.results import Outcome, Trial
from search.sweep.words import nearest
from search.units import format_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The chosen trial, the reason and the conditions in words, and the rest of the front.

    `alternatives` start with the next best.
    """

    trial: Trial
    reason: str
    alternatives: tuple[Trial, ...] = ()
    conditions: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for scripts; metrics in base units."""
        return {
            **trial_json(self.trial),
            "reason": self.reason,
            "conditions": list(self.conditions),
            "alternatives": [trial.number for trial in self.alternatives],
        }


def pick(
    trials: Sequence[Trial],
    objectives: tuple[Metric, ...],
    *,
    metrics: tuple[Metric, ...] = (),
    minimize: str | None = None,
    maximize: str | None = None,
    where: Sequence[Condition] = (),
    knee: bool = False,
) -> Pick:
    """The trial to keep: among those that satisfy the conditions, one that none of them dominates.

    With a preferred metric it is the best in it, ties going to the other objectives in their
    order; without one it is the knee of the front.

    Args:
        trials: all of the sweep; only completed ones can be picked.
        objectives: what the sweep traded.
        metrics: what else may be minimized or maximized.
        minimize: the preferred metric, when lower is better.
        maximize: the preferred metric, when higher is better.
        where: all must hold.
        knee: asks for the knee, which is also the default.

    Raises:
        InputError: on preferences that contradict, or when no trial satisfies the conditions.
    """
    known = {metric.name: metric for metric in (*metrics, *objectives)}
    preferred = _preferred(known, minimize=minimize, maximize=maximize, knee=knee)
    completed = [trial for trial in trials if trial.measured(objectives) is not None]
    if not completed:
        raise InputError(_nothing_completed(trials))
    satisfying = [trial for trial in completed if all(each.holds(trial) for each in where)]
    if not satisfying:
        raise InputError(_nothing_satisfies(completed, where))
    front = front_of(satisfying, objectives)
    if preferred is None:
        order, bends = knee_order([t.measured(objectives) or () for t in front.trials])
        chosen = [front.trials[index] for index in order]
        how = _knee_reason(chosen[0], front, bends=bends)
    else:
        chosen = _by_preference(front, preferred)
        how = _preference_reason(chosen[0], preferred, completed, satisfying, where)
    reason = f"{how} {_comparison(chosen[0], satisfying, objectives)}"
    if preferred is None and where:
        reason = (
            f"{reason} It satisfies {_listed(where)}, as {len(satisfying)} of {len(completed)} do."
        )
    return Pick(
        trial=chosen[0],
        reason=reason,
        alternatives=tuple(chosen[1:]),
        conditions=tuple(map(str, where)),
    )


def repicked(
    trials: Sequence[Trial], *, number: int, reason: str, conditions: Sequence[str] = ()
) -> Pick:
    """A pick made before, or by hand, of the trial of that number.

    Raises:
        InputError: when there is none, or it did not complete.
    """
    found = next((trial for trial in trials if trial.number == number), None)
    if found is None:
        msg = f"there is no trial {number} (there are {len(trials)}, counted from 0)"
        raise InputError(msg)
    if found.outcome is not Outcome.COMPLETED:
        msg = f"trial {number} did not complete: {found.outcome.value} (choose another trial)"
        raise InputError(msg)
    return Pick(trial=found, reason=reason, conditions=tuple(conditions))


def _preferred(
    known: dict[str, Metric], *, minimize: str | None, maximize: str | None, knee: bool
) -> Metric | None:
    if sum((minimize is not None, maximize is not None, knee)) > 1:
        msg = "give one of --minimize, --maximize and --knee (bound the others with --where)"
        raise InputError(msg)
    name = minimize if minimize is not None else maximize
    if name is None:
        return None
    if name not in known:
        msg = f"{name!r} is not a metric of this sweep{nearest(name, list(known))}"
        raise InputError(msg)
    goal = Goal.MIN if minimize is not None else Goal.MAX
    if known[name].goal is not goal:
        right = "--maximize" if goal is Goal.MIN else "--minimize"
        better = "lower" if known[name].goal is Goal.MIN else "higher"
        msg = f"{name}: {better} is better in this sweep (use {right} {name})"
        raise InputError(msg)
    return known[name]


def _by_preference(front: Front, preferred: Metric) -> list[Trial]:
    order = (preferred, *(metric for metric in front.metrics if metric != preferred))
    measured = [trial for trial in front.trials if preferred.name in trial.metrics]
    if not measured:
        msg = (
            f"no trial on the front has a value of {preferred.name} (choose one of the objectives)"
        )
        raise InputError(msg)
    return sorted(measured, key=lambda trial: [m.oriented(trial.metrics[m.name]) for m in order])


def _nothing_completed(trials: Sequence[Trial]) -> str:
    if not trials:
        return "no trial has ended yet, so there is nothing to pick from"
    ended = {outcome: sum(t.outcome is outcome for t in trials) for outcome in Outcome}
    listed = ", ".join(f"{count} {outcome.value}" for outcome, count in ended.items() if count)
    return f"no trial has completed with all objectives measured ({listed}): nothing to pick from"


def _nothing_satisfies(completed: Sequence[Trial], where: Sequence[Condition]) -> str:
    total = len(completed)
    lines = [f"none of the {total} completed trials satisfies all conditions"]
    for condition in where:
        missed = [trial for trial in completed if not condition.holds(trial)]
        lines.append(f"  {condition} rules out {len(missed)}{_values_seen(condition, completed)}")
    nearest_trial = min(
        completed, key=lambda trial: (sum(c.shortfall(trial) for c in where), trial.number)
    )
    misses = [_miss(condition, nearest_trial) for condition in where]
    told = "; ".join(miss for miss in misses if miss)
    return "\n".join([*lines, f"  nearest miss: trial {nearest_trial.number}, {told}"])


def _values_seen(condition: Condition, completed: Sequence[Trial]) -> str:
    """What there is, when an equality matches nothing."""
    if any(condition.holds(trial) for trial in completed):
        return ""
    seen = dict.fromkeys(condition.shown(condition.of(trial)) for trial in completed)
    return f" (there are {', '.join(seen)})" if len(seen) <= 8 and condition.metric is None else ""


def _miss(condition: Condition, trial: Trial) -> str:
    if condition.holds(trial):
        return ""
    found = condition.of(trial)
    share = condition.shortfall(trial)
    if found is None:
        return f"which has no {condition.name}"
    if isinstance(found, str | bool):
        return f"{condition.name} is {condition.shown(found)}"
    return f"{condition.name} is {condition.shown(found)}, {_percent(share)} off"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def _listed(where: Sequence[Condition]) -> str:
    return " and ".join(str(condition) for condition in where)


def _knee_reason(trial: Trial, front: Front, *, bends: bool) -> str:
    count = len(front.trials)
    if count == 1:
        return f"Trial {trial.number} is the whole front: no other trial beats it in any objective."
    if bends:
        return (
            f"Trial {trial.number} is the knee of the front of {count} trials:"
            " beyond it, what is gained in one objective costs most in the others."
        )
    return (
        f"Trial {trial.number} is the most even choice on a front of {count} trials that has no"
        " knee: it gives up least in the objective in which it gives up most."
    )


def _preference_reason(
    trial: Trial,
    preferred: Metric,
    completed: Sequence[Trial],
    satisfying: Sequence[Trial],
    where: Sequence[Condition],
) -> str:
    extreme = "lowest" if preferred.goal is Goal.MIN else "highest"
    value = format_value(trial.metrics[preferred.name], preferred.unit)
    head = f"Trial {trial.number} has the {extreme} {preferred.name} ({value}) of the"
    if not where:
        return f"{head} {len(completed)} completed trials."
    kept = f"{len(satisfying)} of {len(completed)} completed trials"
    price = _price_of_conditions(trial, preferred, completed)
    return f"{head} {kept} that satisfy {_listed(where)}.{price}"


def _price_of_conditions(trial: Trial, preferred: Metric, completed: Sequence[Trial]) -> str:
    measured = [other for other in completed if preferred.name in other.metrics]
    best = min(measured, key=lambda other: preferred.oriented(other.metrics[preferred.name]))
    here, there = (each.metrics[preferred.name] for each in (trial, best))
    if preferred.oriented(there) >= preferred.oriented(here):
        return ""
    return (
        f" Without the conditions, trial {best.number} reaches"
        f" {format_value(there, preferred.unit)}."
    )


def _comparison(trial: Trial, satisfying: Sequence[Trial], objectives: tuple[Metric, ...]) -> str:
    """Each objective against the best of it among what could have been picked."""
    parts = [_against_best(trial, satisfying, metric) for metric in objectives]
    return f"{'; '.join(parts)}."


def _against_best(trial: Trial, satisfying: Sequence[Trial], metric: Metric) -> str:
    value = trial.metrics[metric.name]
    best = best_value(satisfying, metric)
    shown = f"{metric.name} {format_value(value, metric.unit)}"
    if best is None or value == best:
        return f"{shown} is the best"
    holder = next(other for other in satisfying if other.metrics[metric.name] == best)
    gap = f"{_percent(abs(value - best) / abs(best))} " if best else ""
    side = "above" if value > best else "below"
    there = f"{format_value(best, metric.unit)}, trial {holder.number}"
    return f"{shown} is {gap}{side} the best ({there})"
