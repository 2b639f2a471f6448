"""The options of `leasehold emulate`, and the compose file that uses them."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.machinery import BuiltinImporter
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from leasehold.service.cli.main import _emulate as found
from leasehold_emulators import command as module
from leasehold_emulators.blob import server as blob
from leasehold_emulators.command import emulate
from leasehold_emulators.cosmos import server as cosmos
from leasehold_emulators.eventhubs import server as eventhubs

LOCAL = Path(__file__).parents[3] / "docs/examples/local"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options with which an emulator would serve."""
    options: list[Any] = []
    for server in (blob, cosmos, eventhubs):
        monkeypatch.setattr(server, "serve", options.append)

    def run(service: str, serving: Any, lines: Any, given: dict[str, Any]) -> None:
        serving({name: given[name] for name in ("host", "port", "tls_port", "control_port", "control_host", "data")})

    monkeypatch.setattr(module, "_run", run)
    return options


def call(*arguments: str) -> Any:
    return CliRunner().invoke(emulate, arguments)


@pytest.mark.parametrize("arguments", [(), ("--help",), ("cosmos", "--help"), ("cosmos", "--port", "1")])
def test_without_its_package_the_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    with monkeypatch.context() as absent:
        for name in ("leasehold_emulators", "leasehold_emulators.command"):
            absent.delitem(sys.modules, name)
        absent.setattr(sys, "meta_path", [BuiltinImporter])
        command = found()
    called = CliRunner().invoke(command, arguments)
    assert (called.exit_code, called.stdout) == (2, "")
    assert called.stderr == (
        "leasehold: the emulators are a package of their own: pip install 'leasehold-processor[emulators]'\n"
    )


def test_by_default_they_serve_loopback_from_memory(served: list[Any]) -> None:
    for kind in ("cosmos", "eventhubs", "blob"):
        assert call(kind).exit_code == 0
    assert [(each.host, each.port, each.control_port, each.tls_port, each.data) for each in served] == [
        ("127.0.0.1", 8081, 9001, None, None),
        ("127.0.0.1", 5672, 9002, None, None),
        ("127.0.0.1", 10000, 9003, None, None),
    ]
    assert (served[0].ranges, served[0].containers, served[1].hubs) == (4, (), {"events": 4})


def test_containers_and_hubs_are_named_with_their_parts(served: list[Any]) -> None:
    call("cosmos", "--container", "bank/tx:/account", "--container", "bank/other:/a/b", "--ranges", "1")
    call("eventhubs", "--hub", "tx:32", "--hub", "other:1", "--group", "sinks", "--events-max", "9")
    call("blob", "--container", "leases", "--data", "state")
    assert (served[0].containers, served[0].ranges) == ((("bank", "tx", "/account"), ("bank", "other", "/a/b")), 1)
    assert (served[1].hubs, served[1].groups, served[1].events_max) == ({"tx": 32, "other": 1}, {"sinks"}, 9)
    assert (served[2].containers, served[2].data) == (("leases",), Path("state"))


@pytest.mark.parametrize(
    "arguments",
    [
        ("cosmos", "--container", "bank/tx"),
        ("cosmos", "--container", "bank/tx:account"),
        ("eventhubs", "--hub", "tx"),
        ("eventhubs", "--hub", "tx:0"),
        ("eventhubs", "--hub", ":4"),
        ("blob", "--port", "70000"),
    ],
)
def test_what_has_another_form_is_refused(served: list[Any], arguments: tuple[str, ...]) -> None:
    answer = call(*arguments)
    assert answer.exit_code == 2
    assert arguments[2] in answer.output
    assert served == []


def test_the_compose_file_starts_what_the_page_needs(served: list[Any]) -> None:
    services = yaml.safe_load((LOCAL / "compose.yaml").read_text())["services"]
    for name in ("cosmos", "eventhubs", "blob"):
        service = services[name]
        assert service["build"]["target"] == "emulators"
        answer = call(*shlex.split(service["command"])[1:])
        assert answer.exit_code == 0, answer.output
        ports = [served[-1].port, served[-1].control_port]
        assert service["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports]
        assert served[-1].control_host == "0.0.0.0", "or the published port leads nowhere"
        assert served[-1].host == "0.0.0.0"
        assert served[-1].data is not None
    assert services["azurite"]["ports"] == services["blob"]["ports"][:1]
    host = services["host"]
    for context in (host["build"], services["cosmos"]["build"]["context"]):
        assert (LOCAL / context / "Dockerfile").is_file()
    assert set(host["environment"]) == set(re.findall(r"\$\{(\w+)\}", (LOCAL / "bank.yaml").read_text()))
    assert host["environment"]["BANK_COSMOS"] == f"AccountEndpoint=http://cosmos:8081/;AccountKey={cosmos.KEY};"
    assert served[0].containers == (("bank", "transactions", "/account"),)
