"""`sluice.attach` before it reaches Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import sluice
from containers.attached.app import CannotAttach, check_version, is_observed
from sluice.core.errors import BadName


def test_a_session_of_spark_connect_cannot_be_attached() -> None:
    session: Any = object()
    with pytest.raises(CannotAttach, match="Spark Connect"):
        sluice.attach(session, job="orders")


@pytest.mark.parametrize("version", ["3.4.4", "4.4.0", "5.0.0-preview1"])
def test_a_spark_that_was_not_tried_cannot_be_attached(version: str) -> None:
    session: Any = SimpleNamespace(_jsparkSession=None, version=version)
    with pytest.raises(CannotAttach, match=rf"this is Spark {version}, and sluice\.attach works with Spark 3\.5 to 4\.3"):
        sluice.attach(session, job="orders")


@pytest.mark.parametrize("version", ["3.5.0", "3.5.4-amzn-0", "4.0.1", "4.2.0", "4.3.0-SNAPSHOT"])
def test_the_versions_of_the_matrix_can_be_attached(version: str) -> None:
    check_version(version)


def test_a_job_needs_a_name_that_can_be_stored() -> None:
    session: Any = object()
    with pytest.raises(BadName):
        sluice.attach(session, job="orders of today")


def test_notebooks_interpreters_and_hosted_drivers_are_only_observed() -> None:
    assert is_observed({}, {}, interactive=True)
    assert is_observed({}, {"ipykernel": object()}, interactive=False)
    assert is_observed({"DATABRICKS_RUNTIME_VERSION": "18.0"}, {}, interactive=False)
    assert not is_observed({"HOME": "/root"}, {"json": object()}, interactive=False)
