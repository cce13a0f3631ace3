"""What cuDNN asks for inside is its own secret: a stated size, and how far it may be off."""

from __future__ import annotations

from search.memory.target import Unsure


class Uncertainty:
    """How far the memory of a whole run may lie beside what was traced."""

    def __init__(self) -> None:
        """Certain."""
        self._once, self._kept = Unsure(0, 0), Unsure(0, 0)

    def clear(self) -> None:
        """Certain again."""
        self._once, self._kept = Unsure(0, 0), Unsure(0, 0)

    def add(self, unsure: Unsure) -> None:
        """Takes one call into account."""
        if unsure.adds_up:
            below, above, _ = self._kept
            self._kept = Unsure(below + unsure.below_bytes, above + unsure.above_bytes)
        else:
            below, above, _ = self._once
            self._once = Unsure(max(below, unsure.below_bytes), max(above, unsure.above_bytes))

    @property
    def total(self) -> Unsure:
        """Bytes by which a peak may be below or above what was traced, at most."""
        return Unsure(
            self._once.below_bytes + self._kept.below_bytes,
            self._once.above_bytes + self._kept.above_bytes,
        )
