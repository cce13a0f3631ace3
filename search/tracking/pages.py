"""Where a browser shows what is in a store."""

from __future__ import annotations

_TRAINING_MENU = "workflowType=machine_learning"
"""Opens MLflow 3.17's page with the menu for training; its default is the one for chat models."""


def experiment_url(uri: str, experiment_id: str, *, view: str = "", port: int = 5000) -> str:
    """The runs of an experiment, as one of its views shows them: at its server, or at `serve_ui`.

    Args:
        uri: of the store.
        experiment_id: whose runs.
        view: a key that `search.tracking.views` gives; default: all runs in MLflow's own way.
        port: where `serve_ui` listens.
    """
    shown = f"&viewStateShareKey={view}" if view else ""
    return f"{base_url(uri, port)}/#/experiments/{experiment_id}/runs?{_TRAINING_MENU}{shown}"


def run_url(uri: str, experiment_id: str, run_id: str, *, port: int = 5000) -> str:
    """One run."""
    return f"{base_url(uri, port)}/{run_link(experiment_id, run_id)}"


def run_link(experiment_id: str, run_id: str) -> str:
    """One run, from within MLflow's pages."""
    return f"#/experiments/{experiment_id}/runs/{run_id}?{_TRAINING_MENU}"


def base_url(uri: str, port: int) -> str:
    """The server of a store, or `serve_ui` on this machine."""
    return uri.rstrip("/") if uri.startswith("http") else f"http://127.0.0.1:{port}"
