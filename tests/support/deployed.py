"""Reads the deployment files: which processes of Sluice each one starts, with which environment, and where its files come from."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
SECURE = ROOT / "deploy/compose/secure.yaml"
OPERATOR: Mapping[str, str] = {"OIDC_ISSUER": "https://login.example.org", "OIDC_CLIENT_ID": "sluice"}
"""Variables that an operator must set for secure.yaml."""
_SHELL = re.compile(r"(?:^|\$\$?\(|\bexec )\s*(?:/opt/sluice/bin/)?(sluice [^\n)|>]*)", re.MULTILINE)
_EXPORT = re.compile(r"\bexport (\w+)=(\S+)")
_DEFAULT = re.compile(r"\$\{\w+:-(\w[\w-]*)\}")


@dataclass(frozen=True)
class Launch:
    """A process of Sluice that a file starts. `stops_within`: seconds between SIGTERM and SIGKILL. Values that are known only on the
    target machine are "1".
    """

    file: str
    name: str
    commands: Sequence[Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    stops_within: float | None = None

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"

    @property
    def is_container(self) -> bool:
        return any(command[:2] == ["sluice", "container"] for command in self.commands)

    @property
    def is_coordinator(self) -> bool:
        return any(command[:2] == ["sluice", "coordinator"] for command in self.commands)


@cache
def launches() -> Sequence[Launch]:
    return [*_of_compose(), *_of_kubernetes(), *_of_systemd(), *_of_yarn()]


@cache
def compose() -> dict[str, Any]:
    """docker-compose.yml, with the defaults of its variables."""
    return dict(yaml.safe_load(_DEFAULT.sub(r"\1", (ROOT / "docker-compose.yml").read_text())))


class Reset:
    """A value of a file that Compose removes: !reset."""


class _Loader(yaml.SafeLoader):
    """Reads Compose's tag !reset."""


_Loader.add_constructor("!reset", lambda loader, node: Reset())


@cache
def secure() -> dict[str, Any]:
    """deploy/compose/secure.yaml alone, with the values of OPERATOR for its variables."""
    return dict(yaml.load(filled_in(SECURE.read_text()), _Loader))


def filled_in(text: str, values: Mapping[str, str] = OPERATOR) -> str:
    """The text with these values for the variables that need one, and the defaults of others."""
    for name, value in values.items():
        text = re.sub(rf"\$\{{{name}:\?[^}}]*\}}", value, text)
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


@cache
def secured() -> dict[str, Any]:
    """docker-compose.yml and deploy/compose/secure.yaml as Compose merges them. tests/integration/deploy/test_compose.py compares this."""
    services = deepcopy(compose()["services"])
    for name, changes in secure()["services"].items():
        services[name] = _merged(services.get(name, {}), changes)
    return {"services": services, "volumes": {**compose()["volumes"], **secure()["volumes"]}}


def _merged(service: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(service)
    for key, value in changes.items():
        if key == "volumes":
            found[key] = [*{each.split(":")[1]: each for each in [*found.get(key, []), *value]}.values()]
        elif isinstance(value, Mapping) and key in found:
            both = {**found[key], **value}
            found[key] = {name: each for name, each in both.items() if not isinstance(each, Reset)}
        elif isinstance(value, Mapping):
            found[key] = {name: each for name, each in value.items() if not isinstance(each, Reset)}
        else:
            found[key] = value
    return found


@cache
def manifests() -> Sequence[tuple[Path, dict[str, Any]]]:
    return [(file, each) for file in sorted((ROOT / "deploy/kubernetes").glob("*.yaml")) for each in yaml.safe_load_all(file.read_text())]


@cache
def dockerfile() -> Sequence[tuple[str, str]]:
    """The instructions of the Dockerfile, in order."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def image_environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for word, rest in dockerfile() if word == "ENV" for pair in shlex.split(rest))


def health_command() -> list[str]:
    """The command of the image's HEALTHCHECK."""
    said = next(rest for word, rest in dockerfile() if word == "HEALTHCHECK")
    return list(json.loads(said[said.index("[") :]))


def entrypoint() -> list[str]:
    return list(json.loads(next(rest for word, rest in dockerfile() if word == "ENTRYPOINT")))


def _of_compose() -> Iterator[Launch]:
    yield from _of_services("docker-compose.yml", compose()["services"])
    yield from _of_services("secure.yaml", secured()["services"])


def _of_services(file: str, services: Mapping[str, Any]) -> Iterator[Launch]:
    for name, each in services.items():
        entry = each.get("entrypoint", [""])[0]
        # Otherwise it only uses the image's Python, or runs one of the scripts, which are tested as processes.
        if each["image"] == "sluice" and entry != "python" and not entry.startswith("/deploy/"):
            words = [*each.get("entrypoint", entrypoint()), *each["command"]]
            yield _launch(file, name, words, each["environment"], _seconds(each.get("stop_grace_period", "10s")))


def _of_kubernetes() -> Iterator[Launch]:
    for file, manifest in manifests():
        pod = manifest.get("spec", {}).get("template", {}).get("spec", {})
        for each in pod.get("containers", []):
            words = [*each.get("command", entrypoint()), *each["args"]]
            environment = {variable["name"]: variable.get("value", "1") for variable in each["env"]}
            yield _launch(file.name, manifest["metadata"]["name"], words, environment, pod["terminationGracePeriodSeconds"])


def _of_systemd() -> Iterator[Launch]:
    for file in sorted((ROOT / "deploy/systemd").glob("*.service")):
        said = dict(re.findall(r"^(\w+)=(.*)$", file.read_text(), re.MULTILINE))
        environment = dict(re.findall(r"(\w+)=(\S+)", " ".join(re.findall(r"^Environment=(.*)$", file.read_text(), re.MULTILINE))))
        by_file = {"SLUICE_RUN_ID": "1"} if "RUN_ID" in file.read_text() else {}
        words = ["sh", "-ec", said["ExecStart"]]
        yield _launch(file.name, file.stem, words, {**environment, **by_file}, float(said["TimeoutStopSec"]))


def _of_yarn() -> Iterator[Launch]:
    for file in sorted((ROOT / "deploy/yarn").glob("*.json")):
        for each in json.loads(file.read_text())["components"]:
            environment = {name: re.sub(r"\$\{\w+\}", "1", value) for name, value in each["configuration"]["env"].items()}
            yield _launch(file.name, each["name"], ["sh", "-ec", each["launch_command"]], environment, None)


def _launch(file: str, name: str, words: Sequence[str], environment: Mapping[str, str], stops_within: float | None) -> Launch:
    shell = "sh" in words
    commands = [shlex.split(found) for found in _SHELL.findall(words[-1])] if shell else [words[list(words).index("sluice") :]]
    exported = {variable: "1" for variable, _ in _EXPORT.findall(words[-1])} if shell else {}
    return Launch(file, name, commands, {**environment, **exported}, stops_within)


def _seconds(said: str) -> float:
    assert said.endswith("s")
    return float(said[:-1])
