"""The energy a device takes, read from its own counter. Where there is none nothing is made up.

Counted is all that the device does, whoever asked for it. Left out: the rest of the machine, and of
a CPU its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from search.memory.device import Device
from search.memory.nvml import total_joules

_POWERCAP = Path("/sys/class/powercap")


class Counter(NamedTuple):
    """How to read a counter, in J, None where it fails; and where it starts again from 0, if so."""

    read: Callable[[], float | None]
    range_joules: float | None = None


class EnergyMeter:
    """Adds up what some counters count from when it is made.

    A counter that starts again from 0 must be read more often than that: those of a CPU take about
    half an hour at full power.
    """

    def __init__(self, counters: tuple[Counter, ...]) -> None:
        """Reads each counter once."""
        self._counters = counters
        self._last = [counter.read() for counter in counters]
        self._joules = 0.0

    @property
    def works(self) -> bool:
        """Whether there is a counter, and each of them told its value when it was last read."""
        return bool(self._last) and None not in self._last

    def joules(self) -> float | None:
        """The energy taken so far; None where that is not known."""
        if not self.works:
            return None
        for place, counter in enumerate(self._counters):
            before, now = self._last[place], counter.read()
            self._last[place] = now
            if before is None or now is None:
                return None
            restarted = counter.range_joules if now < before else 0.0
            self._joules += now - before + (restarted or 0.0)
        return self._joules


def energy_meter(device: Device) -> EnergyMeter:
    """A meter of the device that is here; see `EnergyMeter.works`."""
    if device.kind == "cpu":
        return EnergyMeter(tuple(package_counters()))
    import torch

    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return EnergyMeter((Counter(partial(total_joules, uuid)),))


def package_counters(root: Path = _POWERCAP) -> Iterator[Counter]:
    """The counters of the processors' packages, whose parts count in them; often for root alone.

    Source: the kernel's `Documentation/power/powercap/powercap.rst`; both Intel and AMD processors
    have them under the name `intel-rapl`.
    """
    for zone in sorted(root.glob("intel-rapl:*")):
        if _text(zone / "name").startswith("package") and _joules(zone / "energy_uj") is not None:
            yield Counter(
                read=partial(_joules, zone / "energy_uj"),
                range_joules=_joules(zone / "max_energy_range_uj"),
            )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _joules(file: Path) -> float | None:
    text = _text(file)
    return int(text) / 1e6 if text.isdigit() else None
