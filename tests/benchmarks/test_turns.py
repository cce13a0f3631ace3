import pytest
import torch

from benchmarks.turns import Step, Turns, ratio

CPU = torch.device("cpu")


def run(loops, *, num_items, burst=1):
    """What happened in order, and the turns."""
    turns, said = Turns(list(loops), device=CPU, burst=burst), []

    def loop(name):
        said.extend((name, item) for item in turns.taken(name, iter(range(num_items))))
        return name

    results = turns.run({name: lambda name=name: loop(name) for name in loops})
    return said, turns, results


def test_every_loop_takes_a_step_a_round():
    said, turns, results = run("abc", num_items=6)
    rounds = [said[start : start + 3] for start in range(0, 18, 3)]
    assert [sorted(one) for one in rounds] == [
        [(name, number) for name in "abc"] for number in range(6)
    ]
    assert len({tuple(name for name, _ in one) for one in rounds}) > 1  # in other orders
    assert results == {"a": "a", "b": "b", "c": "c"}
    assert {name: len(steps) for name, steps in turns.steps.items()} == {"a": 5, "b": 5, "c": 5}


def test_a_burst_is_not_cut():
    said, turns, _ = run("ab", num_items=9, burst=3)
    bursts = [said[start : start + 3] for start in range(0, 18, 3)]
    assert all(len({name for name, _ in burst}) == 1 for burst in bursts)
    assert len(turns.steps["a"]) == 2


def test_a_loop_that_asks_ahead_does_not_upset_the_others():
    turns, said = Turns(["plain", "ahead"], device=CPU), []

    def plain():
        said.extend(turns.taken("plain", iter(range(5))))

    def ahead():
        items = turns.taken("ahead", iter(range(5)))
        held = [next(items)]
        for item in items:
            held.append(item)
            said.append(held.pop(0))

    turns.run({"plain": plain, "ahead": ahead})
    assert len(turns.steps["plain"]) == len(turns.steps["ahead"]) == 4
    assert len(said) == 5 + 4


def test_an_error_in_a_loop_ends_the_others_and_is_raised():
    turns, broken = Turns(["good", "bad"], device=CPU), "broken"

    def good():
        return list(turns.taken("good", iter(range(4))))

    def bad():
        raise ValueError(broken)

    with pytest.raises(ValueError, match="broken"):
        turns.run({"good": good, "bad": bad})
    assert len(turns.steps["good"]) == 3


def test_a_ratio_is_the_median_of_the_rounds():
    these = [Step(wall_seconds=second, cpu_seconds=1) for second in (2, 9, 4, 6, 8)]
    those = [Step(wall_seconds=second, cpu_seconds=1) for second in (2, 3, 2, 3, 2)]
    found = ratio(these, those, "wall_seconds")
    assert (found.low, found.median, found.high) == (1, 2, 4)  # of 1, 2, 2, 3, 4
    assert str(found) == "2.000 (1.000 to 4.000)"


def test_the_interval_of_a_median_by_its_ranks():
    # Of 100, the ranks 40 and 61, as tables of the sign test have it: 96.5 %.
    ones = [Step(wall_seconds=1, cpu_seconds=1)] * 100
    these = [Step(wall_seconds=rank, cpu_seconds=1) for rank in range(1, 101)]
    found = ratio(these, ones, "wall_seconds")
    assert (found.low, found.median, found.high) == (40, 50.5, 61)
