"""What notifications hold: hints, and for everything else one for anybody."""

from __future__ import annotations

import json

import pytest

from leasehold.leases.store import Hint
from leasehold.leases.stores.postgres.notifications import PAYLOAD_BYTES_MAX, decode, encode


@pytest.mark.parametrize("hint", [Hint(), Hint("a"), Hint(None, "orders"), Hint("Größe '; --", 'x"y\n')])
def test_a_hint_comes_back(hint: Hint) -> None:
    assert decode(encode(hint)) == hint


def test_a_hint_that_is_too_long_is_one_for_anybody() -> None:
    assert len(encode(Hint("ü" * 3000)).encode()) <= PAYLOAD_BYTES_MAX
    assert decode(encode(Hint("ü" * 3000))) == Hint()


@pytest.mark.parametrize(
    "payload",
    ["", "a", "[]", "null", "1", '{"host":1}', '{"host":"a","pipeline":{}}', "[" * 7000, json.dumps({"other": 1})],
)
def test_what_is_no_hint_is_one_for_anybody(payload: str) -> None:
    assert decode(payload) == Hint()
