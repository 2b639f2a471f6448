"""The lease of a blob passes through its states as time goes by, and protects writes while it is held."""

from __future__ import annotations

import pytest

from leasehold_emulators.blob import leasing
from leasehold_emulators.blob.call import Call
from leasehold_emulators.blob.lease import (
    FOREVER,
    Lease,
    acquired,
    after_write,
    broken,
    changed,
    check_read,
    check_write,
    released,
    renewed,
)
from leasehold_emulators.blob.refused import Refused

HELD = acquired(Lease(), "a", 15, 100.0)


def code(act: object, *arguments: object) -> str:
    with pytest.raises(Refused) as refused:
        act(*arguments)  # type: ignore[operator]  # any of the functions
    return refused.value.code


def test_a_lease_expires() -> None:
    assert [HELD.state(now) for now in (100.0, 114.9, 115.0)] == ["leased", "leased", "expired"]
    assert acquired(Lease(), "a", FOREVER, 100.0).state(1e9) == "leased"
    assert Lease().state(100.0) == "available"


@pytest.mark.parametrize("duration_s", [0, 14, 61, -2])
def test_other_durations_are_refused(duration_s: int) -> None:
    assert code(acquired, Lease(), "a", duration_s, 100.0) == "InvalidHeaderValue"


def test_a_held_lease_is_acquired_by_its_owner_alone() -> None:
    assert code(acquired, HELD, "b", 15, 110.0) == "LeaseAlreadyPresent"
    assert acquired(HELD, "a", 30, 110.0).until == 140.0
    assert acquired(HELD, "b", 15, 115.0).id == "b"


def test_an_expired_lease_may_be_renewed_by_its_owner() -> None:
    assert renewed(HELD, "a", 200.0).until == 215.0
    assert code(renewed, HELD, "b", 110.0) == "LeaseIdMismatchWithLeaseOperation"
    assert code(renewed, broken(HELD, 0, 110.0)[0], "a", 110.0) == "LeaseIsBrokenAndCannotBeRenewed"


def test_a_write_ends_an_expired_or_broken_lease_for_its_owner_too() -> None:
    assert after_write(HELD, 110.0) == HELD
    assert code(renewed, after_write(HELD, 115.0), "a", 116.0) == "LeaseIdMismatchWithLeaseOperation"
    assert after_write(broken(HELD, 0, 110.0)[0], 110.0).state(110.0) == "available"


def test_a_lease_without_a_duration_is_refused() -> None:
    asks = Call(
        method="PUT",
        raw_path="/account/box/blob",
        account="account",
        container="box",
        blob="blob",
        query={"comp": "lease"},
        headers={"x-ms-lease-action": "acquire"},
        metadata={},
        body=b"",
        endpoint="http://127.0.0.1",
    )
    assert code(leasing.act, Lease(), asks, 100.0) == "MissingRequiredHeader"


def test_a_break_takes_effect_after_its_period() -> None:
    breaking, remaining_s = broken(HELD, 5, 105.0)
    assert remaining_s == 5
    assert [breaking.state(now) for now in (105.0, 109.9, 110.0)] == ["breaking", "breaking", "broken"]
    assert code(acquired, breaking, "b", 15, 106.0) == "LeaseAlreadyPresent"
    assert code(acquired, breaking, "a", 15, 106.0) == "LeaseIsBreakingAndCannotBeAcquired"
    assert acquired(breaking, "b", 15, 110.0).state(110.0) == "leased"
    assert broken(HELD, None, 105.0)[1] == 10
    assert broken(breaking, 60, 106.0)[1] == 4
    assert broken(acquired(Lease(), "a", FOREVER, 100.0), None, 105.0)[1] == 0
    assert code(broken, Lease(), None, 100.0) == "LeaseNotPresentWithLeaseOperation"


def test_writes_need_the_id_of_a_held_lease() -> None:
    assert code(check_write, HELD, None, 110.0) == "LeaseIdMissing"
    assert code(check_write, HELD, "b", 110.0) == "LeaseIdMismatchWithBlobOperation"
    assert code(check_write, HELD, "a", 115.0) == "LeaseLost"
    assert code(check_write, Lease(), "a", 110.0) == "LeaseNotPresentWithBlobOperation"
    check_write(HELD, "a", 110.0)
    check_write(HELD, None, 115.0)
    check_read(HELD, None, 110.0)
    assert code(check_read, HELD, "b", 110.0) == "LeaseIdMismatchWithBlobOperation"


def test_a_lease_changes_its_id_or_ends() -> None:
    assert changed(HELD, "a", "b", 110.0).id == "b"
    assert changed(HELD, "x", "a", 110.0).id == "a"
    assert code(changed, HELD, "x", "y", 110.0) == "LeaseIdMismatchWithLeaseOperation"
    assert released(HELD, "a") == Lease()
    assert code(released, HELD, "b") == "LeaseIdMismatchWithLeaseOperation"
