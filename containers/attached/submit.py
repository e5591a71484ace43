"""Checks of a command before it is started. See the documentation of spark-submit, "Submitting Applications"."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from sluice.core.errors import ClientError


class ClusterDeployMode(ClientError):
    """The driver of spark-submit would run on another machine."""


def check_deploy_mode(command: Sequence[str]) -> None:
    """Raises ClusterDeployMode for a spark-submit whose driver the cluster starts: `sluice exec` ends only processes of this machine."""
    names = [PurePath(each).name for each in command]
    if "spark-submit" not in names:
        return
    mode = _deploy_mode(command[names.index("spark-submit") + 1 :])
    if mode == "cluster":
        raise ClusterDeployMode(
            "spark-submit with the deploy mode cluster starts the driver on another machine, where it cannot be ended when the lease is "
            "lost: use --deploy-mode client"
        )


def _deploy_mode(arguments: Sequence[str]) -> str:
    """The deploy mode in the arguments, "" for none. The last one counts, and the option wins over the property."""
    option = prop = ""
    for n, each in enumerate(arguments):
        name, equals, value = each.partition("=")
        if name == "--deploy-mode":
            option = value if equals else "".join(arguments[n + 1 : n + 2])
        if name in ("--conf", "-c"):
            key, _, setting = (value if equals else "".join(arguments[n + 1 : n + 2])).partition("=")
            prop = setting if key == "spark.submit.deployMode" else prop
        if each.endswith((".py", ".jar", ".R")) and not each.startswith("-") and (n == 0 or not _takes_value(arguments[n - 1])):
            break
    return (option or prop).strip()


def _takes_value(argument: str) -> bool:
    """Whether the argument after this one is its value, and not the application."""
    return argument.startswith("-") and "=" not in argument and argument not in ("--verbose", "-v", "--supervise")
