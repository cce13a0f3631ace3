"""The steps of a run as they were taken: their tokens, seconds and losses, and what follows."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from search.results import CurvePoint

if TYPE_CHECKING:
    from search.training import TrainingRun

CURVE_POINTS = 50
TRAINING_LOSS = "training_loss"
_WARM_UP_STEPS = 3
"""Steps left out of the speed, a tenth at most: they initialize, and touch new memory."""


@dataclass(slots=True, kw_only=True)
class Steps:
    """Every optimizer step so far. `tokens_before` counts what an earlier part of the run saw."""

    tokens_before: int = 0
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def take(self, run: TrainingRun) -> float:
        """The loss of the next step; reading it waits for the device, so its time is whole."""
        before = time.perf_counter()
        result = run.step()
        loss = float(result.loss.item())
        self.seconds.append(time.perf_counter() - before)
        self.losses.append(loss)
        self.tokens.append(result.num_tokens)
        return loss

    @property
    def speeds(self) -> list[float]:
        """Tokens per second of each step in steady state."""
        return [self.tokens[index] / self.seconds[index] for index in steady_steps(self.tokens)]

    @property
    def tokens_per_second(self) -> float:
        """Tokens over seconds of the steps in steady state."""
        steady = steady_steps(self.tokens)
        return sum(self.tokens[i] for i in steady) / sum(self.seconds[i] for i in steady)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the speeds as a share of their mean; one alone has none."""
        speeds = self.speeds
        return statistics.stdev(speeds) / statistics.mean(speeds) if len(speeds) > 1 else None

    def curve(self) -> tuple[CurvePoint, ...]:
        """The loss by tokens seen, at 50 of the steps at most: evenly spread, the last too."""
        seen, points = self.tokens_before, []
        for num_tokens, loss in zip(self.tokens, self.losses, strict=True):
            seen += num_tokens
            points.append(CurvePoint(name=TRAINING_LOSS, num_tokens=seen, value=loss))
        num = min(len(points), CURVE_POINTS)
        kept = (points[-1 - index * len(points) // num] for index in range(num))
        return tuple(reversed(list(kept)))


def steady_steps(tokens: list[int]) -> range:
    """Which steps count for the speed: not the warm-up and a short last one, if others are left."""
    stop = len(tokens) - 1 if len(tokens) > 1 and tokens[-1] < tokens[0] else len(tokens)
    return range(min(_WARM_UP_STEPS, max(1, stop // 10), stop - 1), stop)
