import pytest
from hypothesis import given
from hypothesis import strategies as st

from search.errors import InputError
from search.memory.speed import (
    Candidate,
    Rates,
    Shares,
    Speed,
    cheapest_that_fits,
    correction,
    estimated_speed,
    step_seconds,
)
from search.memory.work import Arithmetic, OperatorWork, Work

ALL = Shares(flops=1.0, bandwidth=1.0, operator_seconds=0.0)
A100 = {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12, "fp16": 312e12}
RATES = Rates(flops_per_second=A100, bandwidth_bytes_per_second=1.555e12)
# 312e9 FLOPs are 1 ms of bf16; 155.5 MB are 0.1 ms
PRODUCT = OperatorWork(Arithmetic.BF16, 312 * 10**9, 155_500_000)
# 1.555 GB are 1 ms
SUM = OperatorWork(Arithmetic.NONE, 0, 1_555_000_000)


def work(*operators, **repeats) -> Work:
    return Work(operators=operators, **repeats)


class TestRoofline:
    @pytest.mark.parametrize(
        ("operators", "milliseconds"),
        [
            ((PRODUCT,), 1.0),
            ((SUM,), 1.0),
            # one after another: neither hides the other
            ((PRODUCT, SUM), 2.0),
            ((PRODUCT._replace(arithmetic=Arithmetic.TF32),), 2.0),
            ((PRODUCT._replace(arithmetic=Arithmetic.FP32),), 16.0),
            # what the device does not name is computed in fp32
            ((PRODUCT._replace(arithmetic=Arithmetic.FP64),), 16.0),
            ((PRODUCT._replace(num_bytes=15_550_000_000),), 10.0),
        ],
    )
    def test_an_operator_takes_the_longer_of_two_times(self, operators, milliseconds):
        assert step_seconds(work(*operators), RATES, ALL) == pytest.approx(milliseconds / 1e3)

    def test_micro_batches_that_repeat_take_their_time(self):
        repeated = work(SUM, PRODUCT, SUM, repeated_from=1, repeated_to=2, num_waiting=6)
        assert step_seconds(repeated, RATES, ALL) == pytest.approx(9e-3)

    def test_shares_and_starts_by_hand(self):
        shares = Shares(flops=0.5, bandwidth=0.25, operator_seconds=1e-3)
        # 1 / 0.5 ms and 1 / 0.25 ms, and two starts of 1 ms
        assert step_seconds(work(PRODUCT, SUM), RATES, shares) == pytest.approx(8e-3)

    @given(st.floats(1.0, 100.0), st.sampled_from([PRODUCT, SUM]))
    def test_a_faster_device_is_never_slower(self, factor, operator):
        faster = Rates(
            flops_per_second={kind: factor * rate for kind, rate in A100.items()},
            bandwidth_bytes_per_second=factor * 1.555e12,
        )
        at_once = work(operator)
        assert step_seconds(at_once, faster, ALL) <= step_seconds(at_once, RATES, ALL)


class TestSpeed:
    def test_gpt2_on_an_a100_is_in_its_range(self):
        # llm.c trained GPT-2 124M on 10e9 tokens in 90 minutes on 8 A100s, in bf16:
        # github.com/karpathy/llm.c/discussions/481. 6 x 124e6 FLOPs a token, and the attention.
        measured = 10e9 / (90 * 60) / 8
        flops = (6 * 124_000_000 + 12 * 12 * 768 * 1024) * 524_288
        speed = estimated_speed(
            work(OperatorWork(Arithmetic.BF16, flops, 0)), RATES, num_tokens=524_288
        )
        assert speed.low_tokens_per_second < measured < speed.high_tokens_per_second

    def test_is_a_range_round_what_to_expect(self):
        speed = estimated_speed(work(PRODUCT, SUM), RATES, num_tokens=1000)
        low, high = speed.low_tokens_per_second, speed.high_tokens_per_second
        assert low < speed.expected_tokens_per_second < high
        assert speed.expected_tokens_per_second**2 == pytest.approx(low * high)
        # 1 ms / 0.72 and 1 ms / 0.844, and two starts of 0.9 us
        assert high == pytest.approx(1000 / (1e-3 / 0.72 + 1e-3 / 0.844 + 1.8e-6))

    def test_measured_trials_correct_it(self):
        plain, corrected = (
            estimated_speed(work(PRODUCT), RATES, num_tokens=10, ratios=ratios)
            for ratios in ((), (0.5, 0.6, 0.01))
        )
        for end in ("low", "expected", "high"):
            name = f"{end}_tokens_per_second"
            assert getattr(corrected, name) == pytest.approx(0.5 * getattr(plain, name))

    def test_nothing_measured_corrects_nothing(self):
        assert correction(()) == 1.0

    def test_a_step_without_work_has_no_estimate(self):
        with pytest.raises(InputError, match="no estimate"):
            estimated_speed(Work(), RATES, num_tokens=1)

    @pytest.mark.parametrize(
        ("flops", "bandwidth"), [({"bf16": 1e12}, 1.0), ({"fp32": 0.0}, 1.0), ({"fp32": 1.0}, 0.0)]
    )
    def test_rates_that_say_nothing_are_refused(self, flops, bandwidth):
        with pytest.raises(InputError, match="name fp32"):
            Rates(flops_per_second=flops, bandwidth_bytes_per_second=bandwidth)


def candidate(name, tokens_per_second=1e6, *, price=1.0, fits=True) -> Candidate:
    speed = Speed(
        low_tokens_per_second=tokens_per_second / 2,
        expected_tokens_per_second=tokens_per_second,
        high_tokens_per_second=tokens_per_second * 2,
    )
    return Candidate(name=name, price_per_hour=price, speed=speed if fits else None)


class TestCheapest:
    def test_a_million_tokens_by_hand(self):
        (only,) = cheapest_that_fits([candidate("A100", price=3.6)])
        # a million tokens in 1 s, at 3.6 / 3600 a second
        assert only.expected_cost == pytest.approx(0.001)
        assert (only.low_cost, only.high_cost) == pytest.approx((0.0005, 0.002))

    def test_what_does_not_fit_is_left_out_and_the_rest_goes_by_cost(self):
        found = cheapest_that_fits(
            [
                candidate("small and cheap", price=0.1, fits=False),
                candidate("fast and dear", 3e6, price=4.0),
                candidate("middling", price=1.2),
                candidate("fast and fair", 2e6, price=2.0),
            ]
        )
        assert [each.name for each in found] == ["fast and fair", "middling", "fast and dear"]

    @given(st.lists(st.tuples(st.booleans(), st.floats(0.1, 10), st.floats(0.1, 10))))
    def test_none_that_fits_is_lost_and_none_costs_less_than_the_one_before(self, devices):
        found = cheapest_that_fits(
            candidate(str(index), 1e6 * speed, price=price, fits=fits)
            for index, (fits, speed, price) in enumerate(devices)
        )
        assert {each.name for each in found} == {
            str(index) for index, (fits, _, _) in enumerate(devices) if fits
        }
        costs = [each.expected_cost for each in found]
        assert costs == sorted(costs)
