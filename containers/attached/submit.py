"""Checks of a command before it is started.

The deploy mode of spark-submit is found as Spark's class SparkSubmitArguments finds it. Only a spark-submit that the command names is
looked into: what a script passes to the one that it calls, and what `spark-env.sh` sets, is not known.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from sluice.core.errors import ClientError

PROPERTY, VARIABLE = "spark.submit.deployMode", "DEPLOY_MODE"

_SUBMIT = re.compile(r"spark.*-submit\d*(\.cmd|\.sh)?|org\.apache\.spark\.deploy\.SparkSubmit")
"""Distributions have names of their own for it, such as spark3-submit. The class is what all of them start."""

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_SWITCHES = frozenset({"--help", "-h", "--load-spark-defaults", "--supervise", "--usage-error", "--verbose", "-v", "--version"})
"""The options that have no value. See Spark's class SparkSubmitOptionParser."""

_PROPERTY_LINE = re.compile(r"([^\s=:]+)[\s=:]+(.*)")


class ClusterDeployMode(ClientError):
    """The driver of spark-submit would run on another machine."""


def check_deploy_mode(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises ClusterDeployMode for a spark-submit whose driver the cluster starts: `sluice exec` ends only processes of this machine."""
    place = next((n for n, each in enumerate(command) if _SUBMIT.fullmatch(PurePath(each).name)), None)
    if place is None:
        return
    before = [match for each in command[:place] if (match := _ASSIGNMENT.fullmatch(each))]  # of env
    variables = {**environment, **{match[1]: match[2] for match in before}}
    mode, source = _deploy_mode(_options(command[place + 1 :]), command[place], variables)
    if mode == "cluster":
        raise ClusterDeployMode(
            f"spark-submit with the deploy mode cluster ({source}) starts the driver on another machine, where it cannot be ended when the "
            "lease is lost: use --deploy-mode client"
        )


@dataclass(frozen=True, slots=True)
class _Options:
    """Options of spark-submit; "" if one is not given."""

    mode: str = ""
    prop: str = ""
    file: str = ""
    defaults: bool = False


def _options(arguments: Sequence[str]) -> _Options:
    """The options before the application. The last of equal ones counts."""
    found = {"--deploy-mode": "", "--properties-file": ""}
    prop, defaults = "", False
    rest = iter(arguments)
    for each in rest:
        name, equals, value = each.partition("=") if each.startswith("--") else (each, "", "")
        if not name.startswith("-"):
            break
        if name in _SWITCHES:
            defaults = defaults or name == "--load-spark-defaults"
            continue
        value = value if equals else next(rest, "")
        if name in found:
            found[name] = value
        elif name in ("--conf", "-c") and value.partition("=")[0].strip() == PROPERTY:
            prop = value.partition("=")[2]
    return _Options(found["--deploy-mode"], prop, found["--properties-file"], defaults)


def _deploy_mode(options: _Options, program: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """The deploy mode, "" for none, and where it is set."""
    if options.mode:
        return options.mode.strip(), "--deploy-mode"
    if options.prop:
        return options.prop.strip(), f"--conf {PROPERTY}"
    for file in _property_files(options, program, environment):
        if found := _property(file):
            return found, f"{PROPERTY} in {file}"
    return environment.get(VARIABLE, ""), VARIABLE


def _property_files(options: _Options, program: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """The first one that has a property counts. A file that is given takes the place of the defaults, unless an option asks for both."""
    if options.file:
        yield Path(options.file)
    if not options.file or options.defaults:
        for each in _configurations(program, environment):
            yield each / "spark-defaults.conf"


def _configurations(program: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """The directory of Spark's configuration. Without variables it is that of the Spark to which the program belongs, which is below the
    Python of the program if pip has installed it. See Spark's script find-spark-home."""
    if directory := environment.get("SPARK_CONF_DIR"):
        yield Path(directory)
    elif home := environment.get("SPARK_HOME"):
        yield Path(home) / "conf"
    elif path := shutil.which(program, path=environment.get("PATH", "")):
        root = Path(path).absolute().parent.parent
        yield from (each / "conf" for each in (root, *sorted(root.glob("lib/python*/site-packages/pyspark"))))


def _property(file: Path) -> str:
    """The deploy mode in a file of properties in the format of Java; "" if it has none, or cannot be read."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return ""
    lines = (_PROPERTY_LINE.fullmatch(each.strip()) for each in text.replace("\\\n", "").splitlines())
    return next((match[2].strip() for match in reversed(list(lines)) if match is not None and match[1] == PROPERTY), "")
