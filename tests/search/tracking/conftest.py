from __future__ import annotations

import shutil

import pytest

from search.tracking.store import open_client


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A migrated store without experiments of ours: creating one takes seconds, copying it none."""
    folder = tmp_path_factory.mktemp("store")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        open_client(f"sqlite:///{folder}/mlflow.db")
    return folder / "mlflow.db"


@pytest.fixture
def store(empty_store, tmp_path, monkeypatch):
    """The URI of a store of its own in the working folder, as `paretune` finds it there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path}/mlflow.db"
