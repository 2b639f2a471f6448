"""The depth of JSON texts, found before they are parsed: against what a parser finds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.common.nesting import NestedTooDeeply, check_nesting, parsed_json

LEVELS = 20
TEXTS = st.text(alphabet='[]{}"\\,:a\u00e9\ud800', max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: Any) -> int:
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(map(depth_of, value.values() if isinstance(value, dict) else value), default=0)


def is_accepted(text: str, levels: int) -> bool:
    try:
        check_nesting(text, levels)
    except NestedTooDeeply:
        return False
    return True


@given(VALUES, st.sampled_from([LEVELS - 2, LEVELS - 1, LEVELS, LEVELS + 1]), st.booleans(), st.booleans())
def test_a_text_is_refused_if_and_only_if_a_parser_would_go_deeper(
    value: Any, around: int, is_ascii: bool, is_indented: bool
) -> None:
    for _ in range(max(0, around - depth_of(value))):
        value = [value, "]"]
    text = json.dumps(value, ensure_ascii=is_ascii, indent=1 if is_indented else None)
    assert is_accepted(text, LEVELS) == (depth_of(value) <= LEVELS)


@pytest.mark.parametrize(
    ("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]"), ('{"]":[', "]}"), ('["\\"]",', "]")]
)
@pytest.mark.parametrize("rest", ["{}", '"', "", "]]]]", "\\"])
def test_a_text_without_an_end_is_as_deep_as_a_parser_can_come_in_it(opening: str, closing: str, rest: str) -> None:
    levels = sum(opening.count(each) for each in "[{")
    text = opening * 1000 + rest
    with pytest.raises(NestedTooDeeply, match=f"nested more than {LEVELS} levels deep"):
        check_nesting(text, LEVELS)
    check_nesting(opening * (LEVELS // levels) + closing * (LEVELS // levels), LEVELS)


@pytest.mark.parametrize("text", ['"' + "[" * 1000 + '"', '["' + '\\"[' * 1000 + '"]', "[" + "[]," * 1000 + "[]]"])
def test_brackets_in_strings_and_beside_each_other_are_no_depth(text: str) -> None:
    check_nesting(text, LEVELS)
    assert parsed_json(text, LEVELS) == json.loads(text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32-le"])
def test_octets_are_read_in_the_encodings_that_json_allows(encoding: str) -> None:
    assert parsed_json('{"a": "é"}'.encode(encoding), LEVELS) == {"a": "é"}
    with pytest.raises(NestedTooDeeply):
        parsed_json(("[" * 1000).encode(encoding), LEVELS)


def test_what_is_no_json_is_a_value_error() -> None:
    for text in ("", b"", b"\xff", "[1", "nonsense"):
        with pytest.raises(ValueError, match=r".") as caught:
            parsed_json(text, LEVELS)
        assert not isinstance(caught.value, NestedTooDeeply)
