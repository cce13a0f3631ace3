from __future__ import annotations

from search.tracking.pages import experiment_url, run_link, run_url

MENU = "workflowType=machine_learning"


def test_a_store_that_is_a_server_shows_itself():
    assert experiment_url("http://h:1/", "7") == f"http://h:1/#/experiments/7/runs?{MENU}"
    assert run_url("https://h", "7", "a", port=9) == f"https://h/#/experiments/7/runs/a?{MENU}"


def test_a_store_in_a_file_is_shown_on_this_machine():
    here = "http://127.0.0.1:9/#/experiments/7/runs"
    assert run_url("sqlite:////x/mlflow.db", "7", "a", port=9) == f"{here}/a?{MENU}"
    shown = experiment_url("sqlite:////x/mlflow.db", "7", view="v-1", port=9)
    assert shown == f"{here}?{MENU}&viewStateShareKey=v-1"


def test_a_link_within_the_page_has_no_host():
    assert run_link("7", "a") == f"#/experiments/7/runs/a?{MENU}"
