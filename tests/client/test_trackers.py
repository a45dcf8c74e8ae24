"""Variables of experiment trackers: a job gets those of its submitter's environment, and keys as secrets."""

from __future__ import annotations

import pytest

from jupyter_gpu_quota.client.trackers import PATTERNS_VARIABLE, tracker_variables, with_tracker_variables
from jupyter_gpu_quota.wire import MAX_TEXT

PATTERNS = {PATTERNS_VARIABLE: "MLFLOW_*,WANDB_*"}


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        pytest.param("MLFLOW_TRACKING_URI", "https://mlflow.example.org", "variable", id="an address"),
        pytest.param("MLFLOW_TRACKING_URI", "https://ann:pw@mlflow.example", "secret", id="a password in an address"),
        pytest.param("MLFLOW_TRACKING_TOKEN", "t", "secret", id="a token"),
        pytest.param("MLFLOW_TRACKING_PASSWORD", "p", "secret", id="a password"),
        pytest.param("WANDB_API_KEY", "k", "secret", id="a key"),
        pytest.param("WANDB_PROJECT", "digits", "variable", id="a name of a project"),
        pytest.param("AWS_SECRET_ACCESS_KEY", "k", None, id="a variable that no pattern names"),
        pytest.param("mlflow_uri", "x", None, id="small letters"),
        pytest.param("MLFLOW_A.B", "x", None, id="a name that no job can have"),
    ],
)
def test_a_variable_of_the_environment(name: str, value: str, kind: str | None) -> None:
    plain, secrets = tracker_variables({**PATTERNS, name: value})
    assert (plain.get(name), secrets.get(name)) == (
        value if kind == "variable" else None,
        value if kind == "secret" else None,
    )


def test_outside_a_notebook_of_the_hub_nothing_is_passed() -> None:
    assert tracker_variables({"MLFLOW_TRACKING_URI": "x"}) == ({}, {})


def test_what_a_request_names_itself_stays() -> None:
    environment = {**PATTERNS, "WANDB_MODE": "online", "WANDB_API_KEY": "mine", "WANDB_PROJECT": "a"}
    given = {"variables": {"WANDB_MODE": "offline", "WANDB_API_KEY": "shown"}, "secrets": {"OTHER": "s"}}
    found = with_tracker_variables(given, environment)
    assert found == {
        "variables": {"WANDB_PROJECT": "a", "WANDB_MODE": "offline", "WANDB_API_KEY": "shown"},
        "secrets": {"OTHER": "s"},
    }


def test_without_any_the_request_is_unchanged() -> None:
    assert with_tracker_variables({"gpu": "1"}, {}) == {"gpu": "1"}


def test_variables_that_are_too_long_for_a_request_are_left_out() -> None:
    environment = {**PATTERNS, "MLFLOW_NOTE": "x" * MAX_TEXT}
    assert with_tracker_variables({"gpu": "1"}, environment) == {"gpu": "1"}
