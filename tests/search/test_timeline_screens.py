import re
from xml.etree import ElementTree as ET

from search.memory.events import Phase
from search.memory.timeline import Moment, Timeline
from search.timeline_screens import timeline_page, timeline_text
from search.units import MIB


def _moment(event, phase, **parts):
    return Moment(event=event, phase=phase, parts={k: v * MIB for k, v in parts.items()})


MOMENTS = (
    _moment(0, Phase.MODEL_CREATION, parameters=12),
    _moment(3, Phase.STEP_1, parameters=12, activations=36),
    _moment(5, Phase.LAST_BATCH, parameters=12, activations=6),
)
FOUND = Timeline(moments=MOMENTS, peaks=MOMENTS, num_events=8)


def test_a_letter_stands_for_a_part():
    # 48 letters for the peak of 48 MiB: a letter is 1 MiB
    assert timeline_text(FOUND, capacity_bytes=100 * MIB).splitlines() == [
        "model creation: at most 12 MiB, parameters 12 MiB",
        "  " + "P" * 12 + " " * 38 + "12 MiB",
        "step 1: at most 48 MiB, activations 36 MiB, parameters 12 MiB",
        "  " + "P" * 12 + "A" * 36 + "  48 MiB",
        "last batch: at most 18 MiB, parameters 12 MiB, activations 6 MiB",
        "  " + "P" * 12 + "A" * 6 + " " * 32 + "18 MiB",
        "P parameters, A activations",
    ]


def test_what_can_be_had_is_marked_in_every_bar():
    bars = [
        line for line in timeline_text(FOUND, capacity_bytes=24 * MIB).splitlines() if "|" in line
    ]
    assert [bar.index("|") for bar in bars] == [26, 26, 26]
    assert bars[1] == "  " + "P" * 12 + "A" * 12 + "|" + "A" * 24 + " 48 MiB"


def test_the_page_stands_alone_and_shows_all():
    page = timeline_page(FOUND, title="a <sweep> on a GPU", capacity_bytes=50 * MIB)
    assert "a &lt;sweep&gt; on a GPU" in page
    assert not re.search(r"https?://|<script|<link|@import|url\(", page)
    chart = ET.fromstring(re.search(r"<svg.*</svg>", page, re.DOTALL).group())  # noqa: S314 - our own
    areas = [area[0].text for area in chart.findall("polygon")]
    assert areas == ["parameters", "activations"]
    labels = [label.text for label in chart.findall("text")]
    assert labels[:3] == ["model creation", "step 1", "last batch"]
    assert len(chart.findall("line[@class='capacity']")) == 1
    # the scale ends 5 % above the capacity: 52.5 MiB; 48 of them reach 420 x 48 / 52.5 = 384 up
    highest = min(
        float(point.split(",")[1]) for point in chart.findall("polygon")[1].get("points").split()
    )
    assert highest == 40 + 420 - 384


def test_what_can_be_had_far_above_is_told_instead_of_drawn():
    page = timeline_page(FOUND, title="t", capacity_bytes=1000 * MIB)
    assert 'class="capacity"' not in page
    assert "what can be had, 1000 MiB, lies above" in page
