"""One configuration of a sweep file, its memory from first to last event: plan --explain."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search import home
from search.errors import FileFaultsError, InputError
from search.pipeline.learning import UntracedStage
from search.pipeline.screen import console, print_json, say
from search.pipeline.staging import machine_of, prepare_plan
from search.units import format_bytes, shown

if TYPE_CHECKING:
    from search.memory.feasibility import Verdict
    from search.memory.timeline import Timeline
    from search.pipeline.staging import Stage
    from search.results import Params, ParamValue

_PLACE = "--explain"
_NUM_MOMENTS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One configuration: whether it fits, and its memory in time with its last, smaller batches."""

    verdict: Verdict
    timeline: Timeline
    budget_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "params": dict(self.verdict.params),
            "predicted": asdict(self.verdict.predicted),
            "budget_bytes": self.budget_bytes,
            "phases": [
                {"phase": peak.phase.value, "bytes": peak.num_bytes, "parts": dict(peak.parts)}
                for peak in self.timeline.peaks
            ],
            "moments": [
                {"event": moment.event, "phase": moment.phase.value, "parts": dict(moment.parts)}
                for moment in self.timeline.moments
            ],
        }


def explain(
    path: Path,
    *,
    settings: Sequence[str],
    device_name: str | None = None,
    chart: Path | None = None,
    as_json: bool,
) -> None:
    """Prints the memory of one configuration over time; nothing is trained.

    Args:
        path: a sweep file.
        settings: values of its dimensions, such as `batch_size=32`.
        device_name: any GPU; default: the file's own, else the device that is here.
        chart: where to write the chart, a page of HTML.
        as_json: JSON instead of text.
    """
    from search.timeline_screens import timeline_page, timeline_text

    with redirect_stdout(sys.stderr):  # the objective's own words are no JSON
        stage = prepare_plan(path, device_name=device_name)
        if isinstance(stage, UntracedStage):
            msg = f"{_PLACE}: there is no step to look into, as {stage.explain()}"
            raise InputError(msg)
        found = _explained(stage, _params(stage, settings))
    if chart is not None:
        title = f"{stage.loaded.sweep.name} on {stage.device.name}"
        page = timeline_page(found.timeline, title=title, capacity_bytes=found.budget_bytes)
        home.write_for_user(chart, page)
    if as_json:
        print_json(found.to_json())
        return
    say(_in_words(stage, found))
    say(timeline_text(found.timeline, capacity_bytes=found.budget_bytes))
    say(f"wrote {chart}" if chart else "as a chart: --chart memory.html")


def _explained(stage: Stage, params: Params) -> Explained:
    from search.memory.batches import last_batches
    from search.memory.timeline import timeline
    from search.memory.trace import trace

    machine, objective = machine_of(stage.device), stage.objective
    with console.status("tracing"):
        verdict = stage.fits(params)
        last = last_batches(objective, verdict.params, num_tokens=stage.num_tokens)
        traced = trace(
            objective,
            verdict.params,
            target=machine.target(),
            last=last,
            deployment=stage.loaded.deployment,
        )
    return Explained(
        verdict=verdict,
        timeline=timeline(traced, machine, num_moments=_NUM_MOMENTS),
        budget_bytes=stage.slots.budget_bytes,
    )


def _params(stage: Stage, settings: Sequence[str]) -> Params:
    """The whole configuration that is meant: what is fixed, what is given, and all defaults.

    Raises:
        InputError: for what is no dimension or not of its type, and for each searched dimension
            that decides memory and is given no value.
    """
    from search.sweep.file import judged_params

    sweep = stage.loaded.sweep
    given = _given(settings)
    _, params, faults = judged_params(
        objective=sweep.trained,
        data=sweep.data,
        params={**sweep.fixed, **given},
        settings=sweep.compression,
    )
    if faults:
        own = [replace(fault, place=fault.place.removeprefix("params.")) for fault in faults]
        raise FileFaultsError(_PLACE, own)
    missing = [name for name in stage.loaded.memory_space if name not in given]
    missing = [name for name in missing if name not in _neutral()]
    if missing:
        values = " ".join(f"{name}={_example(stage, name)}" for name in missing)
        msg = f"{_PLACE}: {', '.join(missing)} must be given (such as {_PLACE} {values})"
        raise InputError(msg)
    return params


def _neutral() -> frozenset[str]:
    from search.training_params import MEMORY_NEUTRAL

    return MEMORY_NEUTRAL


def _example(stage: Stage, name: str) -> str:
    dimension = stage.loaded.sweep.space[name]
    values = dimension.values()
    return shown(values[0]) if values else shown(getattr(dimension, "low", ""))


def _given(settings: Sequence[str]) -> Mapping[str, ParamValue]:
    from search.sweep.document import read_document

    lines = []
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or not name.isidentifier():
            msg = f"{_PLACE}: {setting!r} is not of the form NAME=VALUE (such as batch_size=32)"
            raise InputError(msg)
        lines.append(f"{name}: {value}")
    document = read_document("\n".join(lines), _PLACE)
    if document.repeated:
        raise FileFaultsError(_PLACE, document.repeated)
    for name, value in document.data.items():
        endless = isinstance(value, float) and not math.isfinite(value)
        if endless or not isinstance(value, bool | int | float | str):
            msg = f"{_PLACE}: {name} takes one value, found {value!r} (such as {name}=32)"
            raise InputError(msg)
    return document.data


def _in_words(stage: Stage, found: Explained) -> str:
    """What is predicted, as the gate counts it, and whether that fits."""
    from search.memory.feasibility import DoesNotFit

    predicted, verdict = found.verdict.predicted, found.verdict
    fits = f"fits into {format_bytes(found.budget_bytes)}"
    if isinstance(verdict, DoesNotFit):
        fits = verdict.reason
    ends = f"{format_bytes(predicted.low_bytes)} to {format_bytes(predicted.high_bytes)}"
    lines = [
        f"{stage.device.name}, micro-batch {shown(verdict.params['micro_batch_size'])}: {fits}",
        f"predicted: {format_bytes(predicted.expected_bytes)}, {ends} at the accepted risk",
    ]
    traced = found.timeline.peak
    if traced.num_bytes > predicted.expected_bytes:
        more = format_bytes(traced.num_bytes - predicted.expected_bytes)
        lines.append(f"the smaller batches at the end of the data take {more} more")
    return "\n".join(lines)
