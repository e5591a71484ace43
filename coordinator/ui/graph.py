"""The drawing of a job: its stages and streams from left to right, each in the column after everything it reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NODE_WIDTH, NODE_HEIGHT = 170, 46
COLUMN, ROW, MARGIN = 220, 66, 10


@dataclass(frozen=True, slots=True)
class Node:
    """`kind`: "input", "intermediate", "output" or "stage". `detail`: a short line below the name."""

    name: str
    kind: str
    detail: str
    problem: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge from a stream to a stage that reads it, or from a stage to a stream that it writes."""

    source: str
    target: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """`x`, `y`: the upper left corner, in pixels."""

    node: Node
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class PlacedEdge:
    """`path`: an SVG path. `label_x`, `label_y`: the middle of the label."""

    edge: Edge
    path: str
    label_x: float
    label_y: float


@dataclass(frozen=True, slots=True)
class Drawing:
    width: int
    height: int
    nodes: Sequence[PlacedNode]
    edges: Sequence[PlacedEdge]


def stage_key(name: str) -> str:
    """The key of a stage, which differs from that of a stream with the same name."""
    return f"stage {name}"


def stream_key(name: str) -> str:
    return f"stream {name}"


def columns(keys: Sequence[str], edges: Sequence[Edge]) -> Mapping[str, int]:
    """The length of the longest path that leads to each node. Edges that close a cycle, which no valid job has, are ignored."""
    sources: defaultdict[str, list[str]] = defaultdict(list)
    for edge in edges:
        sources[edge.target].append(edge.source)
    found: dict[str, int] = {}

    def column(key: str, above: frozenset[str]) -> int:
        if key not in found:
            befores = [column(each, above | {key}) for each in sources[key] if each not in above and each != key]
            found[key] = max((before + 1 for before in befores), default=0)
        return found[key]

    for key in keys:
        column(key, frozenset())
    return found


def draw(nodes: Mapping[str, Node], edges: Sequence[Edge]) -> Drawing:
    """Place the nodes and edges. `nodes`: by the keys that edges use."""
    placed_in = columns(list(nodes), edges)
    rows: defaultdict[int, list[str]] = defaultdict(list)
    for key in nodes:
        rows[placed_in[key]].append(key)
    tallest = max(map(len, rows.values()), default=0)
    corner: dict[str, tuple[int, int]] = {}
    for at, keys in rows.items():
        offset = (tallest - len(keys)) * ROW // 2
        for place, key in enumerate(keys):
            corner[key] = (MARGIN + at * COLUMN, MARGIN + offset + place * ROW)
    shown = [edge for edge in edges if edge.source in corner and edge.target in corner]
    return Drawing(
        width=2 * MARGIN + max(rows, default=0) * COLUMN + NODE_WIDTH,
        height=2 * MARGIN + max(0, tallest - 1) * ROW + NODE_HEIGHT,
        nodes=[PlacedNode(node, *corner[key]) for key, node in nodes.items()],
        edges=[_placed(edge, corner[edge.source], corner[edge.target]) for edge in shown],
    )


def _placed(edge: Edge, source: tuple[int, int], target: tuple[int, int]) -> PlacedEdge:
    x1, y1 = source[0] + NODE_WIDTH, source[1] + NODE_HEIGHT / 2
    x2, y2 = target[0], target[1] + NODE_HEIGHT / 2
    middle = (x1 + x2) / 2
    return PlacedEdge(edge, f"M{x1} {y1:g}C{middle:g} {y1:g} {middle:g} {y2:g} {x2} {y2:g}", middle, (y1 + y2) / 2 - 5)
