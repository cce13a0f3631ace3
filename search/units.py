"""Bytes and other quantities, as people write and read them."""

from __future__ import annotations

import re

from search.errors import InputError

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_BYTE_UNITS = {
    "b": 1,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": 1024**4,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_SECOND_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_COUNT_UNITS = {"k": 1e3, "m": 1e6, "%": 0.01}
_QUANTITY = re.compile(r"\s*([+-]?[\d_]*\.?\d[\d_]*(?:e[+-]?\d+)?)\s*([a-zµ%/]*)\s*", re.IGNORECASE)


def parse_quantity(text: str) -> tuple[float, str]:
    """The number of a text such as `20 GiB`, and its unit in lower case, empty without one."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        msg = f"{text!r} is not a number with a unit (try '20 GiB', '90 s' or '8000')"
        raise InputError(msg)
    return float(match.group(1).replace("_", "")), match.group(2).lower()


def parse_bytes(text: str | int) -> int:
    """Bytes of `160 MiB`, `24 GB` or a plain number. Raises InputError on an unknown unit."""
    number, unit = parse_quantity(str(text))
    factor = _BYTE_UNITS.get(unit or "b")
    if factor is None:
        msg = f"{unit!r} is not a unit of memory (known: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)"
        raise InputError(msg)
    return round(number * factor)


def parse_seconds(text: str | float) -> float:
    """Seconds of `90 s`, `10 min`, `2 h` or a plain number of seconds."""
    number, unit = parse_quantity(str(text))
    factor = _SECOND_UNITS.get(unit or "s")
    if factor is None:
        msg = f"{unit!r} is not a unit of time (known: µs, ms, s, min, h)"
        raise InputError(msg)
    return number * factor


def parse_value(text: str, unit: str) -> float:
    """A quantity in the base unit of a metric whose unit is `B`, `s`, `tokens/s` or empty."""
    if unit == "B":
        return float(parse_bytes(text))
    if unit == "s":
        return parse_seconds(text)
    number, suffix = parse_quantity(text)
    if suffix in ("", unit.lower()):
        return number
    if suffix not in _COUNT_UNITS:
        msg = f"{suffix!r} is not a unit that fits {unit or 'a plain number'} (try a plain number)"
        raise InputError(msg)
    return number * _COUNT_UNITS[suffix]


def heading(name: str, *, width: int = 10) -> str:
    """A name as the head of a column, above `width` broken at the underscore nearest its middle."""
    breaks = [index for index, letter in enumerate(name) if letter == "_"]
    if len(name) <= width or not breaks:
        return name
    middle = min(breaks, key=lambda index: abs(index - len(name) / 2))
    return f"{name[:middle]}\n{name[middle:]}"


def format_bytes(num_bytes: float) -> str:
    """A size for the screen, in the largest binary unit that keeps a figure before the point."""
    for unit, factor in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(num_bytes) >= factor:
            return f"{num_bytes / factor:.4g} {unit}"
    return f"{num_bytes:.0f} B"


def format_seconds(seconds: float) -> str:
    """A span for the screen: `48 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def format_moment(seconds: float) -> str:
    """A short time for the screen, to four figures: `1.25 s`, `3.417 ms`, `250 µs`."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds / 1e-6:.4g} µs"


def format_figure(value: float, unit: str) -> str:
    """As `format_value`, without a unit that the name beside it says: only B and s are scaled."""
    return format_value(value, unit if unit in ("B", "s") else "")


def shown(value: str | float | bool | None) -> str:  # noqa: FBT001 - any value a param may have
    """A param's value for the screen: four figures of a number, `true`, `false` or `none`."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def format_value(value: float, unit: str) -> str:
    """A metric's value for the screen, in a readable unit."""
    if unit == "B":
        return format_bytes(value)
    if unit == "s":
        return format_seconds(value) if value >= 10 else format_moment(value)
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{text} {unit}".rstrip()
