"""Which GPU a name means, however people, shops and drivers write it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from search.errors import InputError
from search.memory.gpu_list import Gpu, gpus, others
from search.memory.gpu_totals import LEAST_SHARE
from search.memory.mig import Slice, profiles, slice_in

_MEANT = {
    "a100 pg509 200": "A100 SXM4 40 GB",
    "gh200 480gb": "GH200 96 GB",
    "h100": "H100 SXM5 80 GB",
    "h100 pcie": "H100 PCIe 80 GB",
    "h100 sxm": "H100 SXM5 80 GB",
    "h100 sxm5": "H100 SXM5 80 GB",
    "h200": "H200 SXM 141 GB",
    "v100 32gb": "Tesla V100 SXM2 32 GB",
}
"""Names whose meaning their words do not give: those that drivers print (480 GB is the memory of
the GH200's CPU, a bare H200 is the SXM module), and the form that is meant where none is named."""

_BRANDS = {
    *("nvidia", "geforce", "tesla", "amd", "radeon", "intel"),
    *("generation", "graphics", "workstation", "edition"),
}
_ONLY_WHEN_SAID = {
    *("mobile", "maxq", "embedded", "oem", "refresh", "passive"),
    *("grid", "drive", "cnx"),
}
"""Words of variants that nobody means without saying so."""

_REWRITES = (
    (re.compile(r"\(tm\)|\(r\)|™|®"), " "),
    (re.compile(r"[^a-z0-9.+]+"), " "),
    (re.compile(r"\b(\d+) ?gi?b\b"), r"\1gb"),
    (re.compile(r"\b(rtx|gtx|quadro|tesla|geforce)(?=[a-z]?\d)"), r"\1 "),
    (re.compile(r"(?<=\d)(ti|super|d)\b"), r" \1"),
    (re.compile(r"\bmax q\b"), "maxq"),
    (re.compile(r"\b(laptop|notebook)( gpu)?\b"), "mobile"),
    (re.compile(r"\bgpu\b"), " "),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A GPU beside the words of its name, and those that may be added to it."""

    gpu: Gpu
    words: frozenset[str]
    may_add: frozenset[str]

    @property
    def needed(self) -> frozenset[str]:
        """The words that tell it from other GPUs but for its memory."""
        return _core(self.words - self.may_add)

    @property
    def unsaid(self) -> frozenset[str]:
        """Its words that nobody leaves out."""
        return self.words & _ONLY_WHEN_SAID


def gpu_named(name: str, *, total_bytes: int | None = None) -> tuple[Gpu, Slice | None]:
    """The GPU that a name means, and the MIG slice of it where the name tells one.

    Capitals, spaces, dashes and the maker's names do not matter. Of variants that have the same
    memory and architecture, the first released is meant, and of those the fastest.

    Args:
        name: such as `RTX 4090`, `a100-sxm4-80gb` or `A100 40GB MIG 3g.20gb`.
        total_bytes: the memory its driver reports, which tells models apart that share a name.

    Raises:
        InputError: with the nearest names, when it means no GPU, several, or one without CUDA.
        MachineError: when the catalogue is not installed.
    """
    rest, part = slice_in(name)

    def suits(gpu: Gpu) -> bool:
        if part is not None:
            return part.profile in profiles(gpu)
        return total_bytes is None or LEAST_SHARE <= total_bytes / gpu.memory_bytes <= 1

    found = next(filter(None, (list(filter(suits, stage)) for stage in _stages(rest, part))), [])
    if not found:
        raise InputError(_unknown(name, rest, part))
    if len({(gpu.memory_bytes, gpu.architecture) for gpu in found}) > 1:
        names = ", ".join(repr(gpu.name + (f" {part.label}" if part else "")) for gpu in found[:8])
        msg = f"{name!r} may be any of {names} (name one of them)"
        raise InputError(msg)
    return min(found, key=lambda gpu: (gpu.released, -(gpu.bandwidth_bytes_per_second or 0))), part


def _stages(text: str, part: Slice | None) -> Iterator[Iterator[Gpu]]:
    """The GPUs a name may mean, in stages, each less strict than the one before.

    First those a name stands for by custom; then those with the same words; the same but for
    brands; the same but for the size and kind of memory; at last those that have all the words
    and more. A slice may stand alone: then all GPUs are meant.
    """
    words = _words(text)
    asked, core = frozenset(words), _core(words)
    if not core and (asked or part is None):
        return
    meant = _MEANT.get(_plain(text))
    yield (gpu for gpu in gpus() if gpu.name == meant)
    yield (entry.gpu for entry in _entries() if entry.words == asked)
    yield (entry.gpu for entry in _entries() if _core(entry.words) == core)
    yield (entry.gpu for entry in _entries() if _agrees(core, entry) and core >= entry.needed)
    yield (entry.gpu for entry in _entries() if _agrees(core, entry) and entry.unsaid <= asked)


def _agrees(core: frozenset[str], entry: _Entry) -> bool:
    """Whether all that is asked is of the GPU: `sxm` stands for each of its kinds."""
    left = core - entry.words - entry.may_add
    return all(word == "sxm" and any(w.startswith("sxm") for w in entry.words) for word in left)


def _core(words: Iterable[str]) -> frozenset[str]:
    """The words that count: a number tells its line, `RTX` or `GTX`, but a TITAN has none."""
    core = frozenset(words) - _BRANDS
    return core if "titan" in core else core - {"rtx", "gtx"}


@cache
def _entries() -> tuple[_Entry, ...]:
    return tuple(
        _Entry(
            gpu=gpu,
            words=frozenset(_words(gpu.name)),
            may_add=frozenset({f"{gpu.num_gb}gb", gpu.memory_type.lower()}),
        )
        for gpu in gpus()
    )


def _words(text: str) -> list[str]:
    text = text.lower()
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return text.split()


def _unknown(name: str, rest: str, part: Slice | None) -> str:
    """Why a name means no GPU, and which are near."""
    without_slice = next((gpu for stage in _stages(rest, None) for gpu in stage), None)
    if part and without_slice:
        known = ", ".join(profiles(without_slice)) or "none"
        return f"{without_slice.name} has no slice {part.profile} (its slices: {known})"
    asked = _core(_words(rest))
    unusable = [other for other in others() if asked and asked <= _core(_words(other))]
    if unusable:
        other = min(unusable, key=len)
        return f"{name!r} cannot be used: {other} {others()[other]}"
    near = ", ".join(repr(other) for other in nearest(rest))
    hint = f"near it: {near}; " if near else ""
    return f"{name!r} is no GPU that is known ({hint}all of them: paretune devices)"


def nearest(text: str) -> tuple[str, ...]:
    """The names most like a text, at most four."""
    plain = {_plain(gpu.name): gpu.name for gpu in gpus()}
    return tuple(plain[name] for name in get_close_matches(_plain(text), plain, n=4, cutoff=0.5))


def has_words(gpu: Gpu, text: str) -> bool:
    """Whether a GPU's name has all the words of a text, or words that contain them."""
    asked = [word for word in _words(text) if word not in {"nvidia", "mig"}]
    return not asked or all(word in _plain(gpu.name) for word in asked)


def _plain(text: str) -> str:
    return " ".join(word for word in _words(text) if word not in _BRANDS)
