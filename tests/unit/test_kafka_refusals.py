"""The sentence for a Kafka broker that cannot be used."""

from __future__ import annotations

import pytest
from aiokafka import errors

from sluice.streams.kafka_refusals import explained

OPTIONS = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": "open-sesame",
}


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (errors.SaslAuthenticationFailed("Invalid username or password"), "the user 'alice' or the password"),
        (errors.UnsupportedSaslMechanismError(), "sasl.mechanism=PLAIN"),
        (errors.IllegalSaslStateError(), "takes no password"),
        (errors.KafkaConnectionError("closed"), "security.protocol=SASL_PLAINTEXT"),
        (OSError(111, "Connection refused"), "Connection refused"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_the_cause_is_named_and_the_password_is_not(error: Exception, named: str) -> None:
    found = explained(error, OPTIONS)
    assert named in found
    assert "open-sesame" not in found
