"""Templates, and the formats of numbers, times and ages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from coordinator.ui.pieces import Fragment
from sluice.disks import readable

NONE = "–"


@cache
def environment() -> Environment:
    """The template environment. All text is escaped; an unknown variable is an error."""
    found = Environment(
        loader=PackageLoader("coordinator.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,  # otherwise the file of a template is examined for each row
    )
    found.filters |= {
        "count": count,
        "rate": rate,
        "size": size,
        "duration": duration,
        "time": time_element,
        "segment": segment,
        "slug": element_id,
        "tone": tone,
        "code": code,
    }
    return found


def piece(template: str, id: str, rows: Iterable[Fragment] = (), **values: object) -> Fragment:
    """A fragment from `templates/TEMPLATE.html`, which gets `id` and the values."""
    return Fragment(id, environment().get_template(f"{template}.html").render(id=id, **values), tuple(rows))


def page(
    title: str,
    crumbs: Sequence[tuple[str, str]],
    root: str,
    key: str,
    version: int,
    epoch: str,
    pieces: Sequence[Fragment],
    reader: str = "",
) -> str:
    """A whole page. `crumbs`: names and links, from the outside in. `root`: the relative URL of `/ui/`. `key`: the rest of this page's
    URL. `reader`: the name of the principal that has logged in, "" for none."""
    content = Markup("".join(each.whole for each in pieces))  # noqa: S704 - made by templates, which escape
    return (
        environment()
        .get_template("layout.html")
        .render(title=title, crumbs=crumbs, root=root, key=key, version=version, epoch=epoch, content=content, reader=reader)
    )


# --- filters ---------------------------------------------------------------------------------------------------------


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Rows per second."""
    if value is None:
        return NONE
    return f"{value:,.0f}/s" if value >= 10 or value == 0 else f"{value:.1f}/s"


def size(value: float | None) -> str:
    """Bytes, in binary units."""
    return NONE if value is None else readable(value)


def duration(seconds: float | None) -> str:
    """A duration as text, such as "12 s", "3 min 5 s", "2 h 10 min", "4 d 3 h"."""
    if seconds is None:
        return NONE
    if seconds < 0:
        return f"-{duration(-seconds)}"
    whole = int(seconds)
    for unit, length, lesser, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit} {rest} {lesser}" if rest else f"{whole // length} {unit}"
    return f"{whole} s"


def time_element(at: datetime | None) -> str:
    """A time in UTC. The script of the page shows it in the reader's time zone, with its age."""
    if at is None:
        return NONE
    utc = at.astimezone(UTC)
    text = utc.isoformat(sep=" ", timespec="milliseconds")
    return Markup(f'<time datetime="{text[:10]}T{text[11:]}">{text[:19]} UTC</time>')  # noqa: S704 - digits and punctuation


def code(text: str) -> str:
    """Text with the parts between backticks as code."""
    parts = [Markup("<code>{}</code>").format(each) if number % 2 else escape(each) for number, each in enumerate(text.split("`"))]
    return Markup("").join(parts) if len(parts) % 2 else escape(text)


def segment(text: str) -> str:
    """A segment of a URL's path, or a value of its query."""
    return quote(text, safe="")


def element_id(text: str) -> str:
    """Text as part of an element's id, without spaces. Different texts give different ids."""
    return quote(text, safe="").replace("_", "%5F").replace("%", "_")


TONES = {
    **dict.fromkeys(("RUNNING", "LIVE", "DRAINED", "GROW", "NONE"), "good"),
    **dict.fromkeys(("CREATED", "DRAINING", "REPLACED", "REQUESTED", "STOPPING", "FLUSHING", "COMMITTING"), "busy"),
    **dict.fromkeys(("FAILED", "LOST", "REFUSED"), "bad"),
}


def tone(state: object) -> str:
    """The class of a state's badge. The badge also has the text of the state, because colour must not be the only sign."""
    return TONES.get(str(escape(str(state))), "quiet")
