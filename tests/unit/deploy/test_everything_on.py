"""deploy/compose/secure.yaml and the manifests for Kubernetes leave nothing open: TLS, users, secrets in files, and no rights to spare."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.settings import IdentityProvider
from sluice.core.access.roles import Role
from sluice.streams.kafka_properties import KafkaProperties
from tests.support.deployed import ROOT, SECURE, Launch, compose, launches, manifests, secured

SERVICES: Mapping[str, Mapping[str, Any]] = secured()["services"]
OURS = [name for name, each in SERVICES.items() if each["image"] == "sluice"]
PODS = {file.stem: each["spec"]["template"] for file, each in manifests() if "template" in each.get("spec", {})}
STARTED = [(name, each) for name, pod in PODS.items() for each in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]]
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|ACCESS_KEY|CREDENTIALS")
EVERYTHING_ON = [each for each in launches() if each.file in {"secure.yaml", "coordinator.yaml", "containers.yaml"}]
MADE_LATER = {"admin-token", "token", "containers-token"}
"""Files that the coordinator and the script `tokens` make. tests/integration/deploy/test_compose_identity.py runs it."""

every_started = pytest.mark.parametrize(
    "container", [each for _, each in STARTED], ids=[f"{name}: {each['name']}" for name, each in STARTED]
)


def mounts(service: str) -> dict[str, str]:
    """Source -> target of the volumes of a service of the Compose file."""
    return {each.split(":")[0]: each.split(":")[1] for each in SERVICES[service].get("volumes", [])}


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the service `certificate` makes: a directory for each volume."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = tmp_path_factory.mktemp("secrets")
    subprocess.run([ROOT / "deploy/compose/secrets", made], check=True, timeout=300)
    return made


def made_in(secrets: Path, volume: str) -> Path:
    """The directory of a volume, by the mounts of the service that fills it."""
    return secrets / Path(mounts("certificate")[volume]).name


# --- both -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launch", EVERYTHING_ON, ids=str)
def test_no_process_is_started_without_security(launch: Launch) -> None:
    assert all("--insecure" not in command for command in launch.commands)
    assert "SLUICE_INSECURE" not in launch.environment
    assert launch.environment.get("SLUICE_COORDINATOR_URL", "https://").startswith("https://")


@pytest.mark.parametrize("launch", [each for each in EVERYTHING_ON if each.is_coordinator], ids=str)
def test_the_coordinator_has_tls_a_verified_database_an_audit_log_and_an_identity_provider(launch: Launch) -> None:
    [command] = launch.commands
    assert {"--tls-certificate", "--tls-key"} <= set(command)
    assert launch.environment["SLUICE_DATABASE_URL"].endswith("?ssl=verify-full")
    assert re.search(r"://\w+@", launch.environment["SLUICE_DATABASE_URL"])  # a user without a password
    assert {"PGSSLROOTCERT", "PGPASSFILE", "SLUICE_KAFKA_PROPERTIES", "SLUICE_AUDIT_FILE", "SLUICE_FIRST_TOKEN_FILE"} <= set(
        launch.environment
    )
    providers = [IdentityProvider.model_validate(each) for each in json.loads(launch.environment["SLUICE_IDENTITY_PROVIDERS"])]
    [people] = [each for each in providers if not each.kubernetes]
    assert {role for row in people.roles for role in row.roles} == {Role.ADMIN, Role.OPERATOR, Role.DEPLOYER, Role.VIEWER}
    assert all(row.group for row in people.roles)


@pytest.mark.parametrize("launch", [each for each in EVERYTHING_ON if each.is_container], ids=str)
def test_a_container_requests_a_token_for_its_metrics(launch: Launch) -> None:
    assert launch.environment["SLUICE_METRICS_TOKEN_FILE"].startswith("/")


# --- Compose ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVICES)
def test_no_secret_is_in_the_environment_of_a_service(name: str) -> None:
    for variable, value in SERVICES[name].get("environment", {}).items():
        assert not SECRET.search(variable) or (variable.endswith("_FILE") and value.startswith("/")), variable
        assert not re.search(r"://[^/@]*:[^/@]*@", str(value)), variable


def test_a_secret_in_the_environment_would_be_seen() -> None:
    found = {name for each in compose()["services"].values() for name in each.get("environment", {}) if SECRET.search(name)}
    assert {"POSTGRES_PASSWORD", "AWS_SECRET_ACCESS_KEY", "ROOT_SECRET_ACCESS_KEY", "GF_SECURITY_ADMIN_PASSWORD"} <= found


def test_the_file_has_no_secret() -> None:
    assert not re.search(r"(password|secret)\w*[=:]\s*[\"']?[\w-]{4,}", SECURE.read_text(), re.IGNORECASE)


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_s_files_volumes_and_neighbours_exist(name: str) -> None:
    sources = list(mounts(name))
    assert all((ROOT / each).exists() if each.startswith(".") else each in secured()["volumes"] for each in sources)
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert how["condition"] != "service_healthy" or SERVICES[other]["image"] == "sluice" or "healthcheck" in SERVICES[other]
    entry = SERVICES[name].get("entrypoint", [])
    scripts = [each for each in entry if each.startswith("/deploy/")]
    assert all((ROOT / "deploy/compose" / Path(each).name).exists() for each in scripts)
    assert not scripts or mounts(name)["./deploy/compose"] == "/deploy"


def test_only_the_jobs_that_give_files_to_users_run_as_root() -> None:
    assert {name for name in OURS if SERVICES[name].get("user") == "0:0"} == {"certificate", "bucket"}
    assert SERVICES["certificate"]["network_mode"] == "none"
    assert all(SERVICES[name]["read_only"] and SERVICES[name]["cap_drop"] == ["ALL"] for name in OURS if name != "certificate")
    assert all("no-new-privileges:true" in each["security_opt"] for name, each in SERVICES.items() if name != "certificate")


def test_every_service_has_the_secrets_that_it_needs_and_no_others() -> None:
    holders: dict[str, set[str]] = {}
    for name in SERVICES:
        for source in mounts(name):
            holders.setdefault(source, set()).add(name)
    assert {volume: sorted(holders[volume] - {"certificate"}) for volume in mounts("certificate") if not volume.startswith(".")} == {
        "authority": [],
        "identity": ["coordinator", "tokens"],
        "deployer-identity": ["flights-deploy", "pizza-deploy", "tokens"],
        "flights-identity": ["flights-0", "flights-1", "flights-replay", "tokens"],
        "pizza-identity": ["pizza-0", "pizza-1", "tokens"],
        "sales-identity": ["pizza-replay"],
        "scrape": ["prometheus", "tokens"],
        "kafka-identity": ["kafka", "kafka-acls"],
        "postgres-identity": ["postgres"],
        "s3-identity": ["bucket", "s3", "s3-users"],
        "grafana-identity": ["grafana"],
    }


def named_files(service: Mapping[str, Any]) -> Iterator[Path]:
    words = [*service.get("entrypoint", []), *service.get("command", []), *map(str, service.get("environment", {}).values())]
    for word in [*words, *map(str, service.get("healthcheck", {}).get("test", []))]:
        yield from map(Path, re.findall(r"/(?:var/lib/sluice/identity|run/sluice|mnt/shared/config)/[\w.-]+", word))


@pytest.mark.parametrize("name", SERVICES)
def test_every_secret_file_that_a_service_names_is_made(name: str, secrets: Path) -> None:
    volumes = {target: made_in(secrets, source) for source, target in mounts(name).items() if source in mounts("certificate")}
    for file in named_files(SERVICES[name]):
        assert (volumes[str(file.parent)] / file.name).exists() or file.name in MADE_LATER, file


def test_a_second_start_makes_no_secret_again(secrets: Path) -> None:
    before = {each: each.read_bytes() for each in secrets.rglob("*") if each.is_file()}
    subprocess.run([ROOT / "deploy/compose/secrets", secrets], check=True, timeout=300)
    assert {each: each.read_bytes() for each in secrets.rglob("*") if each.is_file()} == before


def test_secrets_can_be_read_by_their_owner_only(secrets: Path) -> None:
    readable = {f"{each.parent.name}/{each.name}" for each in secrets.rglob("*") if each.is_file() and each.stat().st_mode & 0o077}
    assert {each for each in readable if not each.endswith("/ca.crt")} == {"scrape/metrics-token"}


def test_each_certificate_is_of_the_authority_and_for_the_name_of_its_service(secrets: Path) -> None:
    for file, name in (("identity/tls", "coordinator"), ("kafka/server", "kafka"), ("postgres/server", "postgres"), ("s3/server", "s3")):
        trusted = ["-CAfile", str(secrets / "authority/ca.crt"), "-verify_hostname", name]
        command = ["openssl", "verify", *trusted, str(secrets / f"{file}.crt")]
        subprocess.run(command, check=True, capture_output=True, timeout=300)


def test_users_of_kafka_have_passwords_of_their_own(secrets: Path) -> None:
    users: dict[str, str] = {}
    for volume in ("identity", "deployer", "pizza", "sales", "kafka"):
        file = secrets / volume / ("client.properties" if volume == "kafka" else "kafka.properties")
        text = file.read_text()
        users.update(re.findall(r'username="(\w+)" password="(\w+)"', text))
        assert KafkaProperties.read(file).protocol == "SASL_SSL"
    assert set(users) == {"coordinator", "deployer", "pizza", "sales", "kafka"}
    assert len(set(users.values())) == 5


def test_every_listener_of_kafka_has_tls_and_users_and_rights_are_needed() -> None:
    environment = SERVICES["kafka"]["environment"]
    listeners = [each.split("://")[0] for each in environment["KAFKA_LISTENERS"].split(",")]
    protocols = dict(each.split(":") for each in environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(","))
    assert {protocols[each] for each in listeners} == {"SASL_SSL"}
    assert environment["KAFKA_AUTHORIZER_CLASS_NAME"].endswith("StandardAuthorizer")
    assert environment["KAFKA_ALLOW_EVERYONE_IF_NO_ACL_FOUND"] == "false"
    assert environment["KAFKA_SUPER_USERS"] == "User:kafka"


def test_prometheus_sends_the_containers_token_to_containers_only() -> None:
    [config] = [each for each in SERVICES["prometheus"]["command"] if each.startswith("--config.file=")]
    jobs = {
        each["job_name"]: each for each in yaml.safe_load((ROOT / "deploy/prometheus" / Path(config).name).read_text())["scrape_configs"]
    }
    plain = {each["job_name"]: each for each in yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]}
    assert jobs["sluice-containers"].pop("authorization") == {"credentials_file": "/run/sluice/metrics-token"}
    assert jobs == plain


# --- Kubernetes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PODS)
def test_no_pod_runs_as_root(name: str) -> None:
    context = PODS[name]["spec"]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == 10001
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}


@every_started
def test_a_container_of_a_pod_gains_no_rights(container: Mapping[str, Any]) -> None:
    context = container["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert "runAsUser" not in context
    assert "privileged" not in context


@every_started
def test_no_secret_is_in_a_manifest(container: Mapping[str, Any]) -> None:
    for each in container.get("env", []):
        value = each.get("value", "")
        assert not SECRET.search(each["name"]) or "valueFrom" in each or value.startswith("/"), each["name"]
        assert not re.search(r"://[^/@]*:[^/@]*@", value), each["name"]


def documented(name: str) -> dict[str, set[str]]:
    """The Secrets and ConfigMaps that the comments of a manifest create, with their keys."""
    text = re.sub(r"(?m)^#", "", (ROOT / f"deploy/kubernetes/{name}.yaml").read_text())
    commands = re.findall(r"kubectl create (?:secret generic|configmap) ([\w-]+)((?: --from-\w+=\S+)+)", text)
    return {made: set(re.findall(r"--from-\w+=([\w.]+)", options)) for made, options in commands}


def sources(volume: Mapping[str, Any]) -> Iterator[tuple[str, set[str]]]:
    """Name and keys of the Secret or ConfigMap of a volume."""
    for kind, key in (("secret", "secretName"), ("configMap", "name")):
        if kind in volume:
            yield volume[kind][key], {each["key"] for each in volume[kind].get("items", [])}


@pytest.mark.parametrize("name", PODS)
def test_every_secret_and_config_map_of_a_pod_is_created_by_a_command_in_the_comments(name: str) -> None:
    pod, made = PODS[name]["spec"], {**documented("coordinator"), **documented("containers")}
    for volume in pod["volumes"]:
        for source, keys in sources(volume):
            assert keys <= made[source]
    for container in pod["containers"]:
        for each in container.get("envFrom", []):
            assert made[each["secretRef"]["name"]] == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


@every_started
def test_every_file_that_a_container_names_is_in_a_volume(container: Mapping[str, Any]) -> None:
    pod = next(pod["spec"] for pod in PODS.values() if container in [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]])
    made = {**documented("coordinator"), **documented("containers")}
    volumes = {each["name"]: each for each in pod["volumes"]}
    files = [each["value"] for each in container.get("env", []) if each["name"].endswith(("_FILE", "PGPASSFILE", "CERT", "PROPERTIES"))]
    for file in [*files, *[each for each in container.get("args", []) if each.startswith("/tls/")]]:
        if file == "-":
            continue
        [mount] = [each for each in container["volumeMounts"] if file.startswith(f"{each['mountPath']}/")]
        for source, _ in sources(volumes.get(mount["name"], {})):
            assert Path(file).name in made[source], file


@pytest.mark.parametrize("name", PODS)
def test_a_policy_names_who_reaches_a_pod(name: str) -> None:
    labels = PODS[name]["metadata"]["labels"]
    policies = [each["spec"] for _, each in manifests() if each["kind"] == "NetworkPolicy"]
    [policy] = [each for each in policies if each["podSelector"]["matchLabels"].items() <= labels.items()]
    [rule] = policy["ingress"]
    allowed = {value for peer in rule["from"] for value in peer["podSelector"]["matchLabels"].values()}
    assert allowed == ({"sluice", "prometheus", "ingress-nginx"} if name == "coordinator" else {"prometheus"})
    assert {each["port"] for each in rule["ports"]} <= {each["name"] for each in PODS[name]["spec"]["containers"][0]["ports"]}


def test_one_container_at_a_time_is_evicted_from_its_node() -> None:
    [budget] = [each["spec"] for _, each in manifests() if each["kind"] == "PodDisruptionBudget"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"].items() <= PODS["containers"]["metadata"]["labels"].items()
