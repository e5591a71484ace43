"""Why no broker of a Kafka cluster can be used. The bootstrap of aiokafka only logs this."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from aiokafka import errors
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.protocol.metadata import MetadataRequest

_REFUSED = (errors.SaslAuthenticationFailed, errors.AuthenticationFailedError, errors.AuthenticationMethodNotSupported)


async def refusal(arguments: Mapping[str, Any], within: timedelta) -> str:
    """Connect to one of the brokers again, for at most `within`. Returns what is wrong and the remedy; "" if the connection now succeeds.
    `arguments`: keyword arguments for the clients of aiokafka. The text has the name of the user, and never the password."""
    options = {name: value for name, value in arguments.items() if name != "bootstrap_servers"}
    host, port, _ = collect_hosts(arguments["bootstrap_servers"], randomize=False)[0]
    try:
        async with asyncio.timeout(within.total_seconds()):
            connection = await create_conn(host, port, request_timeout_ms=int(within.total_seconds() * 1000), **options)
            try:
                await connection.send(MetadataRequest([]))
            finally:
                connection.close()
    except (errors.KafkaError, OSError) as error:  # a TimeoutError is an OSError
        return explained(error, options)
    return ""


def explained(error: Exception, options: Mapping[str, Any]) -> str:
    """One sentence: what the broker refuses, and the remedy."""
    protocol, user = options["security_protocol"], options.get("sasl_plain_username", "")
    if isinstance(error, _REFUSED):
        return f"it refuses the user {user!r} or the password: correct sasl.jaas.config in the file of SLUICE_KAFKA_PROPERTIES"
    if isinstance(error, errors.UnsupportedSaslMechanismError):
        return f"it does not support sasl.mechanism={options['sasl_mechanism']}: correct it in the file of SLUICE_KAFKA_PROPERTIES"
    if isinstance(error, errors.IllegalSaslStateError):
        return f"it takes no password: correct security.protocol={protocol} in the file of SLUICE_KAFKA_PROPERTIES"
    if not isinstance(error, errors.KafkaConnectionError):
        return f"cannot connect ({str(error) or type(error).__name__}): check the address and that the broker runs"
    return f"it closes connections with security.protocol={protocol}: if it needs TLS or a password, set it in SLUICE_KAFKA_PROPERTIES"
