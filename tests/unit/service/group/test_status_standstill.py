"""What people are told of partitions that stand still."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from unit.service.group.test_status import KNOWN, LEASE, NOW, RECORD, RELEASED

from leasehold.leases.bootstrap import Identity
from leasehold.leases.host_record import HostRecord
from leasehold.leases.keeper import Scan
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.pause_orders import Control, Controls
from leasehold.leases.tenure import VersionedLease
from leasehold.service.group.activity import Activity, activity_document
from leasehold.service.group.status import GroupStatus, Unrenewed, failures_of, group_of, standstills, unlisted_failures
from leasehold.service.group.work import WaitingStatus

KEY = LeaseKey("bank", "a")


def group(
    lease: Lease, *records: HostRecord, controls: Controls | None = None, unrenewed: Unrenewed | None = None
) -> GroupStatus:
    scan = Scan({lease.key: VersionedLease(lease, "etag")}, 0.0, 0.0)
    return group_of(
        scan,
        records,
        (),
        pipelines={"bank": Identity("feed", "sink")},
        me="leasehold",
        unrenewed=unrenewed,
        mine=None,
        now=NOW,
        controls=controls or Controls(),
    )


def report(activity: Activity, **fields: object) -> HostRecord:
    return replace(RECORD, activity=activity_document(activity, 16 * 1024), **fields)


def test_a_partition_that_moves_is_not_mentioned() -> None:
    assert standstills(group(LEASE, report(Activity(at=NOW)))) == {}
    assert standstills(group(RELEASED)) == {}


def test_a_failing_partition_is_told_with_its_error_since_when_how_often_and_its_next_try() -> None:
    failing = replace(KNOWN, error="partition 'a', no such table", retry_at=NOW + timedelta(seconds=7))
    found = group(RELEASED, report(Activity(failures=(failing,), at=NOW)))
    [reason] = standstills(found)[KEY]
    assert reason.kind == "failing"
    assert reason.why == (
        "is failing: no such table (2 failures in a row since 2026-01-31T11:58:00Z; host 'host-a' tries again at"
        " 2026-01-31T12:00:07Z)"
    )
    assert failures_of(found)[KEY].error == "partition 'a', no such table"


def test_a_lease_of_a_draining_host_and_one_of_a_silent_host_say_so() -> None:
    [draining] = standstills(group(LEASE, report(Activity(at=NOW), draining=True)))[KEY]
    assert (draining.kind, "host 'host-a' is draining" in draining.why) == ("draining", True)
    [silent] = standstills(group(LEASE, report(Activity(at=NOW - timedelta(seconds=61)))))[KEY]
    assert silent.kind == "silent"
    assert "host 'host-a' has reported nothing since 2026-01-31T11:58:59Z" in silent.why


def test_a_partition_of_a_paused_pipeline_says_who_paused_it_beside_why_it_failed() -> None:
    controls = Controls(orders={"bank": Control(pipeline="bank", paused=True, by="alice")})
    failing, paused = standstills(group(RELEASED, report(Activity(failures=(KNOWN,), at=NOW)), controls=controls))[KEY]
    assert (failing.kind, paused.kind) == ("failing", "paused")
    assert paused.why.startswith("is not worked on: the pipeline was paused by alice: POST")


def test_a_partition_without_a_lease_says_what_it_waits_for() -> None:
    waiting = WaitingStatus(pipeline="bank", partition="z", why="its parent's lease is unreadable")
    found = standstills(group(LEASE, report(Activity(waiting=(waiting,), at=NOW))))
    assert found["bank", "z"][0].why == "waits: its parent's lease is unreadable"


def test_a_partition_that_the_feed_cannot_read_and_one_without_a_lease_say_so() -> None:
    found = standstills(group(RELEASED), {KEY: "its file is gone", ("bank", "z"): "it has no lease (yet)"})
    assert [(key, each.kind, each.why) for key, [each] in found.items()] == [
        (KEY, "feed_error", "cannot be read: its file is gone"),
        (("bank", "z"), "waiting", "waits: it has no lease (yet)"),
    ]


def test_the_error_of_a_feed_is_not_repeated_if_a_host_reported_it() -> None:
    failing = replace(KNOWN, error="partition 'a', its file is gone")
    found = group(RELEASED, report(Activity(failures=(failing,), at=NOW)))
    assert [each.kind for each in standstills(found, {KEY: "its file is gone"})[KEY]] == ["failing"]


def test_an_ended_partition_stands_still_for_good_and_is_not_mentioned() -> None:
    closed = replace(RELEASED, closed=True)
    assert standstills(group(closed, report(Activity(failures=(KNOWN,), at=NOW)))) == {}


@pytest.mark.parametrize("more", [0, 3])
def test_failing_partitions_for_which_a_document_has_no_room_are_counted(more: int) -> None:
    found = unlisted_failures(group(RELEASED, report(Activity(failures=(KNOWN,), failing=1 + more, at=NOW))))
    assert [text.partition(" without")[0] for text in found] == [
        "host 'host-a' reports 3 more failing partitions"
    ] * bool(more)
