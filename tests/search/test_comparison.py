from dataclasses import dataclass

import pytest

from search.comparison import Entrant, compare
from search.memory.feasibility import judge
from search.memory.speed import Speed
from search.plan import plan
from search.results import PredictedMemory
from search.sweep.sweep import Sweep

SPACE = Sweep.model_validate(
    {
        "name": "one",
        "objective": "toys:Toy",
        "space": {"batch_size": [2, 8], "width": [1, 10]},
        "trial": {"tokens": 1000},
        "objectives": {"error": "min"},
        "trials": 3,
    }
).space


@dataclass(frozen=True)
class Toy:
    """A device where a model of a width needs that much, and as much again for each sample."""

    name: str
    budget_bytes: int
    price: float | None = None
    tokens_per_second: float = 100.0

    def predict(self, params):
        num_bytes = params["width"] * (1 + (params["micro_batch_size"]))
        sizes = dict.fromkeys(("expected_bytes", "low_bytes", "high_bytes"), num_bytes)
        return PredictedMemory(**sizes, phase="step_2")

    def speed(self, params):
        value = self.tokens_per_second * params["micro_batch_size"]
        return Speed(
            low_tokens_per_second=value,
            expected_tokens_per_second=value,
            high_tokens_per_second=value,
        )

    def entrant(self):
        return Entrant(
            name=self.name,
            plan=plan(
                SPACE,
                params_of=lambda point: {**point, "micro_batch_size": point["batch_size"]},
                fits=lambda params: judge(params, self.predict, self.budget_bytes),
                budget_bytes=self.budget_bytes,
                on_point=lambda _, __: None,
            ),
            predict=self.predict,
            speed=self.speed,
            price_per_hour=self.price,
        )


def compared(*toys):
    return compare([toy.entrant() for toy in toys])


def test_all_are_compared_at_the_heaviest_in_the_micro_batches_that_fit():
    # width 10, batch 8 needs 90 bytes, in micro-batches of 4 50, of 2 30, of 1 20
    found = compared(Toy("large", 90), Toy("small", 45), Toy("tiny", 19))
    assert found.reference == {"batch_size": 8, "width": 10}
    assert {row.name: row.micro_batch_size for row in found.rows} == {
        "large": 8,
        "small": 2,
        "tiny": None,
    }
    assert [row.name for row in found.rows] == ["small", "large", "tiny"]
    assert (found.smallest, found.cheapest) == ("small", None)
    shares = {row.name: row.share_that_fits for row in found.rows}
    assert shares == {"large": 1.0, "small": 0.75, "tiny": 0.5}


def test_where_the_heaviest_fits_nowhere_the_next_that_fits_is_compared():
    # width 10 needs 20 in its smallest micro-batch, width 1 in one of 8 needs 9
    found = compared(Toy("a", 15), Toy("b", 8))
    assert found.reference == {"batch_size": 8, "width": 1}
    assert {row.name: row.micro_batch_size for row in found.rows} == {"a": 8, "b": 4}


def test_where_nothing_fits_there_is_nothing_to_compare():
    found = compared(Toy("a", 1), Toy("b", 1, price=1.0))
    assert (found.reference, found.smallest, found.cheapest) == (None, None, None)
    assert [row.speed for row in found.rows] == [None, None]


def test_the_cheapest_comes_first_and_what_has_no_price_or_does_not_fit_last():
    found = compared(
        Toy("dear", 90, price=36.0),
        Toy("fits not", 19, price=0.1),
        Toy("no price", 90),
        Toy("slow", 90, price=9.0, tokens_per_second=10.0),
    )
    assert [row.name for row in found.rows] == ["dear", "slow", "no price", "fits not"]
    # 800 tokens a second at 36 / 3600 a second: 0.01 / 800 * 1e6
    assert found.rows[0].cost.expected_cost == pytest.approx(12.5)
    assert found.cheapest == "dear"


def test_json_has_estimates_under_their_own_names():
    found = compared(Toy("a", 45, price=3.6), Toy("b", 1)).to_json()
    assert found["compared_at"] == {"batch_size": 8, "width": 10}
    first, second = found["devices"]
    assert first["estimated_tokens_per_second"]["expected"] == 200
    assert first["estimated_cost_per_million_tokens"]["low"] == pytest.approx(5)
    assert (first["micro_batch_size"], first["batch_size"], first["high_bytes"]) == (2, 8, 30)
    assert (second["fits"], second["estimated_tokens_per_second"]) == (False, None)
