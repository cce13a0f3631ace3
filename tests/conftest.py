"""What every test starts from: no setting of the person's own, and properties without a clock."""

import tempfile
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("paretune", deadline=None, derandomize=True)
settings.load_profile("paretune")

_SETTINGS = ("PARETUNE_HOME", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "RAY_ADDRESS")


@pytest.fixture(autouse=True, scope="session")
def no_personal_settings() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environment:
        for name in _SETTINGS:
            environment.delenv(name, raising=False)
        with tempfile.TemporaryDirectory(prefix="slots") as slots:  # of a sweep that runs beside
            environment.setenv("PARETUNE_SLOTS", slots)
            yield
