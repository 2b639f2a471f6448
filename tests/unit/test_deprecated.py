"""Old names of public modules: for one release they lead to the new ones, with a warning."""

from __future__ import annotations

import importlib
import sys

import pytest

RENAMED = {
    "pipeline.cancelled": "pipeline.cancellation",
    "pipeline.published": "pipeline.output_events",
    "pipeline.publishing": "pipeline.publishing_writer",
}


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_leads_to_the_new_module_and_warns(old: str) -> None:
    new = importlib.import_module(RENAMED[old])
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=RENAMED[old]):
        found = importlib.import_module(old)
    names = [name for name, value in vars(new).items() if getattr(value, "__module__", None) == new.__name__]
    public = [name for name in names if not name.startswith("_")]
    assert public
    assert all(getattr(found, name) is getattr(new, name) for name in public)
