"""What a person sees of a sweep in MLflow's pages, in headless Chromium."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections import deque

import pytest

from search.metric import PEAK_MEMORY, TOKENS_PER_SECOND, Goal, Metric
from search.results import CurvePoint, Outcome, PredictedMemory, Trial
from search.tracking.entries import RecordedSweep
from search.tracking.pages import experiment_url, run_url
from search.tracking.record import Recorder
from search.tracking.store import sweep_url
from search.units import GIB

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)"),
]

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--window-size=2400,1400",  # wide: the table draws only the columns that are seen
    "--remote-debugging-pipe",
)
WAIT = """new Promise((found, missing) => {
  const end = Date.now() + 30000;
  const look = () => {
    const value = (() => { try { return %s } catch (fault) { return null } })();
    if (value) found(value);
    else if (Date.now() > end) missing(new Error(document.body.innerText));
    else setTimeout(look, 50);
  };
  look();
})"""


class Browser:
    """One page of one Chromium, driven through the pipe of its DevTools protocol."""

    def __init__(self, profile):
        # The browser reads commands from descriptor 3 and answers on 4, a zero byte after each.
        commands, answers = profile / "commands", profile / "answers"
        os.mkfifo(commands)
        os.mkfifo(answers)
        self._process = subprocess.Popen(
            [
                *("sh", "-c", f'exec "$0" "$@" 3< {commands} 4> {answers}', CHROMIUM),
                *(*FLAGS, f"--user-data-dir={profile}", "about:blank"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._commands = os.open(commands, os.O_WRONLY)
        self._answers = os.open(answers, os.O_RDONLY)
        self._unread = b""
        self._num_calls = 0
        self._frames = deque()
        found = self.call("Target.getTargets", None)["targetInfos"]
        page = next(target["targetId"] for target in found if target["type"] == "page")
        attached = self.call("Target.attachToTarget", None, targetId=page, flatten=True)
        self.page = attached["sessionId"]
        self.call(
            "Target.setAutoAttach",
            self.page,
            autoAttach=True,
            waitForDebuggerOnStart=False,
            flatten=True,
        )

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method, session, **params):
        self._num_calls += 1
        message = {"id": self._num_calls, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._num_calls:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self):
        while b"\0" not in self._unread:
            chunk = os.read(self._answers, 1 << 20)
            assert chunk, "Chromium has gone"
            self._unread += chunk
        text, _, self._unread = self._unread.partition(b"\0")
        message = json.loads(text)
        if message.get("method") == "Target.attachedToTarget":
            target = message["params"]
            if target["targetInfo"]["type"] == "iframe":
                self._frames.append(target["sessionId"])
        return message

    def open(self, url):
        self.call("Page.navigate", self.page, url="about:blank")
        self._frames.clear()
        self.call("Page.navigate", self.page, url=url)

    def frame(self):
        """The frame in the page that is isolated from it, once there is one."""
        while not self._frames:
            self._read()
        return self._frames[-1]

    def wait(self, expression, *, session=None):
        """The value of a JavaScript expression, once it is true."""
        answer = self.call(
            "Runtime.evaluate",
            session or self.page,
            expression=WAIT % expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, (expression, answer["exceptionDetails"])
        return answer["result"]["value"]

    def wait_text(self, *texts):
        """Waits until the page shows all of these."""
        for text in texts:
            self.wait(f"document.body.innerText.includes({json.dumps(text)})")


LOSS = Metric(name="loss", goal=Goal.MIN)
SWEEP = RecordedSweep(
    name="quick",
    sweep_id="id-1",
    objectives=(LOSS, TOKENS_PER_SECOND),
    metrics=(LOSS, TOKENS_PER_SECOND, PEAK_MEMORY),
    dimensions=("rate", "width"),
    log_dimensions=frozenset({"rate"}),
    text="name: quick\n",
)


def trial(number, loss, speed, outcome=Outcome.COMPLETED):
    measured = {"loss": loss, "tokens_per_second": speed, "peak_memory": float(GIB)}
    return Trial(
        number=number,
        params={"rate": 0.001, "width": 64 + number},
        outcome=outcome,
        metrics=measured if outcome is Outcome.COMPLETED else {},
        predicted=PredictedMemory(
            expected_bytes=GIB, low_bytes=GIB, high_bytes=GIB, phase="backward"
        ),
        started_at=1_700_000_000.0 + number,
        duration_seconds=5.0,
        curve=tuple(CurvePoint(name="loss", num_tokens=n, value=9 / n) for n in (1, 2, 3)),
    )


TRIALS = [
    trial(0, 3.25, 100.5),
    trial(1, 1.25, 101.5),
    trial(2, 2.25, 202.5),
    trial(3, 0.0, 0.0, Outcome.OUT_OF_MEMORY),
]


@pytest.fixture(scope="module")
def recorder(empty_store, tmp_path_factory):
    """The record of a finished sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    shutil.copy(empty_store, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        found = Recorder.open(f"sqlite:///{folder}/mlflow.db", SWEEP)
        found.finish(TRIALS)
        assert found.close() is None
    return found


@pytest.fixture(scope="module")
def port(recorder):
    """Where MLflow shows it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = f"from search.tracking.store import serve_ui; serve_ui({recorder.uri!r}, port={port})"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as ui:
        said = next((line for line in ui.stderr if "Uvicorn running" in line), None)
        assert said, "MLflow did not start"
        threading.Thread(target=ui.stderr.read, daemon=True).start()
        yield port
        ui.send_signal(signal.SIGTERM)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def cells(browser, column):
    """What the run table shows in a column, from top to bottom."""
    query = json.dumps(f"[role=row] [col-id={json.dumps(column)}]")
    return browser.wait(f"""(() => {{
      const shown = [...document.querySelectorAll({query})].filter(e => e.role === "gridcell");
      const row = e => Number(e.closest("[role=row]").getAttribute("row-index"));
      return shown.length && shown.sort((a, b) => row(a) - row(b)).map(e => e.innerText.trim());
    }})()""")


def test_a_sweep_opens_on_its_trials_with_params_and_metrics_best_first(recorder, port, browser):
    browser.open(sweep_url(recorder.uri, "quick", port=port))
    browser.wait_text("4 matching runs", "trial 003")
    assert cells(browser, "metrics.`quality/loss`") == ["1.25", "2.25", "3.25", "-"]
    assert cells(browser, "metrics.`speed/tokens_per_second`") == ["101.5", "202.5", "100.5", "-"]
    assert cells(browser, "metrics.`memory/predicted_gib`") == ["1", "1", "1", "1"]
    assert cells(browser, "params.`width`") == ["65", "66", "64", "67"]
    assert cells(browser, "tags.`paretune.pareto`") == ["true", "true", "false", "false"]
    assert cells(browser, "tags.`paretune.outcome`")[-1] == "out_of_memory"


def test_the_charts_of_a_sweep_are_drawn(recorder, port, browser):
    browser.open(f"{sweep_url(recorder.uri, 'quick', port=port)}&compareRunsMode=CHART")
    browser.wait_text("Parallel Coordinates", "tokens_per_second vs. quality/loss")
    browser.wait("document.querySelectorAll('.scatterlayer .point').length >= 3")
    assert browser.wait("document.querySelectorAll('.parcoords').length") == 1


def test_the_note_above_the_trials_leads_to_the_story_of_the_sweep(recorder, port, browser):
    browser.open(sweep_url(recorder.uri, "quick", port=port))
    link = f"a[href*='{recorder.parent_run_id}']"
    browser.open(browser.wait(f'document.querySelector("{link}").href'))
    browser.wait_text("on the Pareto front of", "counts/out_of_memory", "Child runs", "trial 003")


def test_trials_are_nested_in_their_sweep(recorder, port, browser):
    browser.open(experiment_url(recorder.uri, recorder._runs.experiment_id, port=port))
    browser.wait_text("5 matching runs")
    assert len(cells(browser, "attributes.`Run Name`")) == 1
    expander = "[row-index='0'] [col-id*='Run Name'] button"
    browser.wait(f'document.querySelector("{expander}").click() ?? true')
    browser.wait_text("trial 000", "trial 001", "trial 002", "trial 003")


def test_the_chart_of_the_front_is_drawn_within_the_page(recorder, port, browser):
    url = run_url(recorder.uri, recorder._runs.experiment_id, recorder.parent_run_id, port=port)
    browser.open(url.replace("?", "/artifacts/pareto.html?"))
    browser.wait("document.querySelectorAll('iframe').length")
    frame = browser.frame()
    assert browser.wait("document.querySelectorAll('.point').length", session=frame) == 3
    assert "2 of 3 completed" in browser.wait("document.body.innerText", session=frame)
