"""The parts of a page that are replaced when they change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

ROWS = "<!--rows-->"
"""Placeholder for the rows in the HTML of a fragment."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """An HTML element. `html` has the attribute `id` with this id, and ROWS once if there are rows."""

    id: str
    html: str
    rows: tuple[Fragment, ...] = ()

    @property
    def whole(self) -> str:
        return self.html.replace(ROWS, "".join(row.html for row in self.rows), 1)


def changed(before: Sequence[Fragment], after: Sequence[Fragment]) -> Iterator[Fragment]:
    """The fragments of `after` that a browser which shows `before` must replace. A single row is replaced if its table has the same rows in
    the same order as before, and no other change."""
    known = {piece.id: piece for piece in before}
    for piece in after:
        former = known.get(piece.id)
        if former == piece:
            continue
        if former is None or former.html != piece.html or _ids(former.rows) != _ids(piece.rows):
            yield Fragment(piece.id, piece.whole)
        else:
            yield from (row for old, row in zip(former.rows, piece.rows, strict=True) if old != row)


def _ids(rows: Iterable[Fragment]) -> list[str]:
    return [row.id for row in rows]
