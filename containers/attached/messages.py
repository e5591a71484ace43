"""Messages between a driver that has called `sluice.attach` and its supervisor, one JSON object a line over a Unix socket.

The driver never has the container's token: it sends what it has to report to its supervisor, which has the lease.

The driver sends `queries`, the list of its queries, whenever it has changed and every ten seconds; `stopped` when its queries have ended
after `stop`; `step` for each step of a drain, and `drained` when all queries are flushed and have ended; `where` to ask where a new
checkpoint begins; `checkpoint` to have a checkpoint made ready; `plan` to keep what a batch reads before it writes; `confirm` to ask
whether it owns the job; `ending` when the script ends, with its error.

The supervisor first sends `granted`, or `refused` with the reason. Later it sends `lease` at each renewal, `stop` also in place of a first
SIGTERM, `drain` for each phase of a drain, `begins` in answer to `where`, `ready` in answer to `checkpoint`, `kept` in answer to `plan`,
`owner` in answer to `confirm`, `refuse` for a query that must not run, and `lost` to a driver that is only observed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sluice.core.ids import Ssp
from sluice.wire import body as wire_body

Message = Mapping[str, Any]

LONGEST = 16 << 20
"""Bytes of a line."""

SOCKET = "SLUICE_EXEC_SOCKET"
"""The environment variable with the name of the supervisor's socket, in Linux's abstract namespace. The name is no secret: the supervisor
accepts only its own descendants."""

UNPROTECTED = "SLUICE_WITHOUT_COORDINATOR"
"""The environment variable that `sluice exec --without-coordinator` sets."""


def encode(kind: str, **fields: object) -> bytes:
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Raises ValueError."""
    found = json.loads(line)
    if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
        raise ValueError(f"no message: {line[:100]!r}")
    return found


def offsets(positions: Mapping[Ssp, int]) -> list[dict[str, Any]]:
    """Offsets as in the API, see `sluice.wire.body.SspOffset`."""
    return [each.model_dump(mode="json", by_alias=True) for each in wire_body.offsets_body(positions)]
