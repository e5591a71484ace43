"""Offsets as JSON columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice.core.ids import Ssp

Columns = dict[str, Any]


def _offset_list(offsets: Mapping[Ssp, int]) -> list[list[Any]]:
    return [[ssp.system, ssp.stream, ssp.partition, offset] for ssp, offset in sorted(offsets.items())]


def _offsets(listed: list[list[Any]]) -> dict[Ssp, int]:
    return {Ssp(system, stream, partition): offset for system, stream, partition, offset in listed}
