from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND, Goal, Metric
from search.results import Outcome, PredictedMemory, Trial
from search.tracking.charts import pareto_html, pareto_png
from search.units import MIB

LOSS = Metric(name="bits_per_byte", goal=Goal.MIN)
THREE = (LOSS, TOKENS_PER_SECOND, PEAK_MEMORY)
CHROMIUM = shutil.which("chromium")
QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=10000",
]


def trial(number, outcome=Outcome.COMPLETED):
    return Trial(
        number=number,
        params={"batch_size": 8 * number, "precision": "32-true"},
        outcome=outcome,
        metrics={
            "bits_per_byte": 3.0 - number / 10,
            "tokens_per_second": 9000.0 / (1 + number),
            "peak_memory": (50.0 + 7 * number) * MIB,
        },
        predicted=PredictedMemory(
            expected_bytes=64 * MIB, low_bytes=60 * MIB, high_bytes=70 * MIB, phase="backward"
        ),
    )


TRIALS = [*map(trial, range(6)), trial(66, Outcome.OUT_OF_MEMORY)]


def test_the_page_needs_no_network():
    page = pareto_html(TRIALS, THREE)
    assert not re.findall(r"<script[^>]*\ssrc=", page)
    assert not re.findall(r"<link[^>]*\shref=", page)
    assert len(page) > 1_000_000  # the drawing script is inside


def test_the_page_shows_what_a_trial_was_and_leaves_out_what_all_share():
    page = pareto_html(TRIALS, THREE, title="quick <start>")
    assert "<title>quick &lt;start&gt;</title>" in page
    assert "trial 5" in page
    assert "batch_size: 40" in page
    assert "precision: 32-true" not in page
    assert "predicted memory: 64 MiB" in page
    assert "trial 66" not in page


def test_a_menu_chooses_among_three_metrics():
    page = pareto_html(TRIALS, THREE)
    for label in (
        "bits_per_byte over tokens_per_second",
        "bits_per_byte over peak_memory",
        "tokens_per_second over peak_memory",
    ):
        assert json.dumps(label) in page
    assert "updatemenus" not in pareto_html(TRIALS, THREE[:2]).rpartition("Plotly.newPlot")[2]


@pytest.mark.parametrize("num_metrics", [1, 2, 3])
@pytest.mark.parametrize("trials", [[], TRIALS[:1], TRIALS])
def test_a_picture_can_always_be_drawn(tmp_path, trials, num_metrics):
    file = tmp_path / "pareto.png"
    pareto_png(trials, THREE[:num_metrics], file)
    assert file.read_bytes().startswith(b"\x89PNG")
    assert pareto_html(trials, THREE[:num_metrics])


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
def test_a_browser_draws_the_front_offline(tmp_path):
    page = tmp_path / "pareto.html"
    page.write_text(pareto_html(TRIALS, THREE), encoding="utf-8")
    command = [CHROMIUM, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    drawn = done.stdout.rpartition("svg-container")[2]
    assert drawn.count('class="point"') >= 6
    assert "bits per byte, lower is better" in drawn
    assert "6 of 6 completed trials on the front" in drawn
