"""`sluice init`: a first job, a test of it, and a Compose file, to start from.

Exit codes: 0; 1 when a file cannot be written or is there already.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.documents import Document, Json, print_reply
from sluice.core.errors import BadName, BadOption
from sluice.core.ids import checked_name
from sluice.wire.body import Reply

TEMPLATE = Path(__file__).parent / "template"
"""The files to write; each has `.txt` added to its name. `$job` in them is replaced by the name of the job."""

NEXT = """
sluice streams create lines --partitions 2
echo "to be or not to be" | sluice streams append lines
sluice run {job}

In another terminal: sluice streams cat counts; sluice status
A test of the job: pytest {test}
"""


class FilesReply(Reply):
    """`files`: the paths of the files that were written, with the given directory."""

    files: tuple[str, ...]


def init(
    directory: Annotated[Path, typer.Argument(help="Where the files are written. Created if it does not exist.")] = Path(),
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the job. Default: that of the directory.")] = None,
    as_json: Annotated[Json, Document(FilesReply)] = False,
) -> None:
    """Write a first job, a test of it, and a Compose file, to start from."""
    name = job or re.sub(r"[^A-Za-z0-9_-]+", "-", directory.absolute().name).strip("-") or "word-count"
    try:
        checked_name("job", name)
    except BadName as error:
        raise BadOption(f"{error}: give another name with --job") from error
    written = write(directory, name)
    reply = FilesReply(files=tuple(map(str, written)))
    lines = [*(f"wrote {each}" for each in reply.files), NEXT.format(job=directory / "job.py", test=directory / "test_job.py")]
    print_reply(reply, lambda _: "\n".join(lines), as_json=as_json)


def write(directory: Path, job: str) -> list[Path]:
    """The files that were written. No file is replaced: if one is there, none is written. Raises BadOption."""
    texts = {directory / each.name.removesuffix(".txt"): each.read_text().replace("$job", job) for each in sorted(TEMPLATE.glob("*.txt"))}
    present = [str(each) for each in texts if each.exists() or each.is_symlink()]
    if present:
        raise BadOption(f"{', '.join(present)}: is there already, and is not replaced; give another directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            with file.open("x") as opened:
                opened.write(text)
    except OSError as error:
        raise BadOption(f"{error.filename or directory} cannot be written: {error.strerror}") from error
    return list(texts)
