import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases.document import (
    BODY_BYTES_MAX,
    CHILDREN_MAX,
    CONTINUATION_BYTES_MAX,
    ID_CHARACTERS_MAX,
    INTEGER_MAX,
    NAME_BYTES_MAX,
    UNKNOWN_DEPTH_MAX,
    decode_lease,
    encode_lease,
    lease_id,
    lease_prefix,
    partition_of,
)
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.lease import SINK_STATE_BYTES_MAX, Child, Lease

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(0, INTEGER_MAX)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
unknown_fields = st.dictionaries(texts.map("x-{}".format), json_values, max_size=3)
owners = st.one_of(
    st.just({"owner": None, "incarnation": None}), st.fixed_dictionaries({"owner": texts, "incarnation": texts})
)
leases = st.builds(
    lambda owned, **fields: Lease(**owned, **fields),
    owners,
    pipeline=st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True),
    partition=texts,
    epoch=numbers,
    generation=numbers,
    tick=numbers,
    scope=st.none() | texts,
    continuation=st.none() | texts,
    sink_state=texts,
    handoff_to=st.none() | texts,
    closed=st.booleans(),
    tombstone=st.booleans(),
    parents=st.lists(texts, max_size=3).map(tuple),
    children=st.lists(st.builds(Child, texts, st.none() | texts, st.none() | texts), max_size=3).map(tuple),
    unknown=unknown_fields,
)

LEASE = Lease(
    pipeline="balances",
    partition="transactions-1.csv",
    owner="host-a",
    incarnation="1f",
    epoch=4,
    continuation='{"offset":7}',
    children=(Child("c", None, begun=True), Child("d", None)),
)
ID = "balances/leases/transactions-1.csv"
BODY = encode_lease(LEASE)


def with_fields(**changes: object) -> str:
    return json.dumps(json.loads(BODY) | changes, ensure_ascii=False)


def without(name: str) -> str:
    return json.dumps({key: value for key, value in json.loads(BODY).items() if key != name})


def refused(body: str, *, reason: str, id: str = ID) -> None:
    with pytest.raises(InvalidDocument, match=reason) as caught:
        decode_lease(id, body)
    assert f"'{id}'" in str(caught.value)
    str(caught.value).encode()  # it can be logged


@given(leases)
def test_a_lease_comes_back_as_it_was_written(lease: Lease) -> None:
    assert decode_lease(lease_id(*lease.key), encode_lease(lease)) == lease


@given(unknown_fields)
def test_unknown_fields_survive_a_change_of_the_lease(unknown: dict[str, object]) -> None:
    lease = decode_lease(ID, json.dumps(json.loads(BODY) | unknown))
    written = json.loads(encode_lease(lease.renewed()))
    assert {name: written[name] for name in unknown} == unknown
    assert written["tick"] == LEASE.tick + 1


@given(st.text(max_size=200) | json_values.map(json.dumps))
def test_anything_else_is_refused_and_nothing_else_happens(body: str) -> None:
    with pytest.raises(InvalidDocument):
        decode_lease(ID, body)


@given(st.sampled_from(sorted(json.loads(BODY))), json_values)
def test_a_field_with_any_value_is_read_as_written_or_refused(name: str, value: object) -> None:
    try:
        lease = decode_lease(ID, with_fields(**{name: value}))
    except InvalidDocument:
        return
    assert json.loads(encode_lease(lease))[name] == value


@pytest.mark.parametrize("length", range(0, len(BODY), 7))
def test_a_truncated_document_is_refused(length: int) -> None:
    refused(BODY[:length], reason="is not JSON")


@pytest.mark.parametrize("body", ["[]", "null", "7", '"text"', "true"])
def test_a_document_that_is_no_object_is_refused(body: str) -> None:
    refused(body, reason="is not a JSON object")


@pytest.mark.parametrize("name", sorted(json.loads(BODY)))
def test_a_missing_field_is_refused_by_name(name: str) -> None:
    refused(without(name), reason=f"field '{name}' must be")


WRONG: dict[str, list[object]] = {
    "version": ["1", 1.0, True, None],
    "pipeline": [None, 7, [], {}],
    "partition": [None, 7, [], {}],
    "owner": [7, False, []],
    "incarnation": [7, False, []],
    "epoch": ["4", 4.0, 4e2, True, None, [4], {}],
    "generation": ["0", 0.0, False, None],
    "tick": ["0", 0.0, False, None],
    "continuation": [7, True, {"offset": 7}, []],
    "sinkState": [None, 7, {}],
    "handoffTo": [7, True, []],
    "closed": [0, 1, "false", None, []],
    "parents": [None, "a", {}, [1], [None], ["a", []]],
    "children": [None, "a", {}, ["c"], [["c", None]]],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_type_is_refused_by_name(name: str, value: object) -> None:
    refused(with_fields(**{name: value}), reason=f"field '{name}' must")


@pytest.mark.parametrize(
    ("child", "field"),
    [
        ({}, "partition"),
        ({"partition": 1, "continuation": None}, "partition"),
        ({"partition": "c"}, "continuation"),
        ({"partition": "c", "continuation": 1}, "continuation"),
    ],
)
def test_a_child_with_a_wrong_or_missing_field_is_refused(child: object, field: str) -> None:
    refused(with_fields(children=[child]), reason=f"field '{field}' must")


@pytest.mark.parametrize("name", ["epoch", "generation", "tick"])
@pytest.mark.parametrize("value", [-1, 2**63, 10**300])
def test_a_number_out_of_range_is_refused_by_name(name: str, value: int) -> None:
    refused(with_fields(**{name: value}), reason=f"field '{name}' must lie between 0 and {2**63 - 1}")


@pytest.mark.parametrize("version", [-1, 0, 3, 99])
def test_an_unknown_version_is_refused(version: int) -> None:
    refused(with_fields(version=version), reason="field 'version'")


@pytest.mark.parametrize(
    ("name", "bytes_max"),
    [
        *((name, NAME_BYTES_MAX) for name in ("pipeline", "partition", "owner", "incarnation", "handoffTo")),
        ("continuation", CONTINUATION_BYTES_MAX),
        ("sinkState", SINK_STATE_BYTES_MAX),
    ],
)
def test_a_text_that_is_too_long_is_refused_by_name(name: str, bytes_max: int) -> None:
    for text in ("x" * (bytes_max + 1), "é" * (bytes_max // 2 + 1)):
        refused(with_fields(**{name: text}), reason=f"field '{name}' is longer than {bytes_max} bytes")


def test_too_many_parents_are_refused() -> None:
    refused(with_fields(parents=["p"] * (CHILDREN_MAX + 1)), reason=f"field 'parents' has more than {CHILDREN_MAX}")


def test_a_document_that_is_too_large_is_refused_before_it_is_parsed() -> None:
    refused("[" * 2_000_000, reason=f"is larger than {BODY_BYTES_MAX} bytes")
    refused(with_fields(more="é" * (BODY_BYTES_MAX // 2)), reason=f"is larger than {BODY_BYTES_MAX} bytes")


@pytest.mark.parametrize(("before", "after"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
@pytest.mark.parametrize("depth", [UNKNOWN_DEPTH_MAX, 900, 10_000])
def test_deep_nesting_is_refused(before: str, after: str, depth: int) -> None:
    nested = before * depth + "1" + after * depth
    refused(BODY[:-1] + f',"more":{nested}}}', reason="nested|larger than")


def test_a_scope_is_left_out_where_there_is_none() -> None:
    assert '"scope"' not in BODY
    assert '"scope":"0-7"' in encode_lease(replace(LEASE, scope="0-7"))


@pytest.mark.parametrize("scope", [None, 7, "s" * (NAME_BYTES_MAX + 1)])
def test_a_scope_that_is_no_short_text_is_refused(scope: object) -> None:
    refused(with_fields(scope=scope), reason="field 'scope'")
    refused(with_fields(children=[{"partition": "c", "continuation": None, "scope": scope}]), reason="field 'scope'")


def test_nesting_below_the_limit_is_kept() -> None:
    nested: list[object] = []
    for _ in range(UNKNOWN_DEPTH_MAX - 2):
        nested = [nested]
    assert decode_lease(ID, with_fields(more=nested)).unknown["more"] == nested


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000])
@pytest.mark.parametrize("field", ["epoch", "more"])
def test_a_number_that_is_not_json_or_not_finite_is_refused(field: str, number: str) -> None:
    fields = json.loads(BODY) | {field: "?"}
    refused(json.dumps(fields).replace('"?"', number), reason="is not JSON")


@pytest.mark.parametrize("twice", ['"epoch":5', '"epo\\u0063h":5', '"more":[{"a":1,"a":1}]'])
def test_a_duplicate_key_is_refused(twice: str) -> None:
    refused(BODY[:-1] + f",{twice}}}", reason="a key appears twice")


@pytest.mark.parametrize("name", ["owner", "continuation", "sinkState", "parents", "children", "more", "ke\ud800y"])
def test_a_lone_surrogate_is_refused(name: str) -> None:
    value: object = {"parents": ["\ud800"], "children": [{"partition": "\udfff", "continuation": None}]}.get(
        name, "\udc00"
    )
    refused(with_fields(**{name: value}), reason="holds a lone surrogate")
    refused(json.dumps(json.loads(BODY) | {name: value}), reason="holds a lone surrogate")  # as an escape


def test_a_lone_surrogate_deep_in_an_unknown_field_is_refused() -> None:
    refused(with_fields(more=[{"a": {"\ud800": 1}}]), reason="field 'more' holds a lone surrogate")


@pytest.mark.parametrize("id", ["balances/leases/other", "other/leases/transactions-1.csv", "", ID + " ", ID.upper()])
def test_a_document_under_another_id_is_refused(id: str) -> None:
    refused(BODY, id=id, reason="belongs under another id")


@pytest.mark.parametrize("name", ["owner", "incarnation"])
def test_an_owner_without_incarnation_is_refused(name: str) -> None:
    refused(with_fields(**{name: None}), reason="set together or not at all")


@pytest.mark.parametrize(
    "lease",
    [
        replace(LEASE, epoch=INTEGER_MAX).acquired("host-b", "2", ""),
        replace(LEASE, tick=INTEGER_MAX).renewed(),
        replace(LEASE, generation=INTEGER_MAX).reset(None),
        LEASE.epoch_raised(INTEGER_MAX, ""),
        LEASE.acquired("host-b", "2", "s" * (SINK_STATE_BYTES_MAX + 1)),
        LEASE.checkpointed("\x00" * CONTINUATION_BYTES_MAX, ""),  # six bytes each, as JSON
        LEASE.checkpointed("\ud800", ""),
        LEASE.handoff_requested("h" * (NAME_BYTES_MAX + 1)),
        LEASE.ended(None, tuple(Child(str(n), None) for n in range(CHILDREN_MAX + 1))),
    ],
    ids=["epoch", "tick", "generation", "raised", "state", "continuation", "surrogate", "handoff", "children"],
)
def test_what_could_not_be_read_back_is_never_written(lease: Lease) -> None:
    with pytest.raises(InvalidDocument, match=f"was not written.*'{ID}'"):
        encode_lease(lease)


@given(texts.map(lambda text: text[:15]))
def test_an_id_stays_within_the_alphabet_of_ids_and_leads_back_to_its_partition(partition: str) -> None:
    made = lease_id("balances", partition)
    assert re.fullmatch(r"balances/leases/[A-Za-z0-9._%-]*", made)
    assert made.startswith(lease_prefix("balances"))
    assert partition_of(made) == partition


@pytest.mark.parametrize("character", ["a", "é", "漢", "😀", "%", "/"])
def test_long_names_of_any_script_have_ids_of_their_own_within_what_stores_take(character: str) -> None:
    names = {(character * count + end) for count in (1, 50, 60, 238, 250, 500) for end in ("", "a", "b")}
    names |= {lease_id("balances", name).rsplit("/")[-1] for name in names}  # who names a partition like another's id
    made = {lease_id("balances", name) for name in names}
    assert len(made) == len(names)
    assert max(map(len, made)) == ID_CHARACTERS_MAX
    assert all(re.fullmatch(r"balances/leases/[A-Za-z0-9._%-]*", one) for one in made)
    longest = Lease(pipeline="balances", partition=character * (NAME_BYTES_MAX // len(character.encode())))
    assert decode_lease(lease_id(*longest.key), encode_lease(longest)) == longest


@pytest.mark.parametrize("partition", [".", "..", "a/../b", "a/b", "~", "%2E", "a b", "a\r\nb", "日本"])
def test_no_partition_walks_out_of_its_prefix(partition: str) -> None:
    made = lease_id("balances", partition)
    assert made.split("/")[:2] == ["balances", "leases"]
    assert len(made.split("/")) == 3
    assert made.split("/")[2] not in (".", "..")
    assert partition_of(made) == partition
