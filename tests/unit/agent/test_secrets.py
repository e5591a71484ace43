from __future__ import annotations

import os
from pathlib import Path

import pytest

from containers.secrets import LONGEST, resolve_secrets
from sluice.core.errors import BadSettings


def test_references_become_the_secrets_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "orders-db").mkdir()
    (tmp_path / "orders-db" / "password").write_text("from kubernetes\n")
    (tmp_path / "file").write_bytes(b"from file\r\n")
    config = {"a": "secret:env:DB", "b": f"secret:file:{tmp_path}/file", "c": "secret:k8s:orders-db/password", "d": "plain"}
    found = resolve_secrets(config, {"DB": "from environment"}, tmp_path)
    assert found.values == {"a": "from environment", "b": "from file", "c": "from kubernetes", "d": "plain"}
    assert found.secret == {"a", "b", "c"}


def test_a_secret_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="config a refers to the variable DB"):
        resolve_secrets({"a": "secret:env:DB"}, {}, tmp_path)
    with pytest.raises(BadSettings, match=r"config a refers to the secret .*/db/password, which cannot be read: No such file"):
        resolve_secrets({"a": "secret:k8s:db/password"}, {}, tmp_path)


def test_a_file_that_is_no_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (LONGEST + 1))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, reason in (("large", "larger than"), ("binary", "not UTF-8")):
        with pytest.raises(BadSettings, match=reason):
            resolve_secrets({"a": f"secret:file:{tmp_path / name}"}, os.environ, tmp_path)
