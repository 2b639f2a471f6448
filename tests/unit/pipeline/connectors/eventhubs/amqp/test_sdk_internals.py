"""The private parts of azure-eventhub that we stand on: a version that has moved one is told by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import azure.eventhub
import azure.eventhub._pyamqp.aio as amqp
import pytest

from pipeline.connectors.eventhubs.amqp import sdk_internals

PACKAGE = Path(sdk_internals.__file__).parents[1]


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    sdk_internals.sdk.cache_clear()
    yield
    sdk_internals.sdk.cache_clear()


def test_the_sdk_that_is_installed_has_them_all() -> None:
    assert sdk_internals.missing_hooks() == []
    assert azure.eventhub.__version__ == sdk_internals.VERSION
    assert sdk_internals.sdk().ReceiveClientAsync is amqp.ReceiveClientAsync


@pytest.mark.parametrize("name", sorted(sdk_internals.TAKEN))
def test_a_name_that_was_moved_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sdk_internals.TAKEN, name, "azure.eventhub._elsewhere")
    with pytest.raises(
        sdk_internals.HooksMoved, match=rf"no longer has azure\.eventhub\._elsewhere\.{name}: install azure-eventhub=="
    ):
        sdk_internals.sdk()


def test_a_method_that_was_moved_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(amqp.Connection, "_process_incoming_frame")
    with pytest.raises(sdk_internals.HooksMoved, match=r"no longer has Connection\._process_incoming_frame: install"):
        sdk_internals.sdk()


def test_what_an_instance_no_longer_keeps_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = amqp.ReceiverLink.__init__

    def init(self: amqp.ReceiverLink, *args: object, **options: object) -> None:
        begun(self, *args, **options)  # type: ignore[arg-type]
        del self.delivery_count

    monkeypatch.setattr(amqp.ReceiverLink, "__init__", init)
    with pytest.raises(sdk_internals.HooksMoved, match=r"no longer has ReceiverLink\.delivery_count: install"):
        sdk_internals.sdk()


def test_no_private_part_is_used_that_is_not_named() -> None:
    named = {attribute for attributes in sdk_internals.KEPT.values() for attribute in attributes}
    used = {name for path in PACKAGE.rglob("*.py") for name in _private_of_others(path)}
    assert used <= named, f"add to KEPT in sdk_internals.py: {used - named}"


def _private_of_others(path: Path) -> Iterator[str]:
    """Attributes with an underscore that are taken of anything but `self` and `cls`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and not _is_own(node.value):
            yield node.attr


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
