"""How CUDA's caching allocator is set up: what torch reads from its environment variable.

Source: torch 2.13, `c10/core/AllocatorConfig.h`, `c10/core/AllocatorConfig.cpp`,
`c10/cuda/CUDAAllocatorConfig.h`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from search.errors import InputError
from search.units import MIB

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""The first that is set counts, even where it is empty, and the other is not read.

Source: `AcceleratorAllocatorConfig::instance`, and torch itself in
`tests/search/memory/test_allocator_settings.py`. (The header's comment names them the other way
round.)
"""
_NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"

_LARGE_SEGMENT = "large_segment_size_mb"
"""Read before all others, wherever it stands: what may stay unsplit depends on it."""
_SMALLEST_LARGE_SEGMENT_MB = 11
"""Source: `parseLargeSegmentSize`, above `kMinLargeAlloc`, 10 MiB."""
_NUM_INTERVALS = 16
"""Powers of two from 1 MiB to 32 GiB, each with its own number of divisions.

Source: `kRoundUpPowerOfTwoIntervals`.
"""
_TOO_LARGE_MB = 2**44
"""Where a number of MiB no longer fits into 64 bits of bytes."""
_OPTION = re.compile(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)")
_UNREAD = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
    }
)
"""Settings of host memory, of locks and of CUDA graphs: nothing that is simulated depends on them.

Source: `CUDAAllocatorConfig::getKeys`, `AcceleratorAllocatorConfig::getMutableKeys`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorSettings:
    """The settings that decide where a block goes; torch's defaults.

    `max_split_bytes` None splits any block. `roundup_power2_divisions` has a number for each power
    of two from 1 MiB (and all below) to 32 GiB (and all above); 0 and 1 leave a size alone. The
    threshold counts only below a memory fraction of 1, and 0 switches it off.
    """

    large_segment_bytes: int = 20 * MIB
    max_split_bytes: int | None = None
    max_non_split_rounding_bytes: int = 20 * MIB
    roundup_power2_divisions: tuple[int, ...] = (0,) * _NUM_INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0


def allocator_settings_of(environment: Mapping[str, str] = os.environ) -> AllocatorSettings:
    """What torch would read from `environment`; torch's defaults where nothing is set.

    Raises:
        InputError: on what torch would refuse, and on what cannot be simulated.
    """
    if environment.get(_NO_CACHING) == "1":
        msg = f"{_NO_CACHING}: memory without a cache is not simulated (unset it to predict)"
        raise InputError(msg)
    for variable in VARIABLES:
        if variable in environment:
            try:
                return parse_allocator_settings(environment[variable])
            except InputError as error:
                msg = f"{variable}: {error}"
                raise InputError(msg) from error
    return AllocatorSettings()


def parse_allocator_settings(text: str) -> AllocatorSettings:
    """The settings in a text such as `max_split_size_mb:128,expandable_segments:True`.

    Stricter than torch where torch misreads in silence: a wrong separator, a number with a sign or
    a rest behind it, a setting given twice. Values without an effect here are not looked at.

    Raises:
        InputError: naming the option, the rule and what was found.
    """
    options = _options(text)
    settings = AllocatorSettings()
    for name in sorted(options, key=lambda name: name != _LARGE_SEGMENT):
        if name not in _UNREAD:
            settings = _READERS[name](settings, name, options[name])
    return settings


def _options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in _named_values("".join(text.split())):
        if name in options:
            msg = f"{name} is given twice"
            raise InputError(msg)
        if name not in _READERS and name not in _UNREAD:
            near = difflib.get_close_matches(name, [*_READERS, *_UNREAD], n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            msg = f"{name!r} is no setting of the allocator{hint}"
            raise InputError(msg)
        options[name] = value
    return options


def _named_values(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = _OPTION.match(text, position)
        if match is None:
            msg = f"expected 'name:value' with commas between, found {text[position:]!r}"
            raise InputError(msg)
        yield match.group(1), match.group(2)
        position = match.end()


def _whole_number(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", value):
        msg = f"{name}: must be a whole number, found {value!r}"
        raise InputError(msg)
    return int(value)


def _mebibytes(name: str, value: str, *, least: int) -> int:
    number = _whole_number(name, value)
    if not least <= number < _TOO_LARGE_MB:
        msg = f"{name}: must be at least {least} and below {_TOO_LARGE_MB}, found {number}"
        raise InputError(msg)
    return number * MIB


def _fraction(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        msg = f"{name}: must be a number from 0 to 1, found {value!r}"
        raise InputError(msg) from None


def _power_of_two(name: str, value: str, *, or_zero: bool) -> int:
    number = _whole_number(name, value)
    if number & (number - 1) or (number == 0 and not or_zero):
        msg = f"{name}: must be a power of two{' or 0' if or_zero else ''}, found {value}"
        raise InputError(msg)
    return number


def _divisions(name: str, value: str) -> tuple[int, ...]:
    if not value.startswith("["):
        return (_power_of_two(name, value, or_zero=False),) * _NUM_INTERVALS
    divisions = [0] * _NUM_INTERVALS
    last, is_first = 0, True
    for entry in filter(None, value[1:-1].removesuffix(",").split(",")):
        boundary, colon, number_text = entry.partition(":")
        if not colon:
            msg = f"{name}: must be a list such as [256:1,512:2,>:8], found {value}"
            raise InputError(msg)
        number = _power_of_two(name, number_text, or_zero=True)
        if boundary == ">":
            divisions[last + 1 :] = [number] * (_NUM_INTERVALS - last - 1)
            continue
        megabytes = _power_of_two(name, boundary, or_zero=False)
        last = min(megabytes.bit_length() - 1, _NUM_INTERVALS - 1)
        if is_first:
            divisions[:last] = [number] * last
        divisions[last], is_first = number, False
    return tuple(divisions)


def _with_large_segment(settings: AllocatorSettings, name: str, value: str) -> AllocatorSettings:
    num_bytes = _mebibytes(name, value, least=_SMALLEST_LARGE_SEGMENT_MB)
    return replace(settings, large_segment_bytes=num_bytes, max_non_split_rounding_bytes=num_bytes)


def _with_max_split(settings: AllocatorSettings, name: str, value: str) -> AllocatorSettings:
    least = settings.large_segment_bytes // MIB
    return replace(settings, max_split_bytes=_mebibytes(name, value, least=least))


def _with_rounding(settings: AllocatorSettings, name: str, value: str) -> AllocatorSettings:
    least = settings.large_segment_bytes // MIB
    return replace(settings, max_non_split_rounding_bytes=_mebibytes(name, value, least=least))


def _with_divisions(settings: AllocatorSettings, name: str, value: str) -> AllocatorSettings:
    return replace(settings, roundup_power2_divisions=_divisions(name, value))


def _with_threshold(settings: AllocatorSettings, name: str, value: str) -> AllocatorSettings:
    threshold = _fraction(name, value)
    if not 0 < threshold < 1:
        msg = f"{name}: must be above 0 and below 1, found {value}"
        raise InputError(msg)
    return replace(settings, garbage_collection_threshold=threshold)


def _with_fraction(settings: AllocatorSettings, name: str, value: str) -> AllocatorSettings:
    fraction = _fraction(name, value)
    if not 0 <= fraction <= 1:
        msg = f"{name}: must be from 0 to 1, found {value}"
        raise InputError(msg)
    return replace(settings, per_process_memory_fraction=fraction)


def _with_expandable(settings: AllocatorSettings, name: str, value: str) -> AllocatorSettings:
    if value not in ("True", "False"):
        msg = f"{name}: must be True or False, found {value!r}"
        raise InputError(msg)
    return replace(settings, expandable_segments=value == "True")


def _simulated_if(expected: str) -> Callable[[AllocatorSettings, str, str], AllocatorSettings]:
    def check(settings: AllocatorSettings, name: str, value: str) -> AllocatorSettings:
        if value != expected:
            msg = f"{name}: only {expected} is simulated, found {value!r}"
            raise InputError(msg)
        return settings

    return check


_READERS: Mapping[str, Callable[[AllocatorSettings, str, str], AllocatorSettings]] = {
    _LARGE_SEGMENT: _with_large_segment,
    "max_split_size_mb": _with_max_split,
    "max_non_split_rounding_mb": _with_rounding,
    "roundup_power2_divisions": _with_divisions,
    "garbage_collection_threshold": _with_threshold,
    "per_process_memory_fraction": _with_fraction,
    "expandable_segments": _with_expandable,
    "backend": _simulated_if("native"),
    "throw_on_cudamalloc_oom": _simulated_if("False"),
}
