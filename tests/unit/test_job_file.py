from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sluice import Job
from sluice.core.errors import BadGraph, BadJobFile, BadName
from sluice.core.remedies import remedy_of_error
from sluice.job import NoJobFile, load_job

HEAD = "from sluice import Input, Intermediate, Job, Output\n\njob = Job('delays')\n"
STREAMS = HEAD + "flights, between, out = job.input('flights'), job.intermediate('between', partitions=4), job.output('out')\n"
GOOD = (
    STREAMS
    + """
@job.stage(reads=between, writes=out)
def second(task): ...

@job.stage(reads=flights, writes=between)
def first(task): ...
"""
)

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        file = tmp_path / "job.py"
        file.write_text(text)
        return file

    return written


@pytest.fixture(autouse=True)
def _imports_as_before() -> Iterator[None]:
    """A job file stays imported while its driver lives, here during one test."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - modules:
        if name in ("sluice_job", "beside"):
            del sys.modules[name]


def refusal(file: Path) -> str:
    with pytest.raises(BadJobFile) as caught:
        load_job(file)
    return str(caught.value)


def test_a_good_file_gives_its_job(write: Write) -> None:
    job = load_job(write(GOOD))
    assert job.name == "delays"
    assert [each.name for each in job.intermediates] == ["between"]


def test_the_chain_is_in_the_order_of_the_streams_and_not_of_the_file(write: Write) -> None:
    assert [each.stage.name for each in load_job(write(GOOD)).chain()] == ["first", "second"]


def test_a_job_under_two_names_is_still_one(write: Write) -> None:
    assert load_job(write(GOOD + "\nalias = job\n")).name == "delays"


def test_a_job_file_may_import_modules_beside_it(write: Write, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'from-beside'\n")
    text = GOOD.replace("Job('delays')", "Job(beside.NAME)").replace("from sluice", "import beside\nfrom sluice", 1)
    job = load_job(write(text))
    assert (job.name, job.directory) == ("from-beside", tmp_path)


def test_modules_beside_a_job_file_do_not_shadow_the_standard_library(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    (tmp_path / "colorsys.py").write_text("raise RuntimeError")
    assert load_job(write("import colorsys\n" + GOOD)).name == "delays"


def test_each_of_two_job_files_imports_the_modules_beside_it(write: Write, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("raise RuntimeError")
    load_job(write(GOOD))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "beside.py").write_text("NAME = 'of-the-other'\n")
    (tmp_path / "other" / "job.py").write_text("import beside\n" + GOOD.replace("Job('delays')", "Job(beside.NAME)"))
    assert load_job(tmp_path / "other" / "job.py").name == "of-the-other"


def test_a_stage_is_named_as_its_function_unless_it_says_otherwise(write: Write) -> None:
    job = load_job(write(STREAMS + "@job.stage(reads=flights, writes=[between, out], name='split')\ndef f(task): ...\n"))
    assert job.stages[0].stage.name == "split"
    assert job.stages[0].stage.writes == ("between", "out")


def test_the_function_of_a_stage_stays_an_ordinary_function() -> None:
    job = Job("j")

    def f(task: object) -> object: ...

    assert job.stage(reads=job.input("in"))(f) is f  # type: ignore[arg-type]


def test_a_missing_file_is_reported_as_missing(tmp_path: Path) -> None:
    assert refusal(tmp_path / "lost.py") == f"there is no file {tmp_path / 'lost.py'}"


def test_a_directory_is_not_a_job_file(tmp_path: Path) -> None:
    assert str(tmp_path) in refusal(tmp_path)


def test_the_error_about_a_file_of_another_kind_says_what_name_it_needs(tmp_path: Path) -> None:
    (tmp_path / "job.txt").write_text(GOOD)
    assert "job.txt is not a Python file: its name must end in .py" in refusal(tmp_path / "job.txt")


def test_an_exception_in_the_file_is_shown_with_its_line(write: Write) -> None:
    file = write("import os\n\n1 / 0\n")
    assert refusal(file) == f"{file}:3 cannot be imported: ZeroDivisionError: division by zero"


def test_the_line_is_shown_for_a_relative_path_too(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write("\n1 / 0\n").parent)
    assert refusal(Path("job.py")).startswith("job.py:2 cannot be imported")


def test_the_line_is_the_one_in_the_file_and_not_in_what_it_calls(write: Write) -> None:
    assert f"{write('import json')}:2 cannot be imported: JSONDecodeError" in refusal(write("import json\njson.loads('{')\n"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("def f(:\n", "SyntaxError", id="syntax"),
        pytest.param("import no_such_module_anywhere\n", "ModuleNotFoundError", id="import"),
        pytest.param("x = 1\0\n", "null bytes", id="nul"),
        pytest.param("raise SystemExit(7)\n", "ends the interpreter when it is imported (exit 7)", id="exit"),
    ],
)
def test_a_file_that_does_not_import_is_refused_with_the_reason(write: Write, text: str, expected: str) -> None:
    file = write(text)
    assert str(file) in refusal(file)
    assert expected in refusal(file)


@pytest.mark.parametrize(("text", "count"), [("x = 1\n", 0), (GOOD + "\nother = Job('other')\n", 2)])
def test_a_file_holds_exactly_one_job(write: Write, text: str, count: int) -> None:
    file = write(text)
    assert refusal(file) == f"{file} must define exactly one Job at its top level; it defines {count}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(STREAMS, "the job has no stages: write a function under @job.stage", id="no stages"),
        pytest.param(HEAD, "the run has no inputs: declare at least one with job.input", id="no inputs"),
        pytest.param(
            STREAMS + "@job.stage(reads=between, writes=between)\ndef f(task): ...\n", "the stages f form a cycle", id="cycle of one"
        ),
        pytest.param(
            STREAMS
            + "other = job.intermediate('other', partitions=1)\n"
            + "@job.stage(reads=between, writes=other)\ndef f(task): ...\n@job.stage(reads=other, writes=between)\ndef g(task): ...\n",
            "the stages f, g form a cycle",
            id="cycle of two",
        ),
        pytest.param(
            GOOD + "\n@job.stage(reads=flights, writes=out)\ndef third(task): ...\n",
            "the stages second and third both write 'out': give each its own output",
            id="two writers",
        ),
        pytest.param(
            STREAMS + "@job.stage(reads=Input('stray'), writes=[between, out])\ndef f(task): ...\n",
            "stage f reads 'stray', which is not declared",
            id="undeclared input",
        ),
        pytest.param(
            STREAMS + "@job.stage(reads=flights, writes=Output('stray'))\ndef f(task): ...\n",
            "stage f writes 'stray', which is not declared",
            id="undeclared output",
        ),
        pytest.param(
            STREAMS + "job.output('flights')\n@job.stage(reads=flights, writes=between)\ndef f(task): ...\n",
            "the name 'flights' is declared twice",
            id="a stream twice",
        ),
        pytest.param(
            STREAMS + "@job.stage(reads=flights, writes=between)\ndef f(task): ...\n@job.stage(reads=flights)\ndef f(task): ...\n",
            "the name 'f' is declared twice",
            id="a stage twice",
        ),
        pytest.param(STREAMS + "@job.stage(reads=[], writes=between)\ndef f(task): ...\n", "stage f reads nothing", id="reads nothing"),
        pytest.param(
            STREAMS + "@job.stage(reads=flights, writes=between, name='../f')\ndef f(task): ...\n",
            "invalid stage name",
            id="path as stage",
        ),
        pytest.param(HEAD + "job.input('../flights')\n", "invalid stream name '../flights': use 1 to 249 letters", id="path as stream"),
        pytest.param("from sluice import Job\njob = Job('../job')\n", "invalid job name '../job': use 1 to 249 letters", id="path as job"),
        pytest.param(HEAD + "job.intermediate('x', partitions=0)\n", "'x' needs at least one partition, not 0", id="no partitions"),
        pytest.param(HEAD + "job.output('')\n", "invalid stream name ''", id="empty name"),
    ],
)
def test_a_job_that_cannot_run_is_refused_by_its_file_and_what_is_wrong(write: Write, text: str, expected: str) -> None:
    file = write(text)
    assert expected in refusal(file)
    assert str(file) in refusal(file)


def test_a_bad_name_is_shown_with_its_line(write: Write) -> None:
    file = write(HEAD + "\njob.input('..')\n")
    assert refusal(file).startswith(f"{file}:5: invalid stream name '..'")


def test_the_api_alone_raises_the_errors_of_names_and_graphs() -> None:
    with pytest.raises(BadName):
        Job("..")
    with pytest.raises(BadGraph):
        Job("j").chain()
    with pytest.raises(BadJobFile):
        Job("j").intermediate("x", partitions=-1)


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("@job.stage(reads='flights')", "reads='flights' is a str, not a stream: pass what job.input(…) or job.intermediate(…) returned"),
        ("@job.stage(reads=['flights'])", "reads='flights' is a str, not a stream"),
        ("@job.stage(reads=job)", "is a Job, not a stream"),
        ("@job.stage(reads=job.input('flights'), writes='delays')", "writes='delays' is a str, not a stream: pass what job.output(…)"),
        ("job.input(7)", "invalid stream name '7'"),
        ("job.intermediate('x', partitions='4')", "needs at least one partition, not '4'"),
        ("job.output('x', partitions=0)", "the output 'x' needs at least one partition, not 0"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused_with_what_to_give_instead(write: Write, declared: str, expected: str) -> None:
    file = write(f"{HEAD}{declared}\ndef only(task): ...\n" if declared.startswith("@") else f"{HEAD}{declared}\n")
    message = refusal(file)
    assert expected in message
    assert message.startswith(f"{file}:4: ")


def test_an_argument_that_is_unknown_is_named_with_its_line(write: Write) -> None:
    file = write(f"{HEAD}Job('j', max_event_skew=60)\n")
    unknown = "Job.__init__() got an unexpected keyword argument 'max_event_skew'"
    assert refusal(file) == f"{file}:4 cannot be imported: TypeError: {unknown}"


def test_another_job_can_be_loaded_after_one_that_was_refused(write: Write) -> None:
    refusal(write("1 / 0\n"))
    assert load_job(write(GOOD + "\n# another size, so that no cached bytecode is taken for it\n")).name == "delays"


def test_an_input_may_have_single_partitions_broadcast_as_samza_spells_them() -> None:
    job = Job("delays")
    assert [job.input("a", broadcast="#1,#0").broadcast, job.input("b", broadcast=True).broadcast] == ["#[0-1]", True]
    with pytest.raises(BadJobFile, match="the input 'c': '1' does not name partitions to broadcast"):
        job.input("c", broadcast="1")


@pytest.mark.parametrize("count", ["'many'", "0", "True", "2.5"])
def test_a_number_of_tasks_that_is_none_is_refused_at_its_line(write: Write, count: str) -> None:
    file = write(f"from sluice import Job\njob = Job('j', max_tasks={count})\n")
    with pytest.raises(BadJobFile, match=rf"{file}:2: max_tasks must be an integer greater than 0, not "):
        load_job(file)


def test_the_remedy_for_a_missing_job_file_is_another_path(tmp_path: Path) -> None:
    with pytest.raises(NoJobFile) as caught:
        load_job(tmp_path / "lost.py")
    assert "existing" in remedy_of_error(caught.value)


@pytest.mark.parametrize("parameters", ["", "one, two", "*, task"])
def test_a_stage_that_does_not_take_a_task_is_refused_at_its_line(write: Write, parameters: str) -> None:
    file = write(STREAMS + f"@job.stage(reads=flights, writes=out)\ndef s({parameters}): ...\n")
    needed = r"the function of the stage 's' must take one argument, the task, as in def s\(task\)"
    with pytest.raises(BadJobFile, match=rf"{file}:[56]: {needed}"):
        load_job(file)


def test_a_stage_without_parentheses_is_refused_with_the_right_form(write: Write) -> None:
    file = write(STREAMS + "@job.stage\ndef s(task): ...\n")
    with pytest.raises(BadJobFile, match=rf"{file}:[56]: a stage names its streams: write @job.stage\(reads=…, writes=…\)"):
        load_job(file)
