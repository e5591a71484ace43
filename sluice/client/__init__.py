"""The HTTP client for the coordinator's API.

`Client` and its asynchronous form `AsyncClient` are for programs of operators: docs/client.md has an example of each call. Both are in
`operators` and `blocking`. `coordinator` has what all clients share, and `agents` what containers call. `connection` decides which URL a
request is sent to, and when it is repeated.
"""

from sluice.client.blocking import Client
from sluice.client.connection import LOCAL, NO_RETRIES, RETRY_DELAY, URL, Retries, urls_of
from sluice.client.coordinator import (
    IDLE_CONNECTION,
    TOKEN,
    TOKEN_FILE,
    CoordinatorClient,
    EnvironmentToken,
    Refused,
    Served,
    actor_headers,
    sendable,
    until_answered,
    user_name,
)
from sluice.client.operators import HEAD, AsyncClient, OperatorClient
from sluice.client.tls import CA_FILE, CLIENT_CERTIFICATE, CLIENT_KEY, verification

__all__ = [
    "CA_FILE",
    "CLIENT_CERTIFICATE",
    "CLIENT_KEY",
    "HEAD",
    "IDLE_CONNECTION",
    "LOCAL",
    "NO_RETRIES",
    "RETRY_DELAY",
    "TOKEN",
    "TOKEN_FILE",
    "URL",
    "AsyncClient",
    "Client",
    "CoordinatorClient",
    "EnvironmentToken",
    "OperatorClient",
    "Refused",
    "Retries",
    "Served",
    "actor_headers",
    "sendable",
    "until_answered",
    "urls_of",
    "user_name",
    "verification",
]
