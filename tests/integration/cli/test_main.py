"""The `sluice` command: which commands there are, and that each is imported only when it is called."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.main import get_group
from typer.testing import CliRunner

from sluice.cli.main import COMMANDS, app

RUNNER = CliRunner()


SHOWN = [name for name, command in COMMANDS.items() if command.help]


@pytest.mark.parametrize("name", SHOWN)
def test_the_line_in_the_help_is_the_beginning_of_the_command_s_own_help(name: str) -> None:
    found = get_group(app).get_command(None, name)  # type: ignore[arg-type]
    assert found is not None
    assert " ".join((found.help or "").split()).startswith(COMMANDS[name].help)


def test_the_help_lists_the_commands_of_all_packages() -> None:
    output = RUNNER.invoke(app, ["--help"], env={"TERMINAL_WIDTH": "200"}).stdout
    assert [name for name in COMMANDS if f"│ {name} " in output] == SHOWN


@pytest.mark.parametrize(
    ("group", "commands"),
    [
        ("db", ["backup", "restore", "upgrade"]),
        ("models", ["diff", "grow", "ls", "rollback", "show"]),
        ("kafka", ["down", "jars", "up"]),
        ("streams", ["append", "cat", "create", "grow", "ls"]),
    ],
)
def test_a_group_has_its_own_commands(group: str, commands: list[str]) -> None:
    output = RUNNER.invoke(app, [group, "--help"], env={"TERMINAL_WIDTH": "200"}).stdout
    for name in commands:
        assert f" {name} " in output


def test_the_version_is_that_of_the_installed_package() -> None:
    assert RUNNER.invoke(app, ["--version"]).stdout == f"sluice {version('sluice-spark')}\n"


def test_an_unknown_command_is_refused() -> None:
    done = RUNNER.invoke(app, ["statuses"])
    assert done.exit_code == 2
    assert "No such command 'statuses'" in done.output


def test_an_unknown_command_suggests_one_with_a_similar_name() -> None:
    done = RUNNER.invoke(app, ["statsu"])
    assert done.exit_code == 2
    assert "'status'" in done.output


def test_the_help_imports_neither_spark_nor_the_service() -> None:
    code = (
        "import sys\nsys.argv = ['sluice', '--help']\nfrom sluice.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([each for each in ('pyspark', 'sqlalchemy', 'fastapi', 'httpx', 'coordinator.app') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("st", ["stop", "start", "status", "streams"]), ("status --js", ["--json"]), ("jobs r", ["runs", "rm"]), ("--vers", ["--version"])],
)
def test_a_shell_completes_commands_and_options(typed: str, offered: list[str]) -> None:
    words = f"sluice {typed}"
    environment = {**os.environ, "_SLUICE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = subprocess.run([sys.executable, "-P", "-m", "sluice"], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == offered


def test_the_completion_of_a_command_imports_no_command() -> None:
    code = (
        "import sys\nfrom sluice.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "own = ('sluice.cli.', 'containers', 'coordinator')\n"
        "print([each for each in sys.modules if each.startswith(own) and each != 'sluice.cli.main'])"
    )
    environment = {**os.environ, "_SLUICE_COMPLETE": "complete_bash", "COMP_WORDS": "sluice st", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("module", ["sluice.cli.main", "pydantic", "coordinator.server", "uvicorn"])
def test_an_interruption_while_modules_are_imported_prints_nothing(module: str) -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv = ['sluice', 'coordinator']\n"
        "from sluice.__main__ import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_the_first_import_of_the_script_imports_nothing_that_an_interruption_could_find() -> None:
    code = "import sys, sluice, sluice.__main__; print([each for each in sys.modules if each.startswith('sluice.')])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['sluice.__main__']"
