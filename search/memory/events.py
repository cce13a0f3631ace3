"""What is booked of a run: storages that appear and go, in which phase, and what for."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from search.memory.formulas import Formula


class Phase(StrEnum):
    """What a run is doing. The optimizer's state appears in step 1, the steady peak in step 2.

    A longest batch is one apart where ordinary ones are shorter, a last one where it is smaller.
    Served is what was trained, once nothing of the training is left.
    """

    MODEL_CREATION = "model_creation"
    STEP_1 = "step_1"
    STEP_2 = "step_2"
    LONGEST_BATCH = "longest_batch"
    LAST_BATCH = "last_batch"
    EVALUATION = "evaluation"
    SERVING = "serving"


TRAINING_PHASES = (Phase.STEP_1, Phase.STEP_2, Phase.LONGEST_BATCH, Phase.LAST_BATCH)
"""Those of an optimizer step."""


class Part(StrEnum):
    """What a piece of memory is for."""

    PARAMETERS = "parameters"
    GATHERED = "gathered parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    INPUTS = "inputs"
    ACTIVATIONS = "activations"
    LOGITS = "logits"
    RECOMPUTED = "recomputed activations"
    TEMPORARIES = "temporaries"
    WORKSPACE = "workspace"


class Event(NamedTuple):
    """A storage that appears (`num_bytes` above 0) or goes (below 0), and the operator that did it.

    A storage that goes names the operator that ran last before. One whose size follows no
    polynomial has a `formula`, and may be empty: `Trace.all_events` alone has such events. A tuple,
    because there are thousands of them in every trace.
    """

    phase: Phase
    storage: int
    num_bytes: int
    operator: str
    part: Part
    formula: Formula | None = None


class Appearances:
    """Tells of events, given in order, which appear: a storage that is seen again goes."""

    def __init__(self) -> None:
        """Has seen nothing yet."""
        self._seen: set[int] = set()

    def __call__(self, event: Event) -> bool:
        """Whether its storage was not seen before; an empty block shows in no other way."""
        before = len(self._seen)
        self._seen.add(event.storage)
        return len(self._seen) > before
