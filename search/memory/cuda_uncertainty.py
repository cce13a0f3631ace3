"""What cuDNN asks for inside is its own secret: a stated size, and how far it may be off."""

from __future__ import annotations

from collections.abc import Iterable

from search.memory.target import Unsure


def total(uncertain: Iterable[Unsure]) -> Unsure:
    """Bytes by which a peak may be below or above what was traced, at most.

    Args:
        uncertain: that of each call of a run.
    """
    once, kept = Unsure(0, 0), Unsure(0, 0)
    for below, above, adds_up in uncertain:
        if adds_up:
            kept = Unsure(kept.below_bytes + below, kept.above_bytes + above)
        else:
            once = Unsure(max(once.below_bytes, below), max(once.above_bytes, above))
    return Unsure(once.below_bytes + kept.below_bytes, once.above_bytes + kept.above_bytes)
