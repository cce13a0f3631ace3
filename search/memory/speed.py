"""How fast a configuration may train on a device, estimated before anything ran.

A roofline: each operator takes as long as its arithmetic or its bytes do, whichever is longer, and
what it takes to start it. An estimate, never to be mixed with a measured speed: it orders
structures and devices. Left out: waiting for data, and kernels that run side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from search.errors import InputError
from search.memory.work import Arithmetic, Work

_TOKENS = 1_000_000
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Which shares of its peaks a device reaches, 0 to 1, and the seconds to start an operator."""

    flops: float
    bandwidth: float
    operator_seconds: float


SLOW_GPU = Shares(flops=0.213, bandwidth=0.696, operator_seconds=6.7e-6)
"""The lower end of what is published of GPUs against their data sheets.

Source: FLOPs, training GPT-3: Chowdhery and others 2022, arXiv 2204.02311, table 3. Bandwidth, of
five GPUs the lowest, P100: Jia and others 2018, arXiv 1804.06826, table 3.1. Start of a kernel that
the host waits for, 9.6 us less the 2.9 us it runs: Gray 2019, "Getting Started with CUDA Graphs",
NVIDIA's developer blog.
"""
FAST_GPU = Shares(flops=0.72, bandwidth=0.844, operator_seconds=0.9e-6)
"""The upper end.

Source: FLOPs, training GPT models on A100: Dao 2023, arXiv 2307.08691, abstract and table 1.
Bandwidth, of five GPUs the highest, P4: Jia and others, as above. Start of a kernel that the host
sent while another ran, 3.8 us less 2.9 us: Gray, as above.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """How fast a device computes, by `Arithmetic`, and moves bytes, at most.

    `slow` and `fast` bound what it reaches of that: by default as GPUs reach of their data sheets.
    """

    flops_per_second: Mapping[str, float]
    bandwidth_bytes_per_second: float
    slow: Shares = SLOW_GPU
    fast: Shares = FAST_GPU

    def __post_init__(self) -> None:
        """Raises InputError where fp32, in which all else can be computed, has no rate."""
        rates = (*self.flops_per_second.values(), self.bandwidth_bytes_per_second)
        if Arithmetic.FP32 not in self.flops_per_second or min(rates) <= 0:
            msg = (
                f"the rates of a device must be above 0 and name fp32, found {self} "
                "(give its FLOPs per second in fp32 and its bandwidth in bytes per second)"
            )
            raise InputError(msg)

    def peak(self, arithmetic: Arithmetic) -> float:
        """FLOPs per second of a kind of arithmetic; those of fp32 where a device lacks it."""
        return self.flops_per_second.get(arithmetic, self.flops_per_second[Arithmetic.FP32])


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Estimated tokens per second: between which bounds, and what to expect."""

    low_tokens_per_second: float
    expected_tokens_per_second: float
    high_tokens_per_second: float


def step_seconds(work: Work, rates: Rates, shares: Shares) -> float:
    """Estimated seconds of one optimizer step.

    Args:
        work: what the step computes and moves.
        rates: the device's peaks.
        shares: how much of them it reaches.

    Source: Williams and others 2009, "Roofline", Communications of the ACM 52(4), for one operator.
    """
    bandwidth = rates.bandwidth_bytes_per_second * shares.bandwidth
    seconds = 0.0
    for operator, count in work.counts().items():
        computing = operator.flops / (rates.peak(operator.arithmetic) * shares.flops)
        moving = operator.num_bytes / bandwidth
        seconds += count * (max(computing, moving) + shares.operator_seconds)
    return seconds


def estimated_speed(
    work: Work, rates: Rates, *, num_tokens: int, ratios: Iterable[float] = ()
) -> Speed:
    """Tokens per second in steady state, as a range round the geometric mean of its ends.

    Args:
        work: what one step computes and moves.
        rates: of the device.
        num_tokens: tokens that one step trains on.
        ratios: measured over estimated speeds of trials on this device, see `correction`.

    Raises:
        InputError: when the step has no work to estimate by.
    """
    slow, fast = (step_seconds(work, rates, shares) for shares in (rates.slow, rates.fast))
    if not fast:
        msg = "the step computes and moves nothing on the device, so its speed has no estimate"
        raise InputError(msg)
    factor = correction(ratios)
    low, high = factor * num_tokens / slow, factor * num_tokens / fast
    return Speed(
        low_tokens_per_second=low,
        expected_tokens_per_second=(low * high) ** 0.5,
        high_tokens_per_second=high,
    )


def correction(ratios: Iterable[float]) -> float:
    """The factor on estimates for a device: the median of measured over estimated; 1 for none.

    The median, since a trial that shared its device, or waited for its data, is far off.

    Args:
        ratios: measured tokens per second over `expected_tokens_per_second` without correction.
    """
    known = list(ratios)
    return median(known) if known else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A device somebody may rent: its price an hour, and the speed there; None: it does not fit."""

    name: str
    price_per_hour: float
    speed: Speed | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A device that fits, what a million tokens cost on it, in the currency of its price."""

    name: str
    low_cost: float
    expected_cost: float
    high_cost: float


def cheapest_that_fits(candidates: Iterable[Candidate]) -> tuple[Ranked, ...]:
    """The devices that fit, from the least expected cost of a million tokens to the most.

    Args:
        candidates: devices with the user's prices, and the speed of what is to be trained.
    """
    ranked = [_ranked(each, each.speed) for each in candidates if each.speed is not None]
    return tuple(sorted(ranked, key=lambda each: each.expected_cost))


def _ranked(candidate: Candidate, speed: Speed) -> Ranked:
    price = candidate.price_per_hour
    return Ranked(
        name=candidate.name,
        low_cost=cost_per_million_tokens(price, speed.high_tokens_per_second),
        expected_cost=cost_per_million_tokens(price, speed.expected_tokens_per_second),
        high_cost=cost_per_million_tokens(price, speed.low_tokens_per_second),
    )


def cost_per_million_tokens(price_per_hour: float, tokens_per_second: float) -> float:
    """What training on a million tokens costs, in the currency of the price."""
    return price_per_hour / _SECONDS_PER_HOUR * _TOKENS / tokens_per_second


def utilization(work: Work, rates: Rates, *, steps_per_second: float) -> float:
    """The share of the time in which a step's products would be done at the device's peaks.

    Where all of them are of one kind of arithmetic it is model FLOP utilization as it was defined.
    It is that of the hardware, and larger, where `work` holds what is computed again.

    Args:
        work: of one optimizer step.
        rates: the device's peaks.
        steps_per_second: how many optimizer steps it takes a second.

    Source: Chowdhery and others 2022, arXiv 2204.02311, section 4.1.
    """
    seconds = sum(flops / rates.peak(kind) for kind, flops in work.flops.items())
    return seconds * steps_per_second
