"""Old names of public modules: for one release they lead to the new ones, with a warning."""

from __future__ import annotations

import importlib
import sys
from types import SimpleNamespace

import pytest

import leasehold
from leasehold.pipeline.connectors.memory import MemoryFeed
from leasehold.pipeline.feed import ChangeFeed
from leasehold.service.processor import Processor
from leasehold.service.worker import TrustPermit

RENAMED = {
    "leasehold.pipeline.cancelled": "leasehold.common.cancellation",
    "leasehold.pipeline.published": "leasehold.pipeline.publishing_writer",
    "leasehold.pipeline.publishing": "leasehold.pipeline.publishing_writer",
}


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_leads_to_the_new_module_and_warns(old: str) -> None:
    new = importlib.import_module(RENAMED[old])
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old}: import .* from leasehold|{old} is now {RENAMED[old]}"):
        found = importlib.import_module(old)
    names = [name for name, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__]
    public = [name for name in names if not name.startswith("_")]
    assert public
    assert all(getattr(found, name) is getattr(new, name) for name in public)


@pytest.mark.parametrize("old", ["TellingFeed", "StandingSink", "BufferingWriter", "SharedContainer"])
def test_a_protocol_that_a_base_class_took_over_may_still_be_derived_from(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"leasehold.{old} is part of leasehold"):
        protocol = getattr(leasehold, old)
    assert issubclass(type("Derived", (MemoryFeed, protocol), {}), ChangeFeed)


@pytest.mark.parametrize(
    ("kind", "old", "new"), [(TrustPermit, "granted", "wait_until_granted"), (Processor, "ended", "wait_until_ended")]
)
def test_old_names_of_methods_that_plugins_call_warn(kind: type, old: str, new: str) -> None:
    called = SimpleNamespace(**{new: lambda: "awaited"})
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(kind, old)(called) == "awaited"


def test_a_renamed_class_is_found_under_its_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="leasehold.Asked is now called AttachRequest: rename it"):
        assert leasehold.Asked is leasehold.AttachRequest
