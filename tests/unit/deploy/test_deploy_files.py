"""The files in deploy/ fit the code: variables are settings, commands parse, files exist, schemas hold."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields
from datetime import timedelta
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from pydantic_settings import BaseSettings
from typer.core import TyperGroup

from containers.settings import ContainerSettings, read_container_settings
from coordinator.settings import IdentityProvider, Settings, read_settings
from coordinator.snapshots.degraded import TOLERATED_FOR, BackupMonitor
from sluice.cli.main import app
from sluice.logconfig import LogSettings
from sluice.tracing import TraceSettings
from tests.support.deployed import ROOT, Launch, compose, dockerfile, image_environment, launches, manifests

READ_ELSEWHERE = {
    "SLUICE_JARS_DIR": "containers/jars.py",
    "SLUICE_CONFIG": "coordinator/settings.py",
    "SLUICE_TOKEN_FILE": "sluice/client/coordinator.py",
    "SLUICE_CA_FILE": "sluice/client/tls.py",
}
OPTIONS = {"host": "--host", "tls_certificate": "--tls-certificate", "tls_key": "--tls-key"}
OLDEST_KUBERNETES, NEWEST_KUBERNETES = "1.28", "1.37"
OURS = re.compile(r"SLUICE_|EXECUTION_ENV_")

every_launch = pytest.mark.parametrize("launch", launches(), ids=str)


def variables(settings: type[BaseSettings]) -> set[str]:
    prefix = str(settings.model_config["env_prefix"])
    return {str(info.validation_alias or prefix + name).upper() for name, info in settings.model_fields.items()}


@pytest.fixture(scope="module")
def sluice() -> TyperGroup:
    command = typer.main.get_command(app)
    assert isinstance(command, TyperGroup)
    return command


@pytest.fixture
def environment(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the environment of the launch, without Sluice's variables of this process."""
    for name in {**image_environment(), **launch.environment}:
        monkeypatch.delenv(name, raising=False)
    for name, value in launch.environment.items():
        monkeypatch.setenv(name, str(value))


def test_each_deployment_launches_its_command() -> None:
    assert sorted((each.file, each.name) for each in launches() if each.is_coordinator) == [
        ("coordinator.yaml", "sluice-coordinator"),
        ("docker-compose.yml", "coordinator"),
        ("secure.yaml", "coordinator"),
        ("sluice-coordinator.service", "sluice-coordinator"),
    ]
    assert sorted((each.file, each.name) for each in launches() if each.is_container) == [
        ("containers.yaml", "flights"),
        ("docker-compose.yml", "flights-0"),
        ("docker-compose.yml", "flights-1"),
        ("docker-compose.yml", "pizza-0"),
        ("docker-compose.yml", "pizza-1"),
        ("flights.json", "container"),
        ("secure.yaml", "flights-0"),
        ("secure.yaml", "flights-1"),
        ("secure.yaml", "pizza-0"),
        ("secure.yaml", "pizza-1"),
        ("sluice-container@.service", "sluice-container@"),
    ]


def test_a_variable_is_a_setting_that_exists() -> None:
    known = variables(Settings) | variables(ContainerSettings) | variables(LogSettings) | variables(TraceSettings) | set(READ_ELSEWHERE)
    named = {name for each in launches() for name in each.environment} | set(image_environment())
    assert {name for name in named if OURS.match(name)} <= known
    for name, file in READ_ELSEWHERE.items():
        assert f'"{name}"' in (ROOT / file).read_text()


@every_launch
def test_a_command_parses(launch: Launch, sluice: TyperGroup) -> None:
    assert launch.commands or re.search(r"examples\.\w+\.replay", str(compose()["services"][launch.name]["command"]))
    for command in launch.commands:
        parse(sluice, list(command[1:]))


def test_a_command_that_does_not_parse_is_seen(sluice: TyperGroup) -> None:
    with pytest.raises(Exception, match="No such option: --hosst"):
        parse(sluice, ["coordinator", "--hosst", "0.0.0.0"])
    with pytest.raises(AssertionError, match="no command coordinater"):
        parse(sluice, ["coordinater"])


def parse(command: Any, words: list[str]) -> None:
    """Parse a command line completely without running it. Raises what the parser raises."""
    if isinstance(command, TyperGroup) and words:
        _, found, rest = command.resolve_command(command.make_context(command.name, [], resilient_parsing=True), words)
        assert found is not None, f"no command {words[0]}"
        parse(found, rest)
    else:
        command.make_context(command.name, words)


@every_launch
@pytest.mark.usefixtures("environment")
def test_its_settings_are_accepted(launch: Launch) -> None:
    if launch.is_coordinator:
        words = launch.commands[0]
        options = {name: words[words.index(option) + 1] for name, option in OPTIONS.items() if option in words}
        read_settings(**options, insecure="--insecure" in words)
    if launch.is_container:
        settings = read_container_settings()
        assert launch.stops_within is None or launch.stops_within > settings.stop_timeout_seconds


def test_the_image_installs_with_the_install_script_only() -> None:
    steps = [rest for word, rest in dockerfile() if word == "RUN" and "install-image" in rest]
    assert [step for rest in steps for step in re.findall(r"\b(system|dependencies|sluice|jars)\b", rest.split("/opt/sluice", 1)[1])] == [
        "system",
        "dependencies",
        "sluice",
        "jars",
    ]
    others = [rest for word, rest in dockerfile() if word == "RUN" and "install-image" not in rest]
    assert all(re.match(r"groupadd ", rest) for rest in others)


def test_files_that_the_image_copies_exist_and_are_not_ignored() -> None:
    wanted = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((ROOT / each).exists() for each in wanted)
    copied = [each for word, rest in dockerfile() if word == "COPY" for each in rest.split()[:-1]]
    assert all(each == "." or ((ROOT / each).exists() and each.split("/")[0] in wanted) for each in copied)


def test_the_image_is_not_root() -> None:
    assert ("USER", "10001:10001") in dockerfile()


# --- docker-compose.yml ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", compose()["services"])
def test_a_service_s_files_volumes_and_neighbours_exist(name: str) -> None:
    all_of_it = compose()
    service = all_of_it["services"][name]
    sources = [each.split(":")[0] for each in service.get("volumes", [])]
    assert all((ROOT / each).exists() if each.startswith(".") else each in all_of_it["volumes"] for each in sources)
    for other, how in service.get("depends_on", {}).items():
        needed = all_of_it["services"][other]
        assert how["condition"] != "service_healthy" or needed["image"] == "sluice" or "healthcheck" in needed
        assert set(needed.get("profiles", [])) <= set(service.get("profiles", []))


def test_every_port_is_published_on_this_machine_alone() -> None:
    published = [port for each in compose()["services"].values() for port in each.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_passwords_appear_only_as_defaults() -> None:
    lines = [line for line in (ROOT / "docker-compose.yml").read_text().splitlines() if re.search(r"PASSWORD|SECRET|://\w+:[^/]*@", line)]
    reported = [line for line in lines if not line.startswith("#")]
    assert len(reported) == 5
    assert all(re.search(r"\$\{(POSTGRES_PASSWORD|S3_SECRET_KEY|GRAFANA_PASSWORD):-[\w-]+\}", line) for line in reported)


def test_no_image_is_of_an_unknown_version_or_from_a_named_registry() -> None:
    for image in (each["image"] for each in compose()["services"].values() if each["image"] != "sluice"):
        name, _, tag = image.partition(":")
        assert re.search(r"\d", tag)
        assert "." not in name


# --- Kubernetes ------------------------------------------------------------------------------------------------------------

every_manifest = pytest.mark.parametrize(
    "manifest",
    [each for _, each in manifests()],
    ids=[f"{file.name}: {each['kind']} {each['metadata']['name']}" for file, each in manifests()],
)
every_manifest_with_a_spec = pytest.mark.parametrize(
    "manifest",
    [each for _, each in manifests() if "spec" in each],
    ids=[f"{file.name}: {each['kind']} {each['metadata']['name']}" for file, each in manifests() if "spec" in each],
)


@every_manifest
@pytest.mark.parametrize("version", [OLDEST_KUBERNETES, NEWEST_KUBERNETES])
def test_a_manifest_fits_the_schema(manifest: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_the_schema_refuses_invalid_manifests() -> None:
    manifest = yaml.safe_load((ROOT / "deploy/kubernetes/containers.yaml").read_text().split("---\n")[1])
    manifest["spec"]["template"]["spec"]["containers"][0]["envFrome"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="envFrome"):
        kubernetes_validate.validate(manifest, OLDEST_KUBERNETES, strict=True)


@every_manifest
def test_a_manifest_is_of_no_namespace(manifest: dict[str, Any]) -> None:
    assert "namespace" not in manifest["metadata"]


@every_manifest_with_a_spec
def test_a_pod_takes_no_setting_from_a_service_s_name(manifest: dict[str, Any]) -> None:
    pod = manifest["spec"].get("template", {}).get("spec")
    assert pod is None or pod["enableServiceLinks"] is False


@every_manifest_with_a_spec
def test_selectors_select_the_pods_of_the_manifests(manifest: dict[str, Any]) -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for _, each in manifests() if "template" in each.get("spec", {})]
    selected = manifest["spec"].get("selector") or manifest["spec"].get("podSelector")
    wanted = selected.get("matchLabels", selected)
    assert any(wanted.items() <= each.items() for each in labels)


@every_manifest_with_a_spec
def test_a_pod_declares_the_volumes_that_it_mounts(manifest: dict[str, Any]) -> None:
    pod = manifest["spec"].get("template", {}).get("spec", {"containers": []})
    claimed = {each["metadata"]["name"] for each in manifest["spec"].get("volumeClaimTemplates", [])}
    had = claimed | {each["name"] for each in pod.get("volumes", [])}
    started = [*pod.get("initContainers", []), *pod["containers"]]
    assert {mount["name"] for each in started for mount in each["volumeMounts"]} == had


def test_the_coordinator_accepts_the_service_account_of_the_containers() -> None:
    documents = [
        each for name in ("coordinator", "containers") for each in yaml.safe_load_all((ROOT / f"deploy/kubernetes/{name}.yaml").read_text())
    ]
    accounts = {each["metadata"]["name"] for each in documents if each["kind"] == "ServiceAccount"}
    pods = {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in documents if "template" in each.get("spec", {})}
    [launch] = [each for each in launches() if each.file == "coordinator.yaml"]
    providers = [IdentityProvider.model_validate(each) for each in json.loads(launch.environment["SLUICE_IDENTITY_PROVIDERS"])]
    [provider] = [each for each in providers if each.kubernetes]
    [row] = provider.roles
    token = {each["name"]: each for each in pods["flights"]["volumes"]}["token"]["projected"]["sources"][0]["serviceAccountToken"]
    mounts = {each["name"]: each["mountPath"] for each in pods["flights"]["containers"][0]["volumeMounts"]}
    [containers] = [each for each in launches() if each.file == "containers.yaml"]

    assert {each["serviceAccountName"] for each in pods.values()} == accounts
    assert token["audience"] == provider.audience
    assert row.subject == f"system:serviceaccount:$(POD_NAMESPACE):{pods['flights']['serviceAccountName']}"
    assert (row.roles, row.jobs) == (("agent",), ("flights",))
    assert containers.environment["SLUICE_TOKEN_FILE"] == f"{mounts['token']}/{token['path']}"


def test_manifests_and_manuals_name_the_image_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    files = [*(ROOT / "deploy").rglob("*.yaml"), *(ROOT / "docs").glob("*.md")]
    named = [tag for file in files for tag in re.findall(r"sluice:(\d+\.\d+\.\d+)", file.read_text())]
    assert named
    assert set(named) == {version}


def test_the_alert_on_a_degraded_backup_is_raised_within_a_minute() -> None:
    """At worst, a chore, a scrape and an evaluation each come just before what they are to find."""
    prometheus = ROOT / "deploy" / "prometheus"
    intervals = yaml.safe_load((prometheus / "prometheus.yml").read_text())["global"]
    scraped, evaluated = (int(intervals[name].removesuffix("s")) for name in ("scrape_interval", "evaluation_interval"))
    rules = [rule for group in yaml.safe_load((prometheus / "rules.yml").read_text())["groups"] for rule in group["rules"]]
    [alert] = [rule for rule in rules if rule.get("alert") == "SluiceBackupDegraded"]
    assert "for" not in alert
    settings = ContainerSettings.model_fields
    overdue = settings["commit_late_seconds"].default + settings["report_seconds"].default
    [every] = [field.default for field in fields(BackupMonitor) if field.name == "every"]
    assert isinstance(every, timedelta)
    assert max(overdue, TOLERATED_FOR.total_seconds()) + every.total_seconds() + scraped + evaluated < 60
