"""The private parts of azure-eventhub that we stand on: a version that has moved one is told by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import azure.eventhub._pyamqp.aio as amqp
import pytest
from azure.eventhub._pyamqp import client

from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.amqp import sdk_internals
from leasehold.pipeline.connectors.eventhubs.amqp.connection import Hub
from leasehold.pipeline.connectors.eventhubs.sink.sender import attach
from leasehold.service.config.settings import Settings
from leasehold.service.errors import StartFailed
from leasehold.service.wiring.build import pipeline_of

CONNECTION = "Endpoint=sb://bank.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
PACKAGE = Path(sdk_internals.__file__).parents[1]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    sdk_internals.sdk.cache_clear()
    yield
    sdk_internals.sdk.cache_clear()


def test_the_sdk_that_is_installed_has_them_all() -> None:
    assert sdk_internals.missing_hooks() == []
    assert sdk_internals.sdk().ReceiveClientAsync is amqp.ReceiveClientAsync


@pytest.mark.parametrize("name", sorted(sdk_internals.TAKEN))
def test_a_name_that_was_moved_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sdk_internals.TAKEN, name, "azure.eventhub._elsewhere")
    with pytest.raises(
        sdk_internals.HooksMoved, match=rf"^azure-eventhub [0-9.]+ lacks azure\.eventhub\._elsewhere\.{name}, which"
    ):
        sdk_internals.sdk()


def test_a_method_that_was_moved_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(amqp.Connection, "_process_incoming_frame")
    with pytest.raises(sdk_internals.HooksMoved, match=r"lacks Connection\._process_incoming_frame, which"):
        sdk_internals.sdk()


def test_what_an_instance_no_longer_keeps_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = amqp.ReceiverLink.__init__

    def init(self: amqp.ReceiverLink, *args: object, **options: object) -> None:
        begun(self, *args, **options)  # type: ignore[arg-type]
        del self.delivery_count

    monkeypatch.setattr(amqp.ReceiverLink, "__init__", init)
    with pytest.raises(sdk_internals.HooksMoved, match=r"lacks ReceiverLink\.delivery_count, which"):
        sdk_internals.sdk()


def test_a_host_over_an_sdk_that_lacks_a_part_fails_at_its_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr(amqp.Connection, "_process_incoming_frame")
    feed = {"type": "eventhubs", "connection_string": CONNECTION, "event_hub": "hub"}
    pipeline = {"name": "orders", "feed": feed, "sink": {"type": "log", "path": str(tmp_path)}}
    settings = Settings.model_validate({"leases": {"type": "memory"}, "pipelines": [pipeline]})
    with pytest.raises(
        StartFailed, match=r"^pipeline 'orders' cannot be created: azure-eventhub [0-9.]+ lacks Connection\."
    ):
        pipeline_of(settings.pipelines[0], settings.spark.make(), settings.leases.timing)


async def test_a_sender_announces_no_limit_of_its_own_whatever_the_sdk_would(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, announced = amqp.SendClientAsync.__init__, []

    def init(self: amqp.SendClientAsync, *args: Any, **options: Any) -> None:
        begun(self, *args, **options)
        announced.append(self._max_message_size)
        raise TimeoutError

    hub = Hub(account_of(connection_string=CONNECTION, event_hub="hub"))
    monkeypatch.setattr(client, "LINK_MAX_MESSAGE_SIZE", 1 << 20, raising=False)  # as in 5.15.0
    monkeypatch.setattr(amqp.SendClientAsync, "__init__", init)
    with pytest.raises(TimeoutError):
        await attach(hub, "0", None, idempotent=True)
    assert announced == [0]


@pytest.mark.parametrize(("credit", "window", "has_credit"), [(1, 1, True), (0, 1, False), (1, 0, False)])
def test_a_sender_has_credit_while_both_link_and_session_have_room(credit: int, window: int, has_credit: bool) -> None:
    link, session = SimpleNamespace(current_link_credit=credit), SimpleNamespace(remote_incoming_window=window)
    assert sdk_internals.has_credit(SimpleNamespace(_link=link, _session=session)) is has_credit


def test_no_private_part_is_used_that_is_not_named() -> None:
    named = {attribute for attributes in sdk_internals.KEPT.values() for attribute in attributes}
    used = {name for path in PACKAGE.rglob("*.py") for name in _private_of_others(path)}
    assert used <= named, f"add to KEPT in sdk_internals.py: {used - named}"


def test_no_other_module_touches_private_parts() -> None:
    found = {path.name for path in PACKAGE.rglob("*.py") if any(_private_of_others(path))}
    assert found == {"sdk_internals.py"}


def _private_of_others(path: Path) -> Iterator[str]:
    """Attributes with an underscore that are taken of anything but `self` and `cls`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and not _is_own(node.value):
            yield node.attr


def _is_private(name: str) -> bool:
    """`_replace` is a public method of a named tuple."""
    return re.match("_[^_]", name) is not None and name != "_replace"


def _is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def test_nobody_else_imports_the_sdk() -> None:
    """Import-linter knows `azure` as one, and Cosmos DB has its own places for it."""
    root = PACKAGE.parents[2]
    imports = re.compile(r"^\s*(from|import) azure\.eventhub\b", re.MULTILINE)
    found = {path for package in ("leases", "pipeline", "service") for path in (root / package).rglob("*.py")}
    assert {path for path in found if imports.search(path.read_text())} == {
        PACKAGE / "amqp" / "sdk_internals.py",
        PACKAGE / "amqp" / "connection.py",
    }
