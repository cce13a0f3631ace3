from __future__ import annotations

from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND, Goal, Metric
from search.results import Outcome, Trial
from search.tracking.picture import picture_of, steps
from search.units import GIB, MIB

LOSS = Metric(name="bits_per_byte", goal=Goal.MIN)


def trial(number, loss, speed, peak_bytes=MIB):
    metrics = {"bits_per_byte": loss, "tokens_per_second": speed, "peak_memory": peak_bytes}
    return Trial(number=number, params={}, outcome=Outcome.COMPLETED, metrics=metrics)


def test_axes_say_which_way_is_better_and_in_which_unit():
    metrics = (LOSS, TOKENS_PER_SECOND, PEAK_MEMORY)
    labels = [axis.label for axis in picture_of([trial(0, 1, 2)], metrics).axes]
    assert labels == [
        "bits per byte, lower is better",
        "tokens per second, higher is better",
        "peak memory [MiB], lower is better",
    ]


def test_memory_is_drawn_in_the_unit_that_fits():
    axis = picture_of([trial(0, 1, 2, GIB), trial(1, 1, 2, 2 * GIB)], (PEAK_MEMORY,)).axes[0]
    assert axis.label == "peak memory [GiB], lower is better"
    assert axis.of(trial(0, 1, 2, GIB)) == 1.0


def test_an_axis_is_logarithmic_when_its_values_are_far_apart():
    near, far = [trial(0, 1, 10), trial(1, 1, 300)], [trial(0, 1, 10), trial(1, 1, 301)]
    assert not picture_of(near, (TOKENS_PER_SECOND,)).axes[0].log
    assert picture_of(far, (TOKENS_PER_SECOND,)).axes[0].log
    assert not picture_of([trial(0, 1, 0), trial(1, 1, 99)], (TOKENS_PER_SECOND,)).axes[0].log


def test_the_outline_encloses_what_is_reached():
    # Loss up (lower is better), speed across (higher is better): between (100, 1) and (300, 2)
    # everything right of 100 costs at least 2.
    drawn = [trial(0, 1, 100), trial(1, 2, 300), trial(2, 3, 200)]
    picture = picture_of(drawn, (LOSS, TOKENS_PER_SECOND))
    [(x, y)] = picture.pairs()
    assert (x.metric, y.metric) == (TOKENS_PER_SECOND, LOSS)
    assert steps(drawn, x, y) == ([100, 100, 300], [1, 2, 2])


def test_three_metrics_make_three_pairs():
    picture = picture_of([trial(0, 1, 2)], (LOSS, TOKENS_PER_SECOND, PEAK_MEMORY))
    names = [(x.metric.name, y.metric.name) for x, y in picture.pairs()]
    assert names == [
        ("tokens_per_second", "bits_per_byte"),
        ("peak_memory", "bits_per_byte"),
        ("peak_memory", "tokens_per_second"),
    ]
