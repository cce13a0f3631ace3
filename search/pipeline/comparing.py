"""From a sweep file and the names of devices to which of them fit it, and at what price: plan."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from search.errors import InputError
from search.pipeline.running import planned, ratios_of, refuse_unpredictable
from search.pipeline.screen import print_json, say, show_table
from search.pipeline.staging import prepare_comparison

if TYPE_CHECKING:
    from search.comparison import Comparison, Entrant
    from search.memory.device import Device
    from search.memory.speed import Speed
    from search.pipeline.staging import Stage
    from search.results import Params


def compare(
    path: Path, *, device_names: Sequence[str], prices: Sequence[str], as_json: bool
) -> None:
    """Judges the sweep's space on each device and prints them side by side. Nothing is trained.

    Args:
        path: a sweep file.
        device_names: GPUs, here or not.
        prices: of some of them, such as `A100 40GB=1.5`: what an hour costs, in any currency.
        as_json: JSON instead of a table.
    """
    from search.plan_screens import comparison_summary, comparison_table

    by_name = dict(map(price, prices))
    if as_json:
        with redirect_stdout(sys.stderr):  # the objective's own words are no JSON
            found, _ = _compared(path, device_names, by_name)
        print_json(found.to_json())
        return
    found, faults = _compared(path, device_names, by_name)
    show_table(comparison_table(found))
    say(comparison_summary(found))
    if faults:
        say(faults)


def _compared(
    path: Path, device_names: Sequence[str], prices: Mapping[str, float]
) -> tuple[Comparison, str]:
    from search.comparison import compare as compare_devices
    from search.plan_screens import plan_faults

    stages = prepare_comparison(path, device_names)
    priced = _priced([stage.device for stage in stages], prices)
    entrants = [_entrant(stage, priced.get(stage.device.name)) for stage in stages]
    for stage, entrant in zip(stages, entrants, strict=True):
        refuse_unpredictable(stage, entrant.plan)
    faults = dict.fromkeys(plan_faults(entrant.plan) for entrant in entrants)
    return compare_devices(entrants), "\n".join(filter(None, faults))


def _entrant(stage: Stage, price_per_hour: float | None) -> Entrant:
    from search.comparison import Entrant
    from search.memory.rates import rates_by

    ratios = ratios_of(stage)

    def speed(params: Params) -> Speed | None:
        rates = rates_by(stage.basis, stage.device)
        return stage.predict.speed(params, rates, ratios) if rates else None

    return Entrant(
        name=stage.device.name,
        plan=planned(stage),
        predict=stage.predict,
        speed=speed,
        price_per_hour=price_per_hour,
        num_measured=len(ratios),
    )


def price(text: str) -> tuple[str, float]:
    """The device and the price of an hour that `NAME=PRICE` gives.

    Raises:
        InputError: when it is not of that form.
    """
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not name.strip() or not 0 < value < math.inf:
        msg = (
            f"--price: {text!r} is not the name of a device and what an hour of it costs "
            '(try --price "RTX 4090=0.5")'
        )
        raise InputError(msg)
    return name.strip(), value


def _priced(devices: Sequence[Device], prices: Mapping[str, float]) -> dict[str, float]:
    """The prices by the devices' own names."""
    from search.memory.catalogue import is_named

    found: dict[str, float] = {}
    for name, value in prices.items():
        meant = [device.name for device in devices if is_named(device, name)]
        if not meant:
            known = ", ".join(device.name for device in devices)
            msg = f"--price: {name!r} is none of the devices to compare (they are: {known})"
            raise InputError(msg)
        if meant[0] in found:
            msg = f"--price: {name!r} is {meant[0]}, whose price was given already (give it once)"
            raise InputError(msg)
        found[meant[0]] = value
    return found
