"""Generated requests to every operation as each role: every request that the table does not allow is refused, also malformed ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok

from coordinator.api import new_api
from coordinator.api.access import RULES, ContainerAccess, Rule
from coordinator.server import listen, server
from coordinator.settings import read_settings
from sluice.core.access.roles import Role
from sluice.streams.log import Log
from tests.support.api import run_body

pytestmark = pytest.mark.slow

CONTAINER, NOBODY = "container", "nobody"
SENDERS = [*Role, CONTAINER, NOBODY]


@dataclass(frozen=True)
class Guarded:
    """A coordinator that needs tokens, with one run and one container. `tokens`: by sender; "" for a sender without a token."""

    url: str
    tokens: Mapping[str, str]
    run_id: str


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    more = {"database_url": request.getfixturevalue("postgres_server").new_database()} if request.param == "postgresql" else {}
    home: Path = tmp_path_factory.mktemp("home")
    Log(home / "log").create("flights", 2)
    listening = listen("127.0.0.1", 0)
    first = home / "first-token"
    coordinator = server(read_settings(home=home, authentication=True, first_token_file=first, notices_wait_seconds=0.05, **more))
    thread = threading.Thread(target=coordinator.run, args=([listening],))
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        httpx.get(f"{url}/livez", timeout=300).raise_for_status()
        yield _filled(url, first.read_text().strip())
    finally:
        coordinator.should_exit = True
        thread.join()


def _filled(url: str, admin: str) -> Guarded:
    tokens: dict[str, str] = {Role.ADMIN: admin, NOBODY: ""}

    def post(path: str, body: object, sender: str = Role.ADMIN) -> httpx.Response:
        answer = httpx.post(f"{url}{path}", json=body, headers=bearer(tokens[sender]), timeout=300, verify=False)
        answer.raise_for_status()
        return answer

    for role in Role:
        if role is not Role.ADMIN:
            tokens[role] = post("/tokens", {"name": role, "roles": [role]}).json()["token"]
    run_id = post("/runs", run_body()).json()["runId"]
    body = {"processorId": "0", "executionContainerId": "c1", "host": "h"}
    tokens[CONTAINER] = post(f"/runs/{run_id}/containers", body, Role.AGENT).json()["token"]
    return Guarded(url, tokens, run_id)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


document = new_api().openapi()
results = schemathesis.openapi.from_dict(document).get_all_operations()
operations = {found.label: found for each in results if isinstance(each, Ok) and (found := each.ok())}
RULE_OF = {label: RULES.get(label) or RULES[label.replace("{executionContainerId}", "{executionContainerId:path}")] for label in operations}

FORMS: Mapping[str, Callable[[str, str], tuple[str, str]]] = {
    "as it is": lambda method, path: (method, path),
    "HEAD": lambda method, path: ("HEAD", path),
    "trailing slash": lambda method, path: (method, f"{path}/"),
    "two slashes": lambda method, path: (method, f"/{path}"),
    "encoded": lambda method, path: (method, "/" + "".join(f"%{ord(each):02X}" if each.isalpha() else quote(each) for each in path[1:])),
    "upper case": lambda method, path: (method, path.upper()),
    "dots": lambda method, path: (method, f"/x/..{path}"),
    "lower-case method": lambda method, path: (method.lower(), path),
}


def needs_token(rule: Rule) -> bool:
    """`unless_query` makes a part of the requests open to everybody."""
    return not rule.is_open and not rule.unless_query


def is_allowed(rule: Rule, sender: str) -> bool:
    """Whether the table allows the request at all."""
    if not needs_token(rule):
        return True
    if sender == CONTAINER:
        return rule.containers is not ContainerAccess.NONE
    return sender in rule.roles


@pytest.mark.parametrize("sender", SENDERS)
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_the_table_does_not_allow_is_refused_in_every_form(guarded: Guarded, sender: str, data: st.DataObject) -> None:
    label = data.draw(st.sampled_from(sorted(operations)))
    case = data.draw(operations[label].as_strategy(generation_mode=GenerationMode.POSITIVE))
    if "runId" in case.path_parameters:
        case.path_parameters["runId"] = guarded.run_id
    sent = case.as_transport_kwargs(base_url=guarded.url)
    method, path = FORMS[data.draw(st.sampled_from(sorted(FORMS)))](sent["method"], urlsplit(sent["url"]).path)
    headers = [(name, value) for name, value in sent["headers"].items() if name.lower() not in ("authorization", "host", "content-length")]
    tokens = [guarded.tokens[sender]] * data.draw(st.sampled_from([1, 1, 1, 2]))
    headers += [("Authorization", f"Bearer {token}") for token in tokens if token]
    query = {"wait": "0"} | {name: str(value) for name, value in (sent.get("params") or {}).items() if name != "wait"}
    with httpx.Client(timeout=300, verify=False) as http:
        content = {"json": sent["json"]} if "json" in sent else {"content": sent.get("data")}
        try:
            answer = http.request(method, f"{guarded.url}{path}", headers=headers, params=query, **content)
        except (httpx.LocalProtocolError, httpx.InvalidURL, UnicodeEncodeError):  # httpx does not send this, such as a header "00 "
            return
    assert answer.status_code < 500, answer.text
    if not is_allowed(RULE_OF[label], sender) or (len(tokens) == 2 and tokens[0] and needs_token(RULE_OF[label])):
        assert answer.status_code >= 400, (method, path, answer.text)
    assert not any(token and token.split(".")[2] in answer.text for token in guarded.tokens.values())
