"""Positions as people paste them."""

from __future__ import annotations

import json

import pytest

from leasehold.service.cli.migration import unescaped

CONTINUATION = '{"v":1,"offset":38}'


@pytest.mark.parametrize("text", [CONTINUATION, json.dumps(CONTINUATION)[1:-1]])
def test_a_continuation_may_be_pasted_with_its_quotes_escaped(text: str) -> None:
    assert unescaped(text) == CONTINUATION


@pytest.mark.parametrize("text", ["earliest", "2026-01-31T12:00:00Z", '"17"', '\\"17\\"'])
def test_other_places_stay_as_they_are(text: str) -> None:
    assert unescaped(text) == text
