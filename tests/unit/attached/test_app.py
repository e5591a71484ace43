"""`sluice.attach` before it reaches Spark."""

from __future__ import annotations

from typing import Any

import pytest

import sluice
from containers.attached.app import CannotAttach, is_observed
from sluice.core.errors import BadName


def test_a_session_of_spark_connect_cannot_be_attached() -> None:
    session: Any = object()
    with pytest.raises(CannotAttach, match="Spark Connect"):
        sluice.attach(session, job="orders")


def test_a_job_needs_a_name_that_can_be_stored() -> None:
    session: Any = object()
    with pytest.raises(BadName):
        sluice.attach(session, job="orders of today")


def test_notebooks_interpreters_and_hosted_drivers_are_only_observed() -> None:
    assert is_observed({}, {}, interactive=True)
    assert is_observed({}, {"ipykernel": object()}, interactive=False)
    assert is_observed({"DATABRICKS_RUNTIME_VERSION": "18.0"}, {}, interactive=False)
    assert not is_observed({"HOME": "/root"}, {"json": object()}, interactive=False)
