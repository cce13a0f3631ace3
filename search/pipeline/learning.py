"""A sweep whose trials train by themselves: what its memory is judged by, and how that is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from search.pipeline.screen import print_json, say
from search.units import format_bytes

if TYPE_CHECKING:
    from search.memory.device import Device
    from search.memory.learned_fit import LearnedFit
    from search.results import Trial
    from search.sweep.file import LoadedSweep
    from search.trials.placement import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class UntracedStage:
    """What a sweep of a function or a command is judged and run with, on the device here."""

    loaded: LoadedSweep
    device: Device
    slots: Slots
    fits: LearnedFit

    def learn(self, trials: Iterable[Trial]) -> None:
        """Takes trials of this sweep into account."""
        for trial in trials:
            self.fits.learn(trial)

    def explain(self) -> str:
        """What is known beforehand, and what is done about the rest."""
        from search.memory.learned_fit import NOT_PREDICTED

        sentence = f"{self.loaded.sweep.trained} is {NOT_PREDICTED}"
        if not self.fits.dimensions:
            return (
                f"{sentence}; memory.grows_with names no dimension, so nothing is refused "
                "(name those in which memory grows, such as `grows_with: [batch_size]`)"
            )
        names = ", ".join(self.fits.dimensions)
        return (
            f"{sentence}; its memory grows with {names}: the first trials go from small to large, "
            "and one that runs out of memory rules out all that is nowhere smaller"
        )

    def known(self) -> str:
        """What the trials so far tell, a line each; empty before there are any."""
        return "\n".join(self._known_lines())

    def _known_lines(self) -> Iterator[str]:
        seen = self.fits.observations
        measured = [each for each in seen if not each.ran_out]
        if measured:
            largest = max(measured, key=lambda each: each.num_bytes)
            yield (
                f"measured in {_trials(len(measured))}: up to {format_bytes(largest.num_bytes)}, "
                f"at {self.fits.sizes(largest.params)}"
            )
        for each in seen:
            if each.ran_out:
                size = format_bytes(each.num_bytes)
                yield f"ran out of {size}: {self.fits.sizes(each.params)}"

    def to_json(self) -> dict[str, Any]:
        """Plain values for `plan --json`."""
        from search.memory.learned_fit import NOT_PREDICTED

        return {
            "can_be_planned": False,
            "reason": f"{self.loaded.sweep.trained}: {NOT_PREDICTED}",
            "grows_with": list(self.fits.dimensions),
            "budget_bytes": self.slots.budget_bytes,
            "known": [
                {
                    "params": dict(each.params),
                    "measured_bytes": None if each.ran_out else each.num_bytes,
                    "ran_out_of_memory": each.ran_out,
                }
                for each in self.fits.observations
            ],
        }


def _trials(count: int) -> str:
    return f"{count} trial{'' if count == 1 else 's'}"


def untraced_stage(loaded: LoadedSweep, device: Device, slots: Slots) -> UntracedStage:
    """A stage that has learned nothing yet."""
    from search.memory.learned_fit import LearnedFit

    memory = loaded.sweep.memory
    return UntracedStage(
        loaded=loaded,
        device=device,
        slots=slots,
        fits=LearnedFit(
            memory.grows_with,
            budget_bytes=slots.budget_bytes,
            risk=memory.risk,
            kind=device.kind,
        ),
    )


def show_plan(stage: UntracedStage, *, as_json: bool) -> None:
    """Prints that nothing can be said beforehand, and what the sweep of this name told so far."""
    from search import home
    from search.pipeline.showing import ledger_of

    name = stage.loaded.sweep.name
    if name in home.names():
        stage.learn(ledger_of(home.open_home(name)).trials)
    if as_json:
        print_json(stage.to_json())
        return
    say(f"cannot be planned ahead: {stage.explain()}")
    say(stage.known() or f"no trial of {name} has told anything yet")
