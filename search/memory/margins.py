"""The interval of one device's predictions, which learns from each trial that ends."""

from __future__ import annotations

import platform
from contextlib import suppress
from dataclasses import replace

import torch

from search.memory.calibration import Calibration
from search.memory.device import Device
from search.memory.priors import prior
from search.memory.residuals import SCALES, Residual, ResidualStore, Setting
from search.results import PredictedMemory


def setting_of(device: Device) -> Setting:
    """What errors measured on a device must share to say anything of each other."""
    return Setting(
        device=device.name,
        kind=device.kind,
        driver=platform.release() if device.kind == "cpu" else device.driver or "unknown",
        torch_version=torch.__version__,
    )


class Margins:
    """How far above and below a prediction a run may lie, for an accepted risk."""

    def __init__(self, device: Device, *, risk: float, store: ResidualStore | None = None) -> None:
        """Reads what was measured on this device before.

        Args:
            device: what is predicted for.
            risk: accepted probability that a run needs more than `high`.
            store: where its errors are kept; default: the user's cache folder.
        """
        self._kind = device.kind
        self._risk = risk
        self._store = store or ResidualStore(setting_of(device))
        self._prior, self._seen = prior(device.kind), list(self._store.read())
        self._calibration = self._calibrated()

    def _calibrated(self) -> Calibration:
        return Calibration(self._prior, self._seen, self._risk, SCALES[self._kind])

    def applied(self, predicted: PredictedMemory) -> PredictedMemory:
        """A prediction with the interval that the risk asks for.

        On a GPU what its mechanism leaves open, the context and cuDNN's workspaces, comes on top:
        the errors seen so far are of other models and, it may be, of another context.
        """
        low_bytes, high_bytes = self._calibration.interval(predicted.expected_bytes)
        if self._kind == "cuda":
            low_bytes -= predicted.expected_bytes - predicted.low_bytes
            high_bytes += predicted.high_bytes - predicted.expected_bytes
        return replace(predicted, low_bytes=max(0, low_bytes), high_bytes=high_bytes)

    def learn(self, residual: Residual, *, trial: str) -> None:
        """Takes one run's error into account, for this sweep and later ones."""
        self._seen.append(residual)
        self._calibration = self._calibrated()
        with suppress(OSError):  # where nothing can be kept, later sweeps start without it
            self._store.add(residual, trial=trial)

    def explain(self) -> str:
        """One sentence: the margin now, and from how many trials it comes."""
        return self._calibration.explain()
