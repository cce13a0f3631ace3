"""The MLflow store: where it is, opening it once and safely, and showing it."""

from __future__ import annotations

import fcntl
import getpass
import logging
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies

from search.errors import MachineError
from search.tracking import pages, views

if TYPE_CHECKING:
    from mlflow import MlflowClient

URI_VARIABLE = "MLFLOW_TRACKING_URI"
_SQLITE = "sqlite:///"
_DEFAULT_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
_LONGEST = 300

BUSY_SECONDS = 10.0
"""How long another process may hold a store before it counts as unusable."""

_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # 7 would hold the record up for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def store_uri(uri: str | None = None) -> str:
    """The absolute URI of the store: the given one, `MLFLOW_TRACKING_URI`, or `mlflow.db` here.

    Raises:
        MachineError: when MLflow itself would read another store here, an older `mlruns` folder.
    """
    chosen = uri or os.environ.get(URI_VARIABLE)
    if not chosen:
        _refuse_file_store(Path("mlruns"))
        chosen = f"{_SQLITE}mlflow.db"
    if not chosen.startswith(_SQLITE):
        return chosen
    path, mark, options = chosen.removeprefix(_SQLITE).partition("?")
    return f"{_SQLITE}{Path(path).absolute()}{mark}{options}"


def _refuse_file_store(folder: Path) -> None:
    """Source: MLflow 3.17, tracking/_tracking_service/utils.py, `_has_existing_mlruns_data`."""
    if not any(found.parent.name.isdigit() for found in folder.glob("*/meta.yaml")):
        return
    msg = (
        f"{folder.absolute()}: holds runs in MLflow's old format, which hides a new store beside it"
        f" (set {URI_VARIABLE}=sqlite:///mlflow.db, or convert it: mlflow migrate-filestore"
        " --source mlruns --target sqlite:///mlflow.db and move the folder away)"
    )
    raise MachineError(msg)


def open_client(uri: str) -> MlflowClient:
    """A client of the store at `uri`, created and migrated if it is new.

    Raises:
        MachineError: when it cannot be reached or written.
    """
    _quieten()
    _check_reachable(uri)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # MLflow's use of SQLAlchemy
        return _new_client(uri)


def _new_client(uri: str) -> MlflowClient:
    with store_faults(uri), _alone(uri):
        from mlflow import MlflowClient

        return MlflowClient(uri)


@contextmanager
def store_faults(uri: str) -> Iterator[None]:
    """Turns what MLflow raises about a store into a MachineError that names it."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except (MlflowException, OSError) as error:
        raise _unusable(uri, error) from error


def _unusable(uri: str, error: Exception) -> MachineError:
    return MachineError(
        f"MLflow store {without_password(uri)}: {first_line(error)}"
        f" (mend it, or set {URI_VARIABLE} to another store)"
    )


def without_password(uri: str) -> str:
    """The URI as it may be shown: `postgresql://user:***@host/name`."""
    return re.sub(r"(?<=://)([^/@:]*):[^/@]*@", r"\1:***@", uri)


def first_line(error: BaseException) -> str:
    """What an error says: its cause, without the pages that drivers put round it."""
    line = next(iter(str(error).strip().splitlines()), "") or repr(error)
    line = line.rpartition("Caused by ")[2]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _quieten() -> None:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


def _check_reachable(uri: str) -> None:
    """Finds in seconds what MLflow would retry for minutes."""
    try:
        if uri.startswith(_SQLITE):
            _check_sqlite(_sqlite_path(uri))
        else:
            _check_server(uri)
    except (OSError, sqlite3.Error) as error:
        raise _unusable(uri, error) from error


def _sqlite_path(uri: str) -> Path:
    return Path(uri.removeprefix(_SQLITE).partition("?")[0])


def _check_sqlite(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("CREATE TABLE paretune_probe (x)")
        connection.execute("ROLLBACK")


def _check_server(uri: str) -> None:
    parts = urlsplit(uri)
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme.partition("+")[0])
    if port and parts.hostname and parts.scheme not in getproxies():
        socket.create_connection((parts.hostname, port), timeout=10).close()


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Holds a lock on the store's folder: two that create one SQLite store at once destroy it."""
    if not uri.startswith(_SQLITE):
        yield
        return
    folder = os.open(_sqlite_path(uri).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def open_experiment(client: MlflowClient, name: str) -> str:
    """The id of the experiment of that name, created if there is none.

    Raises:
        MachineError: when it lies in MLflow's bin.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except MlflowException:  # another sweep of this name was a moment faster
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.lifecycle_stage != "active":
        msg = (
            f"MLflow experiment {name!r} was deleted (mlflow experiments restore"
            f" --experiment-id {found.experiment_id}, or give the sweep another name)"
        )
        raise MachineError(msg)
    return str(found.experiment_id)


def user_name() -> str:
    """Who records, as the system knows them."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


def sweep_url(uri: str, name: str | None = None, *, port: int = 5000) -> str:
    """Where a browser shows a sweep, or everything: at the server, or at `serve_ui` here.

    Raises:
        MachineError: when the store cannot be reached.
    """
    client = open_client(uri)
    with store_faults(uri):
        found = client.get_experiment_by_name(name) if name else None
    if found is None:
        return pages.base_url(uri, port)
    view = views.latest_view(found.tags)
    return pages.experiment_url(uri, str(found.experiment_id), view=view, port=port)


def _require_free_port(port: int) -> None:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            msg = (
                f"port {port} on 127.0.0.1 cannot be used: {error.strerror} (give another: --port)"
            )
            raise MachineError(msg) from error


def serve_ui(uri: str, *, port: int = 5000) -> int:
    """Runs MLflow's own UI on 127.0.0.1 until it is interrupted; its exit status.

    A store that is a server needs none: returns 0 at once.

    Raises:
        MachineError: when the port is taken, or the store cannot be reached.
    """
    if uri.startswith("http"):
        return 0
    _require_free_port(port)
    open_client(uri)
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri]
    command += ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with subprocess.Popen(command, env=environment) as process:  # noqa: S603 - our own interpreter
        before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            return 0
        finally:
            signal.signal(signal.SIGTERM, before)
