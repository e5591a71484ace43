"""The drawings of the pages: stages, sparklines, the heat map of leases; and the pieces that a change replaces."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.ui.fleet import LEVELS, heat_map
from coordinator.ui.graph import NODE_HEIGHT, NODE_WIDTH, Edge, Node, draw
from coordinator.ui.pieces import ROWS, Fragment, changed
from coordinator.ui.render import code, duration, element_id, size
from coordinator.ui.samples import KEPT, sparkline

NAMES = st.sampled_from("abcdef")


@given(st.lists(st.tuples(NAMES, NAMES)))
def test_no_two_nodes_of_a_drawing_overlap_and_every_node_is_inside(pairs: list[tuple[str, str]]) -> None:
    nodes = {name: Node(name, "stage", "") for pair in pairs for name in pair}
    found = draw(nodes, [Edge(source, target) for source, target in pairs])
    corners = {(each.x, each.y) for each in found.nodes}
    assert len(corners) == len(nodes)
    for x, y in corners:
        assert 0 <= x <= found.width - NODE_WIDTH
        assert 0 <= y <= found.height - NODE_HEIGHT
        assert not [1 for u, v in corners if (u, v) != (x, y) and abs(u - x) < NODE_WIDTH and abs(v - y) < NODE_HEIGHT]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] < pair[1])))
def test_what_a_stage_reads_is_left_of_it(pairs: list[tuple[int, int]]) -> None:
    nodes = {str(name): Node(str(name), "stage", "") for pair in pairs for name in pair}
    found = draw(nodes, [Edge(str(source), str(target)) for source, target in pairs])
    left = {each.node.name: each.x for each in found.nodes}
    assert all(left[str(source)] < left[str(target)] for source, target in pairs)


@given(st.lists(st.none() | st.floats(0, 1e12), max_size=KEPT))
def test_a_sparkline_stays_inside_its_box_and_begins_again_after_a_gap(values: list[float | None]) -> None:
    path = sparkline(values)
    known = [value for value in values if value is not None]
    assert bool(path) == bool(known)
    points = [each.split(" ") for each in path.replace("L", "M").split("M")[1:]]
    assert len(points) == len(known)
    assert all(0 <= float(x) <= 120 and 0 <= float(y) <= 24 for x, y in points)
    lines = sum(1 for before, value in zip([None, *values], values, strict=False) if value is not None and before is None)
    assert path.count("M") == lines


@given(st.lists(st.floats(0, 40), max_size=3000), st.integers(1, 500))
def test_the_heat_map_shows_every_lease_once_in_a_bounded_number_of_cells(left: list[float], cells: int) -> None:
    found = heat_map(left, 40, cells)
    assert sum(each.containers for each in found) == len(left)
    assert len(found) <= cells
    assert all(0 <= each.level < LEVELS for each in found)
    if left:
        assert min(each.least_seconds for each in found) == min(left)


PIECES = st.builds(
    lambda html, rows: Fragment("t", f"{html}{ROWS}", tuple(Fragment(f"r{name}", f"{name}{value}") for name, value in rows.items())),
    st.sampled_from("xy"),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from("12")),
)


@given(PIECES, PIECES)
def test_replacing_the_changed_pieces_gives_the_new_page(before: Fragment, after: Fragment) -> None:
    shown = {before.id: before.html, **{row.id: row.html for row in before.rows}}
    order = [row.id for row in before.rows]
    for piece in changed([before], [after]):
        if piece.id == after.id:
            assert piece.html == after.whole
            return
        assert piece.id in order
        shown[piece.id] = piece.html
    assert order == [row.id for row in after.rows]
    assert shown == {after.id: after.html, **{row.id: row.html for row in after.rows}}


@example(" ", "_20")
@given(st.text(), st.text())
def test_different_names_have_different_ids(one: str, other: str) -> None:
    one, other = (text.encode(errors="ignore").decode() for text in (one, other))
    assert (element_id(one) == element_id(other)) == (one == other)
    assert not set(element_id(one)) & set(" \"'<>&")


def test_text_between_backticks_is_code_and_all_text_is_escaped() -> None:
    assert code("run `sluice plan` <now>") == "run <code>sluice plan</code> &lt;now&gt;"
    assert code("`<b>`") == "<code>&lt;b&gt;</code>"
    assert code("one ` only") == "one ` only"


def test_durations_and_sizes_are_short() -> None:
    assert [duration(each) for each in (0, 59, 185, 7800, 97_200, -5, None)] == [
        "0 s",
        "59 s",
        "3 min 5 s",
        "2 h 10 min",
        "1 d 3 h",
        "-5 s",
        "–",
    ]
    assert [size(each) for each in (0, 1023, 1536, 5 << 20, 3 << 50)] == ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "3072 TiB"]
