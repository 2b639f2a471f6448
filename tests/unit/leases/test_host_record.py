"""A host's document as text, and back."""

from __future__ import annotations

import pytest

from leasehold.leases.errors import InvalidDocument
from leasehold.leases.host_record import HostRecord, decode_host, encode_host, found_host, host_id

FULL = HostRecord(
    name="a",
    incarnation="1",
    tick=3,
    term=2,
    lasts_s=14.0,
    ring=4,
    pipelines=("p", "q", "r"),
    fitness="fsr",
    leases_max=0,
    draining=True,
    started_at="2026-01-01",
    waits={"p": [0.5, 7]},
    activity={"a": 1},
)


def test_a_record_survives_its_document() -> None:
    assert decode_host(host_id("a"), encode_host(FULL)) == FULL


def test_a_document_of_usual_size_is_small() -> None:
    usual = HostRecord(name="leasehold-7d9f8b6c5d-x2x4z", incarnation="0" * 32, pipelines=("orders", "payments"))
    assert len(encode_host(usual)) < 400


@pytest.mark.parametrize("lasts_s", [3601.0, -1.0, 0.0])
def test_a_duration_that_would_keep_others_waiting_for_ever_is_refused(lasts_s: float) -> None:
    body = encode_host(HostRecord(name="a", incarnation="1", lasts_s=lasts_s))
    with pytest.raises(InvalidDocument, match="'lastsS'"):
        decode_host(host_id("a"), body)
    assert found_host(host_id("a"), body) is None


def test_a_document_under_another_hosts_id_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="belongs under another id"):
        decode_host(host_id("b"), encode_host(FULL))


def test_a_host_that_is_sick_or_has_renounced_takes_no_leases_of_those_pipelines() -> None:
    assert FULL.peer(is_new=False).pipelines == {"p"}
    assert FULL.which_are("s", "r") == {"q", "r"}
