"""The command line: the only place that catches SearchError and sets the exit code."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from search.errors import InputError, SearchError

app = typer.Typer(
    help="Finds training configurations that fit the memory you have, and trains only those.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="A sweep's name, as `paretune list` shows it.")]
SweepFile = Annotated[Path, typer.Argument(help="A sweep file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Label = Annotated[str, typer.Option("--as", help="The label of a pick.", show_default=False)]
LATEST = "latest"


def main() -> None:
    """Runs the command and exits: 0 done, 2 input to mend, 3 the machine, 130 interrupted."""
    _open_closed_streams()
    try:
        app()
    except SearchError as error:
        typer.echo(str(error), err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)


def _open_closed_streams() -> None:
    """Gives libraries streams to write to where the caller closed them (`>&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - stays


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer hands it over so
    if value:
        typer.echo(f"paretune {version('paretune')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options that go before a command."""


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("sweep.yaml"),
) -> None:
    """Write a commented starter sweep file."""
    from search.pipeline import running

    running.init(path)


@app.command()
def schema() -> None:
    """Print the JSON Schema of sweep files, for editors."""
    from search.pipeline import running

    running.schema()


@app.command()
def plan(
    sweep_file: SweepFile,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help='Plan for this GPU, such as "RTX 4090", here or not; several: side by side.',
            show_default=False,
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(
            help='What an hour of a device costs, such as "RTX 4090=0.5", in any currency.',
            show_default=False,
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=VALUE ...",
            help="Show one configuration's memory over time: --explain batch_size=32 depth=4.",
            show_default=False,
        ),
    ] = None,
    more: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", hidden=True)
    ] = None,
    chart: Annotated[
        Path | None,
        typer.Option(help="With --explain: a page of HTML to write.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Say what of a sweep's space fits, training nothing."""
    if explain is not None:
        _explain(sweep_file, [explain, *(more or [])], device, chart, as_json=json)
        return
    if more or chart:
        msg = f"{more[0] if more else '--chart'}: only with --explain NAME=VALUE ..."
        raise InputError(msg)
    if price and not device:
        msg = "--price: no device is named to be compared (add --device NAME for each)"
        raise InputError(msg)
    if device and (price or len(device) > 1):
        from search.pipeline import comparing

        comparing.compare(sweep_file, device_names=device, prices=price or [], as_json=json)
    else:
        from search.pipeline import running

        running.plan(sweep_file, device_name=device[0] if device else None, as_json=json)


def _explain(
    sweep_file: Path,
    settings: list[str],
    device: list[str] | None,
    chart: Path | None,
    *,
    as_json: bool,
) -> None:
    from search.pipeline import explaining

    if device and len(device) > 1:
        msg = "--explain: one configuration on one device (name a single --device)"
        raise InputError(msg)
    name = device[0] if device else None
    explaining.explain(
        sweep_file, settings=settings, device_name=name, chart=chart, as_json=as_json
    )


@app.command()
def sweep(
    sweep_file: Annotated[
        Path | None, typer.Argument(help="A sweep file.", show_default=False)
    ] = None,
    resume: Annotated[
        str | None, typer.Option(help="Go on with the sweep of this name.", show_default=False)
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="A running Ray cluster.", show_default=False)
    ] = None,
) -> None:
    """Run a sweep, or go on with one."""
    from search.pipeline import sweeping

    if (sweep_file is None) == (resume is None):
        msg = "give a sweep file, or --resume NAME (and not both)"
        raise InputError(msg)
    if sweep_file is not None:
        sweeping.sweep(sweep_file, address=address)
    else:
        sweeping.resume(str(resume), address=address)


@app.command("list")
def list_(json: Json = False) -> None:
    """List the sweeps here and how they stand."""
    from search.pipeline import showing

    showing.list_sweeps(as_json=json)


@app.command()
def status(name: Name, json: Json = False) -> None:
    """Show how one sweep stands."""
    from search.pipeline import showing

    showing.status(name, as_json=json)


@app.command()
def stop(name: Name) -> None:
    """Ask a running sweep to stop; what is done is kept."""
    from search.pipeline import showing

    showing.stop(name)


@app.command()
def front(name: Name, json: Json = False) -> None:
    """Show the Pareto front as a table and a chart."""
    from search.pipeline import showing

    showing.front(name, as_json=json)


@app.command()
def pick(
    name: Name,
    minimize: Annotated[str | None, typer.Option(help="A metric.", show_default=False)] = None,
    maximize: Annotated[str | None, typer.Option(help="A metric.", show_default=False)] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(help="A condition, e.g. 'peak_memory <= 20 GiB'.", show_default=False),
    ] = None,
    knee: Annotated[bool, typer.Option("--knee", help="The best trade-off of all.")] = False,
    label: Label = LATEST,
    json: Json = False,
) -> None:
    """Pick one configuration from the front, and say why."""
    from search.pipeline import keeping

    keeping.pick(
        name,
        minimize=minimize,
        maximize=maximize,
        where=where or [],
        knee=knee,
        label=label,
        as_json=json,
    )


@app.command()
def export(
    name: Name,
    to: Annotated[str, typer.Option(help="The format: yaml.")] = "yaml",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A file instead of the screen.", show_default=False),
    ] = None,
    trial: Annotated[
        int | None, typer.Option(help="A trial instead of the pick.", show_default=False)
    ] = None,
    label: Label = LATEST,
) -> None:
    """Write the picked configuration with its provenance."""
    from search.pipeline import keeping

    keeping.export(name, to=to, output=output, trial=trial, label=label)


@app.command()
def train(
    pick_file: Annotated[Path, typer.Argument(help="A file that `export` wrote.")],
    tokens: Annotated[
        int | None,
        typer.Option(help="Train on this many tokens instead.", min=1, show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The folder for checkpoints.", show_default=False),
    ] = None,
) -> None:
    """Train a picked configuration for production, with checkpoints."""
    from search.pipeline import keeping

    keeping.train(pick_file, num_tokens=tokens, output=output)


@app.command()
def devices(
    name_part: Annotated[str, typer.Argument(help="Words of the name.", show_default=False)] = "",
    memory: Annotated[
        str | None,
        typer.Option(help="At least this much memory, e.g. '24 GiB'.", show_default=False),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Measure what a process takes of the GPU here, and keep it."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """List the GPUs known, those here, and what was measured on them."""
    from search.pipeline import devices as listing

    if not measure:
        listing.devices(name_part, memory=memory, as_json=json)
        return
    if name_part or memory:
        msg = "--measure: the GPU that is here is measured, so leave the filters out"
        raise InputError(msg)
    listing.measure(as_json=json)


@app.command()
def ui(
    name: Annotated[
        str | None, typer.Argument(help="The sweep to open at.", show_default=False)
    ] = None,
    port: Annotated[int, typer.Option(help="The port on 127.0.0.1.")] = 5000,
) -> None:
    """Open the MLflow UI at a sweep."""
    from search.pipeline import showing

    showing.ui(name, port=port)
