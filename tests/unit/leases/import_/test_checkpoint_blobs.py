"""Blobs of Event Hubs processors, as they stand in a container or an export -> what is to be imported."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from leasehold.leases.errors import InvalidDocument
from leasehold.leases.import_.checkpoint_blobs import CheckpointBlob, Deployment, Kind, blobs_of, deployments, host_blob
from leasehold.leases.lease import Lease

STORE = "bank.servicebus.windows.net/raw-event/$default"


def checkpoint(
    partition: str, offset: str | None = "4294967296", number: str | None = "41", folder: str = STORE
) -> CheckpointBlob:
    given = {"offset": offset, "sequencenumber": number}
    metadata = {name: value for name, value in given.items() if value is not None}
    return CheckpointBlob(name=f"{folder}/checkpoint/{partition}", metadata=metadata, mark="c1")


def ownership(partition: str, owner: str = "", folder: str = STORE) -> CheckpointBlob:
    return CheckpointBlob(name=f"{folder}/ownership/{partition}", metadata={"ownerid": owner}, mark="o1")


def host(partition: str, name: str | None = None, **fields: Any) -> CheckpointBlob:
    given = {
        "Offset": "4294967296",
        "SequenceNumber": 41,
        "PartitionId": partition,
        "Owner": "",
        "Token": "",
        "Epoch": 3,
    }
    return CheckpointBlob(name=name or f"$Default/{partition}", content=json.dumps(given | fields))


def only(kind: Kind, *blobs: CheckpointBlob) -> Deployment:
    [found] = deployments(kind, blobs, pipeline="orders").values()
    return found


def places(found: Deployment) -> dict[str, str | None]:
    return {each.partition: each.lease.continuation for each in found.candidates if each.lease}


@pytest.mark.parametrize(
    ("offset", "number", "place"),
    [
        ("4294967296", "41", "41@4294967296"),
        ("4294967296", None, "@4294967296"),
        ("4294967296", "", "@4294967296"),
        (None, "41", "41"),
        ("", "41", "41"),
        ("-1", "41", "41"),
        ("None", "41", "41"),
        ("0", "0", "0@0"),
        ("3:12884901888:1", "41", "41@3:12884901888:1"),
    ],
)
def test_a_checkpoint_is_a_position_with_either_half_alone(offset: str | None, number: str | None, place: str) -> None:
    assert places(only("checkpointstore", checkpoint("0", offset, number))) == {"0": place}


@pytest.mark.parametrize(("offset", "number"), [(None, None), ("", ""), ("None", "None"), ("-1", "-1")])
def test_a_partition_that_was_never_checkpointed_is_told_and_left_to_the_feed(
    offset: str | None, number: str | None
) -> None:
    found = only("checkpointstore", checkpoint("0", offset, number), checkpoint("1"), ownership("2", "host"))
    assert (found.without, set(places(found))) == (("0", "2"), {"1"})


def test_a_lease_is_nobody_s_and_its_owner_is_told() -> None:
    found = only("checkpointstore", checkpoint("0"), ownership("0", "d9f0"), checkpoint("1"), ownership("1"))
    first, second = found.candidates
    assert first.lease == Lease(pipeline="orders", partition="0", continuation="41@4294967296")
    assert (first.document, first.owner) == (f"{STORE}/ownership/0", "d9f0")
    assert (second.owner, dict(found.owners)) == (None, {f"{STORE}/ownership/0": ("d9f0", "o1 c1")})


def test_each_consumer_group_is_a_deployment_of_its_own() -> None:
    other = "bank.servicebus.windows.net/raw-event/billing"
    found = deployments("checkpointstore", [checkpoint("0"), checkpoint("0", folder=other)], pipeline="orders")
    assert set(found) == {STORE, other}


def test_kinds_are_told_apart_in_one_container() -> None:
    blobs = [
        checkpoint("0"),
        ownership("0"),
        host("1"),
        CheckpointBlob(name="orders/7", metadata={"leasehold": "json"}),
    ]
    assert places(only("checkpointstore", *blobs)) == {"0": "41@4294967296"}
    assert places(only("eventprocessorhost", *blobs)) == {"1": "41@4294967296"}


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"offset": "4 or 5"}, "offset.*'4 or 5', which is not an event hub's"),
        ({"sequencenumber": "1e3"}, "sequencenumber.*not a sequence number"),
        ({"sequencenumber": "9" * 19}, "not a sequence number"),
        ({"offset": "x" * 200}, "not an event hub's"),
    ],
)
def test_a_checkpoint_that_is_none_is_refused_by_name(metadata: dict[str, str], why: str) -> None:
    [found] = only("checkpointstore", CheckpointBlob(name=f"{STORE}/checkpoint/0", metadata=metadata)).candidates
    assert found.lease is None
    assert found.refused.startswith(f"document '{STORE}/checkpoint/0'")
    assert found.refused.endswith("correct it, or leave it out of the input")
    assert re.search(why, found.refused)


# --- the older host ---


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"Owner": None},
        {"Token": "x", "unknown": {"deep": [1]}},
    ],
)
def test_a_lease_of_the_older_host_goes_on_above_its_epoch(fields: dict[str, Any]) -> None:
    """Its receivers have the epoch of the lease: ours, which is one above, displaces them."""
    [found] = only("eventprocessorhost", host("0", **fields)).candidates
    assert found.lease == Lease(pipeline="orders", partition="0", continuation="41@4294967296", epoch=3)
    assert found.lease is not None
    assert found.lease.acquired("host-a", "1f", "").epoch == 4


@pytest.mark.parametrize("continuation", ["41@4294967296", "@4294967296", "0@0"])
def test_a_blob_for_the_older_host_is_read_back_as_the_lease_it_was(continuation: str) -> None:
    lease = Lease(pipeline="orders", partition="0", continuation=continuation, epoch=7, owner="host-a", incarnation="1")
    blob = host_blob(lease, "billing/$Default")
    assert blob["name"] == "billing/$Default/0"
    [found] = deployments("eventprocessorhost", blobs_of([blob]), pipeline="orders")["billing/$Default"].candidates
    assert found.lease is not None
    assert (found.lease.continuation, found.lease.epoch, found.owner) == (continuation, 7, None)


def test_a_blob_for_the_older_host_has_the_fields_that_it_writes_itself() -> None:
    lease = Lease(pipeline="orders", partition="0", continuation="41@4294967296", epoch=7)
    named = {"Offset": "4294967296", "SequenceNumber": 41, "PartitionId": "0", "Owner": "", "Token": "", "Epoch": 7}
    assert host_blob(lease, "$Default")["content"] == named
    never = replace(lease, continuation=None)
    assert host_blob(never, "$Default")["content"] == named | {"Offset": None, "SequenceNumber": 0}


@pytest.mark.parametrize("continuation", ["41", '"1234"', "41@", "x@1", "1@2@3", "1@" + "9" * 129])
def test_a_position_without_an_offset_is_refused_for_the_older_host(continuation: str) -> None:
    with pytest.raises(InvalidDocument, match=r"^lease '0': an EventProcessorHost continues by the offset"):
        host_blob(Lease(pipeline="orders", partition="0", continuation=continuation), "$Default")


@pytest.mark.parametrize(
    "content",
    [
        {"partitionId": "0", "offset": "128", "sequenceNumber": 7, "owner": "java-1", "epoch": 2, "token": ""},
        {
            "partition_id": "0",
            "offset": "128",
            "sequence_number": 7,
            "owner": "py-1",
            "epoch": 2,
            "event_processor_context": None,
        },
    ],
)
def test_java_s_and_python_s_names_are_read_too(content: dict[str, Any]) -> None:
    found = only("eventprocessorhost", CheckpointBlob(name="$Default/0", content=json.dumps(content), is_leased=True))
    [candidate] = found.candidates
    assert candidate.lease == Lease(pipeline="orders", partition="0", continuation="7@128", epoch=2)
    assert dict(found.busy) == {"$Default/0": content["owner"]}


def test_what_the_older_host_never_read_is_left_to_the_feed() -> None:
    found = only(
        "eventprocessorhost", host("0", Offset=None, SequenceNumber=0), host("1", Offset="-1", SequenceNumber=0)
    )
    assert (found.candidates, found.without) == ((), ("0", "1"))
    assert places(only("eventprocessorhost", host("0", Offset=None))) == {"0": "41"}


@pytest.mark.parametrize(
    ("blob", "why"),
    [
        (CheckpointBlob(name="a/0", content="not JSON"), "is not JSON"),
        (CheckpointBlob(name="a/0", content="[]"), "is not the JSON object of a lease"),
        (CheckpointBlob(name="a/0", content="{}"), "'partitionid' must be a text"),
        (CheckpointBlob(name="a/0", content="x" * 20_000), "is not the JSON object"),
        (host("1", name="a/0"), "belongs under another name"),
        (host("0", Epoch=-1), "'epoch' must lie between"),
        (host("0", Epoch="3"), "'epoch' must be an integer"),
        (host("0", Owner=7), "'owner' must be a text"),
        (host("0", SequenceNumber=-7), "not a sequence number"),
        (host("0", SequenceNumber=[1]), "not a sequence number"),
    ],
)
def test_what_is_no_lease_of_the_older_host_is_refused_by_name(blob: CheckpointBlob, why: str) -> None:
    [found] = only("eventprocessorhost", blob).candidates
    assert found.lease is None
    assert why in found.refused


# --- exports ---


def test_an_export_is_what_lists_blobs_with_their_metadata() -> None:
    documents = [
        {
            "name": f"{STORE}/checkpoint/0",
            "metadata": {"Offset": "128", "sequencenumber": "7"},
            "properties": {"lastModified": "2026-11-22T12:00:00+00:00", "lease": {"state": "available"}},
        },
        {
            "name": f"{STORE}/ownership/0",
            "metadata": {"ownerid": "d9f0"},
            "properties": {"lastModified": "2026-11-22T12:00:01+00:00"},
        },
        {"name": f"{STORE}/ownership/1", "metadata": None, "properties": None},
    ]
    [found] = only("checkpointstore", *blobs_of(documents)).candidates
    assert (found.lease and found.lease.continuation, found.owner) == ("7@128", "d9f0")
    assert found.written_us == 1_795_348_801_000_000


def test_an_export_of_the_older_host_may_be_its_blobs_contents_alone() -> None:
    documents = [json.loads(host(partition).content or "") for partition in "01"]
    assert places(only("eventprocessorhost", *blobs_of(documents))) == {"0": "41@4294967296", "1": "41@4294967296"}
    named = [{"name": "$Default/0", "content": documents[0], "properties": {"lease": {"state": "leased"}}}]
    assert dict(only("eventprocessorhost", *blobs_of(named)).busy) == {"$Default/0": "somebody"}
