from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys

import pytest

from search.errors import MachineError
from search.tracking.store import (
    open_client,
    open_experiment,
    serve_ui,
    store_uri,
    sweep_url,
    without_password,
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_default_store_is_mlflows_own_in_this_folder(here):
    assert store_uri() == f"sqlite:///{here}/mlflow.db"


def test_a_named_store_is_made_absolute(here, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///runs/my.db?timeout=5")
    assert store_uri() == f"sqlite:///{here}/runs/my.db?timeout=5"
    assert store_uri("http://host:1") == "http://host:1"
    assert store_uri("sqlite:////abs/x.db") == "sqlite:////abs/x.db"


def test_runs_in_the_old_format_would_hide_ours_and_are_refused(here):
    (here / "mlruns" / "1" / "models").mkdir(parents=True)
    assert store_uri()  # artifacts of a database store are no old runs
    (here / "mlruns" / "0").mkdir()
    (here / "mlruns" / "0" / "meta.yaml").touch()
    with pytest.raises(MachineError, match="migrate-filestore") as caught:
        store_uri()
    assert caught.value.exit_code == 3
    assert store_uri("sqlite:///mlflow.db")


def test_a_store_is_created_where_mlflow_would_look(store, tmp_path):
    client = open_client(store)
    found = open_experiment(client, "quick")
    assert open_experiment(client, "quick") == found
    assert client.get_experiment(found).artifact_location == f"{tmp_path}/mlruns/{found}"


@pytest.mark.parametrize(
    ("name", "says"),
    [("text.db", "file is not a database"), ("folder.db", "unable to open"), ("x/y.db", "x")],
)
def test_a_file_that_is_no_store_is_told_at_once(here, name, says):
    (here / "text.db").write_text("no database, but longer than a header of SQLite" * 9)
    (here / "folder.db").mkdir()
    (here / "x").touch()
    with pytest.raises(MachineError, match=says):
        open_client(f"sqlite:///{here}/{name}")


def test_a_store_that_another_process_holds_for_good_is_told(store, tmp_path, monkeypatch):
    monkeypatch.setattr("search.tracking.store.BUSY_SECONDS", 0.01)
    holder = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(MachineError, match="locked"):
        open_client(store)
    holder.close()


@pytest.mark.parametrize("scheme", ["http", "postgresql", "mysql+pymysql"])
def test_a_server_that_is_not_there_is_told_at_once(scheme):
    with pytest.raises(MachineError, match="Connection refused") as caught:
        open_client(f"{scheme}://me:secret@127.0.0.1:{free_port()}/x")
    assert "secret" not in str(caught.value)


def test_mlflows_own_refusals_are_told(here):
    with pytest.raises(MachineError, match="maintenance mode"):
        open_client(str(here / "runs"))


def test_a_deleted_experiment_is_not_written_to(store):
    client = open_client(store)
    client.delete_experiment(open_experiment(client, "quick"))
    with pytest.raises(MachineError, match="mlflow experiments restore"):
        open_experiment(client, "quick")


def test_a_sweeps_page_is_found_by_its_name(store):
    client = open_client(store)
    found = open_experiment(client, "quick")
    page = f"http://127.0.0.1:9/#/experiments/{found}/runs?workflowType=machine_learning"
    assert sweep_url(store, "quick", port=9) == page
    client.set_experiment_tag(
        found, "mlflow.sharedViewState.paretune-id-1", json.dumps({"createdAt": 1})
    )
    assert sweep_url(store, "quick", port=9) == f"{page}&viewStateShareKey=paretune-id-1"
    assert sweep_url(store, "other", port=9) == "http://127.0.0.1:9"
    assert sweep_url(store) == "http://127.0.0.1:5000"


def test_a_server_needs_no_ui_of_ours():
    assert serve_ui("http://127.0.0.1:1") == 0


def test_passwords_are_not_shown():
    assert without_password("postgresql://me:secret@host/x") == "postgresql://me:***@host/x"
    assert without_password("sqlite:////a/b@c.db") == "sqlite:////a/b@c.db"


@pytest.mark.campaign
def test_processes_that_create_one_store_at_once_all_find_it_whole(tmp_path):
    code = (
        "from search.tracking.store import open_client, open_experiment;"
        f"print(open_experiment(open_client('sqlite:///{tmp_path}/new.db'), 'quick'))"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=tmp_path)
        for _ in range(4)
    ]
    answers = {process.communicate(timeout=200)[0] for process in started}
    assert answers == {b"1\n"}
    assert [process.returncode for process in started] == [0] * 4
