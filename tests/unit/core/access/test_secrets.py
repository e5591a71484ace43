from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.access.secrets import SecretReference, Source, check_secrets, parse_reference
from sluice.core.errors import BadConfig


@pytest.mark.parametrize(
    ("value", "reference"),
    [
        ("secret:env:DB_PASSWORD", SecretReference(Source.ENVIRONMENT, "DB_PASSWORD")),
        ("secret:file:/run/secrets/db", SecretReference(Source.FILE, "/run/secrets/db")),
        ("secret:k8s:orders-db/password", SecretReference(Source.KUBERNETES, "orders-db/password")),
        ("secretary", None),
        ("", None),
    ],
)
def test_references_are_read(value: str, reference: SecretReference | None) -> None:
    assert parse_reference("db", value) == reference


@pytest.mark.parametrize(
    "value",
    [
        "secret:",
        "secret:env:",
        "secret:env:A B",
        "secret:file:relative",
        "secret:k8s:one",
        "secret:k8s:a/b/c",
        "secret:k8s:../other/key",
        "secret:k8s:a/..",
        "secret:vault:a",
    ],
)
def test_a_malformed_reference_is_refused_with_the_accepted_forms(value: str) -> None:
    with pytest.raises(BadConfig, match="config db: a reference to a secret is secret:env:NAME"):
        check_secrets({"db": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.hadoop.fs.s3a.secret.key", "hunter2hunter2"),
        ("db.password", "hunter2hunter2"),
        ("apiToken", "hunter2hunter2"),
        ("spark.ssl.keyStorePassword", "hunter2hunter2"),
        ("db.url", "postgresql://app:hunter2hunter2@db/orders"),
        ("options", 'org.example.LoginModule required password="hunter2hunter2";'),
        ("note", "sluice-t.hunter2hunter2"),
        ("key", "-----BEGIN RSA PRIVATE KEY-----hunter2hunter2"),
    ],
)
def test_a_value_that_looks_like_a_secret_is_refused_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(BadConfig, match=f"config {name} looks like a secret") as refused:
        check_secrets({name: value})
    assert "hunter2" not in str(refused.value)
    check_secrets({name: "secret:env:VALUE"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.shuffle.partitions", "4"),
        ("max.token", "100"),
        ("spark.io.encryption.useSecret", "true"),
        ("db.url", "postgresql://app@db/orders"),
        ("db.password", ""),
        ("tokens.per.second", "one"),
    ],
)
def test_other_values_pass(name: str, value: str) -> None:
    check_secrets({name: value})


@given(st.text(), st.text())
def test_any_text_is_accepted_or_refused(name: str, value: str) -> None:
    try:
        check_secrets({name: value})
    except BadConfig:
        return
    assert parse_reference(name, value) is None or value.startswith("secret:")
