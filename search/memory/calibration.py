"""From the errors of predictions seen so far to the margin that an accepted risk asks for.

The errors, in ordinary errors (`ErrorScale`), are ranked: split conformal prediction. What is
promised, and when:

- The next error on this device ranks like those before it: at most `risk` of the runs need more
  than `high`, however errors are distributed.
- A device has too few errors of its own for its risk (49 are needed for 0.02): the same, where it
  errs like the prior. Where it errs otherwise, still at most one run in n + 1 after n trials.
- Errors change, with a new kind of model or as the sampler moves on: no figure, but the largest
  error of the latest trials is always covered, so that one wrong prediction widens the margin at
  once. A run that ran out of memory counts as an error beyond its bound.

Source: Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World (2005), chapter 2; Lei
et al., Distribution-Free Predictive Inference for Regression (2018), theorem 2.2. The prior for
small n is worked out at `_risk_left_to_prior`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from search.memory.residuals import SCALES, ErrorScale, Residual
from search.units import format_bytes

_ROUNDING = 1e-9
"""Keeps 50 x 0.02 from being less than 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """Bytes to keep between a prediction and a bound: a constant and a share of the prediction."""

    constant_bytes: float
    share: float

    def at(self, predicted_bytes: float) -> float:
        """Bytes at one prediction; works on arrays too."""
        return self.constant_bytes + self.share * predicted_bytes

    def __str__(self) -> str:
        """`198 MiB + 3.1 %`."""
        return f"{format_bytes(self.constant_bytes)} + {100 * self.share:.3g} %"


class Calibration:
    """The interval of predictions, from published errors and from those seen on this device."""

    def __init__(
        self,
        prior: Sequence[Residual],
        seen: Sequence[Residual],
        risk: float,
        scale: ErrorScale = SCALES["cuda"],
    ) -> None:
        """Ranks the errors.

        Args:
            prior: errors elsewhere, such as on published rows; may be empty.
            seen: errors on this device, oldest first.
            risk: accepted probability that a run needs more than `high`, below one half.
            scale: what an ordinary error is, before any was seen.
        """
        self._num_prior, self._num_seen, self._risk = len(prior), len(seen), risk
        self._num_needed = trials_needed(risk)
        window = window_trials(risk)
        published, complete = _complete(prior, scale), _complete(seen, scale)[-window:]
        elsewhere = _with_bounds(prior, scale, _high_score((), published, risk))
        counted = _with_bounds(seen, scale, _high_score(elsewhere, complete, risk))[-window:]
        self._num_counted = len(counted)
        self.above = _margin(_high_score(elsewhere, counted, risk), scale)
        """What `high` lies above a prediction."""
        negated = [-score for score in published], [-score for score in complete]
        self.below = _margin(_high_score(*negated, risk), scale)
        """What `low` lies below a prediction."""

    def interval(self, expected_bytes: int) -> tuple[int, int]:
        """Low and high round a prediction, in bytes; each is crossed with probability `risk`."""
        low = expected_bytes - math.ceil(self.below.at(expected_bytes))
        return max(0, low), expected_bytes + math.ceil(self.above.at(expected_bytes))

    def explain(self) -> str:
        """One sentence for logs: the margin, and from how many trials it comes."""
        return f"high is {self.above} above the prediction (risk {self._risk:.3g}): {self._basis()}"

    def _basis(self) -> str:
        own = f"{self._num_counted} trial{'' if self._num_counted == 1 else 's'} on this device"
        if self._num_counted >= self._num_needed:
            return f"from the latest {own} alone"
        elsewhere = f"{self._num_prior} published errors" if self._num_prior else "no prior"
        return f"from {own}, of {self._num_needed} needed, and {elsewhere}"


def trials_needed(risk: float) -> int:
    """How many errors rank high enough for a risk by themselves: n + 1 >= 1 / risk."""
    return math.ceil(1 / risk - _ROUNDING) - 1


def window_trials(risk: float) -> int:
    """Trials that count, the latest: as many as may be with the largest error still the margin.

    With (n + 1) risk < 2 the conformal rank is n. One more, and a single wrong prediction would be
    ranked away. Older trials are given up for that: they are of other models and other days.
    """
    return math.ceil(2 / risk - _ROUNDING) - 2


def _margin(score: float, scale: ErrorScale) -> Margin:
    """Never below 0, so that low <= expected <= high."""
    ordinary = max(0.0, score)
    return Margin(constant_bytes=ordinary * scale.constant_bytes, share=ordinary * scale.share)


def _complete(rows: Sequence[Residual], scale: ErrorScale) -> list[float]:
    return [scale.score(each) for each in rows if not each.censored]


def _with_bounds(rows: Sequence[Residual], scale: ErrorScale, usual: float) -> list[float]:
    """The scores in order, an out-of-memory's as its bound and the `usual` margin once more.

    That is what an exponential tail asks for, which beyond any bound looks as it did from its
    start. A bound within the usual margin says nothing new, and is left out.

    Source: the tail of a survival curve beyond its last event, Brown, Hollander and Korwar,
    Nonparametric tests of independence for censored data (1974).
    """
    beyond = max(0.0, usual)
    scored = ((each, scale.score(each)) for each in rows)
    return [
        score + beyond if each.censored else score
        for each, score in scored
        if not each.censored or score > beyond
    ]


def _high_score(published: Sequence[float], seen: Sequence[float], risk: float) -> float:
    """What the next score exceeds with probability `risk`: this device's, else the prior's."""
    return _quantile(seen, risk, lambda left: _quantile(published, left, _cantelli))


def _quantile(scores: Sequence[float], risk: float, prior: Callable[[float], float]) -> float:
    """The score of conformal rank; of too few scores the largest, or the prior's if larger."""
    count = len(scores)
    rank = count + 1 - math.floor((count + 1) * risk + _ROUNDING)
    if rank <= count:
        return float(np.partition(np.asarray(scores, dtype=np.float64), rank - 1)[rank - 1])
    return max([prior(_risk_left_to_prior(count, risk)), *scores])


def _risk_left_to_prior(count: int, risk: float) -> float:
    """The prior's tail that makes max(the largest of `count` scores, its quantile) hold the risk.

    Where scores here are like the prior's, the share u of runs above the largest of n has the
    density n (1 - u)^(n - 1). Above the larger of that and the quantile of tail r lies

        E[min(r, u)] = integral from 0 to r of (1 - u)^n du = (1 - (1 - r)^(n + 1)) / (n + 1),

    which is the risk for r = 1 - (1 - (n + 1) risk)^(1 / (n + 1)): the risk itself at n = 0, and
    1, no say at all, once (n + 1) risk = 1 and this device's largest is enough by itself. An
    estimated quantile keeps the promise, as the expression is concave in r (Jensen).
    """
    return -math.expm1(math.log1p(-(count + 1) * risk) / (count + 1))


def _cantelli(risk: float) -> float:
    """What an error with the scale's standard deviation and no bias exceeds with that probability.

    Source: Cantelli's inequality, P(X >= k sigma) <= 1 / (1 + k^2).
    """
    return math.sqrt((1 - risk) / risk)
