"""GPUs: those known, those here, what was measured on them, and measuring: devices."""

from __future__ import annotations

from dataclasses import asdict

from search.errors import InputError
from search.memory.catalogue import devices_known
from search.memory.contexts import measured_contexts
from search.memory.gpu_names import nearest
from search.memory.nvml import gpus_here
from search.pipeline.screen import console, print_json, say
from search.screens import devices_text, gpu_here_line, measured_line
from search.units import parse_bytes


def devices(name_part: str, *, memory: str | None, as_json: bool) -> None:
    """Prints the GPUs whose names have the words of a text, and what this machine knows itself."""
    least_bytes = parse_bytes(memory) if memory else 0
    known = list(devices_known(name_part, least_bytes=least_bytes))
    if not known:
        raise InputError(_none_found(name_part, memory))
    here, measured = gpus_here(), measured_contexts()
    if as_json:
        print_json(
            {
                "devices": [asdict(device) for device in known],
                "here": [asdict(gpu) for gpu in here],
                "measured": [asdict(one) for one in measured],
            }
        )
        return
    say(devices_text(known))
    for line in (*map(gpu_here_line, here), *map(measured_line, measured)):
        say(line)
    if not here:
        say("here: no NVIDIA GPU that a driver shows")


def measure(*, as_json: bool) -> None:
    """Measures the context of the GPU that is here, in a process of its own, and remembers it."""
    from search.memory.context_measurement import measure_context

    with console.status("measuring what a process takes of the GPU (half a minute)"):
        found = measure_context()
    if as_json:
        print_json(asdict(found))
    else:
        say(measured_line(found))


def _none_found(name_part: str, memory: str | None) -> str:
    size = f" with {memory} or more" if memory else ""
    near = ", ".join(repr(name) for name in nearest(name_part))
    hint = f" (near it: {near})" if near else " (all of them: paretune devices)"
    return f"no GPU is known by {name_part!r}{size}{hint}"
