"""The Pareto front as an interactive page and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search.metric import Metric
from search.results import Trial
from search.tracking.entries import param_text
from search.tracking.picture import Axis, Picture, picture_of, steps
from search.tracking.summary import front_numbers
from search.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from plotly.graph_objects import Figure

_FRONT_COLOUR = "#D55E00"
_OTHER_COLOUR = "#7F8C9A"
"""Vermilion and grey, of other lightness too. Source: Okabe, Ito 2008, Color Universal Design."""

_LINE_NAME = "front of the two metrics shown"

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{ margin: 0 }}</style></head>
<body>{body}</body></html>
"""


def pareto_html(
    trials: Sequence[Trial], metrics: tuple[Metric, ...], *, title: str = "Pareto front"
) -> str:
    """A page that works without a network: every completed trial, the front, params on hover.

    With three metrics or more, a menu chooses the two that are drawn. About 5 MB, nearly all of it
    the drawing script.
    """
    picture = picture_of(trials, metrics)
    figure = _html_figure(picture, title)
    config = {"displaylogo": False, "responsive": True}
    body = figure.to_html(
        include_plotlyjs=True, config=config, default_height="100vh", full_html=False
    )
    return _PAGE.format(title=escape(title), body=body)


def _html_figure(picture: Picture, title: str) -> Figure:
    from plotly import graph_objects

    figure = graph_objects.Figure()
    pairs = picture.pairs()
    for number, (x, y) in enumerate(pairs):
        for trace in _pair_traces(picture, x, y):
            figure.add_trace(graph_objects.Scatter(trace, visible=number == 0))
    x, y = pairs[0]
    figure.update_layout(
        title={"text": _title(picture, title), "x": 0.02, "xanchor": "left"},
        template="plotly_white",
        font={"size": 14},
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "x": 0, "y": -0.15, "yanchor": "top"},
        margin={"t": 110},
        xaxis=_html_axis(x),
        yaxis=_html_axis(y),
        updatemenus=[_menu(pairs)] if len(pairs) > 1 else [],
    )
    return figure


def _title(picture: Picture, title: str) -> str:
    return (
        f"{title}: {len(picture.on_front)} of {len(picture.trials)} completed trials on the front"
    )


def _html_axis(axis: Axis) -> dict[str, Any]:
    return {
        "title": {"text": axis.label},
        "type": "log" if axis.log else "linear",
        "zeroline": False,
        "ticks": "outside",
    }


def _menu(pairs: Sequence[tuple[Axis, Axis]]) -> dict[str, Any]:
    traces_a_pair = 3
    buttons = [
        {
            "label": f"{y.metric.name} over {x.metric.name}",
            "method": "update",
            "args": [
                {
                    "visible": [
                        i // traces_a_pair == number for i in range(len(pairs) * traces_a_pair)
                    ]
                },
                {"xaxis": _html_axis(x), "yaxis": _html_axis(y)},
            ],
        }
        for number, (x, y) in enumerate(pairs)
    ]
    return {"buttons": buttons, "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"}


def _pair_traces(picture: Picture, x: Axis, y: Axis) -> list[dict[str, Any]]:
    others, front = picture.parts()
    steps_x, steps_y = steps(front, x, y)
    return [
        {
            "x": steps_x,
            "y": steps_y,
            "mode": "lines",
            "line": {"color": _FRONT_COLOUR, "width": 1.5, "dash": "dot"},
            "hoverinfo": "skip",
            "name": _LINE_NAME,
        },
        _points(others, x, y, name="completed", colour=_OTHER_COLOUR, symbol="circle", size=9)
        | {"text": [_hover(trial, picture) for trial in others]},
        _points(front, x, y, name="Pareto front", colour=_FRONT_COLOUR, symbol="diamond", size=12)
        | {"text": [_hover(trial, picture) for trial in front]},
    ]


def _points(
    trials: Sequence[Trial], x: Axis, y: Axis, *, name: str, colour: str, symbol: str, size: int
) -> dict[str, Any]:
    return {
        "x": [x.of(trial) for trial in trials],
        "y": [y.of(trial) for trial in trials],
        "mode": "markers",
        "name": name,
        "marker": {
            "color": colour,
            "symbol": symbol,
            "size": size,
            "line": {"color": "white", "width": 1},
        },
        "hovertemplate": "%{text}<extra></extra>",
    }


def _hover(trial: Trial, picture: Picture) -> str:
    metrics = [f"{axis.metric.name}: <b>{axis.shown(trial)}</b>" for axis in picture.axes]
    params = [
        f"{name}: {param_text(trial.params[name])}"
        for name in _varying(picture.trials)
        if name in trial.params
    ]
    predicted = trial.predicted
    memory = [f"predicted memory: {format_bytes(predicted.expected_bytes)}"] if predicted else []
    return "<br>".join([f"<b>trial {trial.number}</b>", *metrics, *memory, "", *params])


def _varying(trials: Sequence[Trial]) -> list[str]:
    """The params that differ between trials; all of them, if none does."""
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    varying = [name for name in names if len({trial.params.get(name) for trial in trials}) > 1]
    return varying or names


def pareto_png(
    trials: Sequence[Trial], metrics: tuple[Metric, ...], path: Path, *, title: str = "Pareto front"
) -> None:
    """Draws the same picture into a PNG file, a panel for each pair of metrics."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    picture = picture_of(trials, metrics)
    pairs = picture.pairs()
    columns = min(3, len(pairs))
    rows = math.ceil(len(pairs) / columns)
    width = 7.0 if columns == 1 else 4.2 * columns
    figure = Canvas(figsize=(width, 4.2 * rows), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_title(picture, title), x=0.01, ha="left", fontsize=13)
    for number, (x, y) in enumerate(pairs):
        _draw_panel(figure.add_subplot(rows, columns, number + 1), picture, x, y)
    handles, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower right", ncols=len(names), frameon=False)
    figure.savefig(path)


def _draw_panel(panel: Axes, picture: Picture, x: Axis, y: Axis) -> None:
    others, front = picture.parts()
    steps_x, steps_y = steps(front, x, y)
    panel.plot(
        steps_x,
        steps_y,
        color=_FRONT_COLOUR,
        linewidth=1.2,
        linestyle=":",
        zorder=1,
        label=_LINE_NAME,
    )
    for trials, colour, marker, size, name in (
        (others, _OTHER_COLOUR, "o", 36, "completed"),
        (front, _FRONT_COLOUR, "D", 52, "Pareto front"),
    ):
        panel.scatter(
            [x.of(trial) for trial in trials],
            [y.of(trial) for trial in trials],
            c=colour,
            marker=marker,
            s=size,
            edgecolors="white",
            linewidths=0.8,
            label=name,
            zorder=2,
        )
    panel.set_xlabel(x.label)
    panel.set_ylabel(y.label)
    panel.set_xscale("log" if x.log else "linear")
    panel.set_yscale("log" if y.log else "linear")
    _label_front(panel, front, x, y)
    panel.grid(visible=True, color="#E3E7EB", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _label_front(panel: Axes, front: Sequence[Trial], x: Axis, y: Axis) -> None:
    """Numbers the trials on the line, from its left end, where a number covers no other."""
    numbers = front_numbers(front, (x.metric, y.metric))
    points = sorted((x.of(t), y.of(t), t.number) for t in front if t.number in numbers)
    taken: list[tuple[float, float]] = []
    for across, up, number in points:
        at = panel.transLimits.transform(panel.transScale.transform((across, up)))
        if any(abs(at[0] - left) < 0.07 and abs(at[1] - low) < 0.05 for left, low in taken):
            continue
        taken.append((at[0], at[1]))
        panel.annotate(
            str(number),
            (across, up),
            xytext=(5, 5),
            textcoords="offset points",
            fontsize=9,
            color="#333333",
        )
