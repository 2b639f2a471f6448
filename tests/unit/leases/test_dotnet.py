"""A lease in .NET's document: what .NET, KEDA and Java read there, what survives whom, and what is derived when ours is gone."""

import contextlib
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.leases import dotnet
from leasehold.leases.document import decode_lease, encode_lease, lease_id
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.lease import Child, Lease

PREFIX = "ordersappacct.documents.azure.com_q0oIAA==_q0oIALS6YvQ="
NOW = datetime(2026, 11, 22, 9, 30, 0, 123456, tzinfo=UTC)
WRITTEN_BY_DOTNET: dict[str, Any] = {
    "id": f"{PREFIX}..0",
    "version": 0,
    "_etag": '"00000000-0000-0000-ac40-0d4d3ccb01da"',
    "LeaseToken": "0",
    "FeedRange": {"Range": {"min": "", "max": "FF"}},
    "Owner": "dotnet-host-1",
    "ContinuationToken": '"1234"',
    "properties": {"custom": "kept"},
    "timestamp": "2026-03-04T23:55:16.5233511Z",
    "Mode": "Incremental Feed",
    "partitionKey": "8a0c8bb3-6d0a-4b8f-9d4c-1d0c0f4e8f11",
    "_rid": "q0oIALS6YvQBAAAAAAAAAA==",
    "_self": "dbs/q0oIAA==/colls/q0oIALS6YvQ=/docs/q0oIALS6YvQBAAAAAAAAAA==/",
    "_attachments": "attachments/",
    "_ts": 1772668516,
    "theirs": {"deep": [1, 2, {"x": None}]},
}
WRITTEN_BY_V2 = {
    "id": f"{PREFIX}..7",
    "PartitionId": "7",
    "Owner": "old",
    "ContinuationToken": '"9"',
    "SequenceNumber": 12,
    "_ts": 1500000000,
}
WRITTEN_BY_JAVA = {
    "id": f"{PREFIX}..-FF",
    "version": 1,
    "LeaseToken": "-FF",
    "feedRange": {"Range": {"min": "", "max": "FF"}},
    "Owner": "java",
    "ContinuationToken": "eyJWIjoxfQ==",
    "timestamp": "2026-03-04T23:55:16.523Z[UTC]",
    "_ts": 1772668517,
}


def read(document: dict[str, Any], **changes: Any) -> Lease:
    return dotnet.decode({**document, **changes}, pipeline="orders", prefix=PREFIX, mode=dotnet.INCREMENTAL)


def written(lease: Lease, *, now: datetime = NOW) -> dict[str, Any]:
    """As the container gives it back: numbers are doubles there."""
    document = dotnet.encode(lease, prefix=PREFIX, now=now)
    return {**json.loads(json.dumps(document), parse_int=lambda digits: int(float(digits))), "_ts": 1800000000}


def ours(**fields: Any) -> dict[str, Any]:
    return {**WRITTEN_BY_DOTNET, "leasehold": {"version": 1, "epoch": 3, "tick": 9, "incarnation": "1f", **fields}}


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
numbers = st.integers(0, 2**63 - 1)
lease_values = st.builds(
    lambda owned, named, **fields: Lease(pipeline="orders", **owned, **named, **fields),
    st.just({}) | st.fixed_dictionaries({"owner": texts, "incarnation": texts}),
    st.sampled_from(
        [
            {"partition": "0", "scope": None},
            {"partition": "17", "scope": "05C1DFFFFFFFFC-FF"},
            {"partition": "-FF", "scope": "-FF"},
            {"partition": "05C1-7F", "scope": "05C1-7F"},
        ]
    ),
    epoch=numbers,
    generation=numbers,
    tick=numbers,
    continuation=st.none() | texts,
    sink_state=texts | st.just(""),
    handoff_to=st.none() | texts,
    closed=st.booleans(),
    parents=st.lists(texts, max_size=3).map(tuple),
    children=st.lists(
        st.builds(Child, texts, st.none() | texts, st.sampled_from([None, "05-7F"]), st.booleans()), max_size=3
    ).map(tuple),
    unknown=st.dictionaries(texts.map("x-{}".format), texts | st.integers(-1000, 1000), max_size=3),
)


@given(lease_values)
def test_a_lease_comes_back_as_it_was_written(lease: Lease) -> None:
    found = read(written(lease))
    others = {name: value for name, value in found.unknown.items() if name != dotnet.DOCUMENT}
    assert replace(found, unknown=others) == lease


@given(lease_values)
def test_what_was_read_and_written_again_unchanged_is_the_same_document(lease: Lease) -> None:
    document = written(lease)
    assert written(read(document), now=NOW + timedelta(days=1)) == document


@given(lease_values)
def test_what_is_read_passes_through_a_body_of_ours(lease: Lease) -> None:
    """The store hands bodies on; nothing of the document may be lost on that way."""
    found = read(written(lease))
    assert decode_lease(lease_id("orders", found.partition), encode_lease(found)) == found


def test_a_lease_of_dotnet_is_read_with_its_owner_and_continuation() -> None:
    lease = read(WRITTEN_BY_DOTNET)
    assert (lease.partition, lease.owner, lease.continuation) == ("0", "dotnet-host-1", '"1234"')
    assert (lease.incarnation, lease.generation, lease.closed) == (dotnet.FOREIGN, 0, False)


def test_a_new_lease_is_what_dotnet_writes_and_one_field_more() -> None:
    document = dotnet.encode(Lease(pipeline="orders", partition="0", scope="-FF"), prefix=PREFIX, now=NOW)
    assert document.pop("leasehold") == {"version": 1, "epoch": 0, "tick": 0}
    assert json.dumps(document) == json.dumps(
        {
            "id": f"{PREFIX}..0",
            "version": 0,
            "LeaseToken": "0",
            "FeedRange": {"Range": {"min": "", "max": "FF"}},
            "Owner": None,
            "ContinuationToken": None,
            "properties": {},
            "timestamp": "2026-11-22T09:30:00.1234560Z",
            "Mode": "Incremental Feed",
        }
    )


@pytest.mark.parametrize("token", ["-FF", "-05C1DFFFFFFFFC", "05C1DFFFFFFFFC-FF"])
def test_a_lease_of_a_range_of_hashed_keys_is_of_version_1_and_names_its_bounds(token: str) -> None:
    document = dotnet.encode(Lease(pipeline="orders", partition=token), prefix=PREFIX, now=NOW)
    bounds = document["FeedRange"]["Range"]  # type: ignore[index]  # seen to be there
    assert (document["version"], f"{bounds['min']}-{bounds['max']}") == (1, token)


def test_a_taken_lease_of_dotnet_keeps_every_field_that_is_not_changed() -> None:
    document = written(read(WRITTEN_BY_DOTNET).acquired("host-a", "1f", ""))
    changed = {"Owner": "host-a", "timestamp": dotnet.timestamp_of(NOW), "_ts": document["_ts"]}
    system = ("_etag", "_rid", "_self", "_attachments")
    kept = {name: value for name, value in WRITTEN_BY_DOTNET.items() if name not in system}
    assert {**document, "leasehold": None} == {**kept, **changed, "leasehold": None}


def test_a_checkpoint_moves_the_timestamp_and_the_wish_of_another_does_not() -> None:
    lease = read(written(read(WRITTEN_BY_DOTNET).acquired("host-a", "1f", "")))
    later = NOW + timedelta(seconds=17)
    moved = (lease.renewed(), lease.checkpointed('"2"', ""), lease.released(), lease.epoch_raised(9, ""))
    still = (lease.handoff_requested("host-b"), lease.revoked(), lease.reset('"1"'))
    assert {written(changed, now=later)["timestamp"] for changed in moved} == {dotnet.timestamp_of(later)}
    assert {written(changed, now=later)["timestamp"] for changed in still} == {dotnet.timestamp_of(NOW)}


def test_a_wish_leaves_a_document_without_a_timestamp_without_one() -> None:
    assert "timestamp" not in written(read(WRITTEN_BY_V2).handoff_requested("host-b"))


def test_an_owner_that_goes_on_from_what_it_once_read_still_moves_the_timestamp() -> None:
    lease = read(written(read(WRITTEN_BY_DOTNET).acquired("host-a", "1f", "")))
    for n in range(1, 4):
        lease = lease.renewed()
        now = NOW + timedelta(seconds=17 * n)
        assert written(lease, now=now)["timestamp"] == dotnet.timestamp_of(now)


def test_a_range_that_others_wrote_in_their_words_is_kept_in_them() -> None:
    theirs = {"Range": {"min": "", "max": "ff", "isMinInclusive": True, "isMaxInclusive": False}}
    lease = read(WRITTEN_BY_DOTNET, FeedRange=theirs)
    assert lease.scope == "-FF"
    assert written(lease)["FeedRange"] == theirs
    assert written(replace(lease, scope="-7F"))["FeedRange"] == {"Range": {"min": "", "max": "7F"}}


@pytest.mark.parametrize("theirs", [None, 7, {}, {"PKRangeId": "0"}, {"Range": {}}, {"Range": {"min": 0, "max": "FF"}}])
def test_a_range_that_is_none_is_nobodys_scope_and_is_kept(theirs: Any) -> None:
    lease = read(WRITTEN_BY_DOTNET, FeedRange=theirs)
    assert lease.scope is None
    assert written(lease)["FeedRange"] == theirs


def test_a_timestamp_is_utc_with_seven_digits_and_a_z() -> None:
    cet = NOW.astimezone(datetime.fromisoformat("2026-01-01T00:00:00+01:00").tzinfo)
    assert dotnet.timestamp_of(cet) == "2026-11-22T09:30:00.1234560Z"


DOTNET_LEAVES_OUT_NULL = ("partitionKey", "FeedRange", "Mode")
DOTNET_FIELDS = ("id", "version", "LeaseToken", "Owner", "ContinuationToken", "properties", "timestamp")


def rewritten_by_dotnet(document: dict[str, Any], at: datetime) -> dict[str, Any]:
    """Read into its class and written from it: what that has no field for is gone, and what was missing is there."""
    known = {"properties": {}, **document, "timestamp": dotnet.timestamp_of(at)}
    kept = {name: known.get(name) for name in DOTNET_FIELDS}
    kept |= {name: known[name] for name in DOTNET_LEAVES_OUT_NULL if known.get(name) is not None}
    return {**kept, "_ts": int(at.timestamp())}


def test_a_renewal_by_dotnet_moves_the_tick_so_that_its_owner_is_seen_to_live() -> None:
    ticks = [read(rewritten_by_dotnet(WRITTEN_BY_DOTNET, NOW + timedelta(microseconds=100 * n))).tick for n in range(5)]
    assert ticks == sorted(set(ticks))


def test_without_a_timestamp_the_time_of_the_last_write_is_the_tick() -> None:
    assert read(WRITTEN_BY_V2, _ts=1500000017).tick > read(WRITTEN_BY_V2).tick


def test_no_epoch_comes_twice_however_often_others_rewrite_the_document() -> None:
    document, epochs, now = WRITTEN_BY_DOTNET, [], NOW
    for _ in range(5):
        for _ in range(3):
            lease = read(document).acquired("host-a", "1f", "")
            epochs.append(lease.epoch)
            document = written(lease, now=now)
        now += timedelta(seconds=60)
        document = rewritten_by_dotnet(document, now)
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("properties", [{"custom": "kept"}, {}, None, "missing"])
def test_a_generation_survives_every_rewrite_by_dotnet_whatever_its_properties_were(properties: Any) -> None:
    document = {**WRITTEN_BY_DOTNET, "properties": properties}
    if properties == "missing":  # as Java and the V2 library leave it
        del document["properties"]
    custom = properties if isinstance(properties, dict) else {}
    for generation in (1, 2):
        lease = read(rewritten_by_dotnet(document, NOW)).reset('"5"')
        assert lease.generation == generation
        document = rewritten_by_dotnet(written(lease), NOW)
        assert "leasehold" not in document
        assert document["properties"] == {**custom, "leaseholdGeneration": str(generation)}
    assert read(rewritten_by_dotnet(document, NOW)).generation == 2


def test_a_lease_of_the_v2_library_is_read_and_stays_readable_to_it() -> None:
    lease = read(WRITTEN_BY_V2)
    assert (lease.partition, lease.owner, lease.continuation) == ("7", "old", '"9"')
    document = written(lease.released())
    assert (document["PartitionId"], document["LeaseToken"], document["SequenceNumber"]) == ("7", "7", 12)


def test_a_lease_of_java_is_read_and_gets_the_bounds_that_dotnet_and_keda_look_for() -> None:
    lease = read(WRITTEN_BY_JAVA)
    assert (lease.partition, lease.owner, lease.tick) == ("-FF", "java", 1772668516523000)
    document = written(lease.released())
    assert document["FeedRange"] == document["feedRange"] == {"Range": {"min": "", "max": "FF"}}


@pytest.mark.parametrize("owner", [None, ""])
def test_an_owner_taken_out_by_hand_is_out(owner: str | None) -> None:
    lease = read(ours(), Owner=owner)
    assert (lease.owner, lease.incarnation, lease.epoch) == (None, None, 3)


def test_an_owner_written_by_hand_is_none_of_ours() -> None:
    assert read(ours(incarnation=None), Owner="somebody").incarnation == dotnet.FOREIGN


def test_a_full_fidelity_lease_is_not_read_by_a_pipeline_of_latest_versions() -> None:
    with pytest.raises(InvalidDocument, match=r"'Mode' is 'Full-Fidelity Feed'"):
        read(WRITTEN_BY_DOTNET, Mode=dotnet.FULL_FIDELITY)
    with pytest.raises(InvalidDocument, match=r"'Mode' is 'Incremental Feed'"):
        dotnet.decode(WRITTEN_BY_V2, pipeline="orders", mode=dotnet.FULL_FIDELITY)


WRONG: list[tuple[str, Any]] = [
    *(("version", value) for value in (2, -1, "0", True, None)),
    *(("LeaseToken", value) for value in (None, 0, "", "1", "x" * 600, ["0"])),
    *(("id", value) for value in (None, 7, f"{PREFIX}..1", "x" * 2000)),
    *(("Owner", value) for value in (7, ["a"], "x" * 600, "\ud800")),
    *(("ContinuationToken", value) for value in (7, {}, "x" * 40_000)),
    *(("Mode", value) for value in (7, "Latest", {})),
    *(("leasehold", value) for value in ("x", [], 7, {}, {"version": 1}, {"version": 3, "epoch": 1, "tick": 1})),
    ("properties", {"leaseholdGeneration": "-1"}),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_a_field_that_is_wrong_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidDocument) as caught:
        encode_lease(read(WRITTEN_BY_DOTNET, **{name: value}))
    assert len(str(caught.value)) < 2000


def test_a_field_that_nests_deeper_than_python_could_write_it_again_is_refused_by_name() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidDocument, match="field 'theirs' is nested more than 32 deep"):
        read(WRITTEN_BY_DOTNET, theirs=deep)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("epoch", value) for value in (-1, 2**63, "x", "9" * 20, 1.5, None)),
        *(("tick", value) for value in (-1, True, "")),
        *(("generation", value) for value in (-1, "one")),
        *(("closed", value) for value in (0, "false")),
        *(("children", value) for value in ({}, [1], [{"partition": 1}])),
        *(("owner", value) for value in ("a", None)),
        *(("document", value) for value in ({}, None)),
    ],
    ids=str,
)
def test_a_wrong_value_within_our_field_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidDocument, match="leasehold"):
        read(ours(**{name: value}))


@pytest.mark.parametrize("timestamp", ["yesterday", 7, None, "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00Z", []])
def test_a_timestamp_that_is_none_stops_nobody(timestamp: Any) -> None:
    assert read(WRITTEN_BY_DOTNET, timestamp=timestamp).tick >= 0


@given(
    st.dictionaries(
        st.sampled_from([*WRITTEN_BY_DOTNET, "leasehold", "PartitionId"]),
        (st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)),
    )
)
def test_a_document_changed_by_hand_is_read_or_refused_and_nothing_else_happens(changes: dict[str, Any]) -> None:
    with contextlib.suppress(InvalidDocument):
        encode_lease(read(WRITTEN_BY_DOTNET, **changes))


def test_a_databases_resource_id_is_the_beginning_of_its_containers() -> None:
    assert dotnet.database_rid("q0oIALS6YvQ=") == "q0oIAA=="
    for wrong in ("", "q0oIAA==", "not base64!", "é"):
        with pytest.raises(ValueError, match=r"resource id|base64|padding|character|ASCII"):
            dotnet.database_rid(wrong)
