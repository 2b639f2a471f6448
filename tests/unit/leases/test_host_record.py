"""A host's document as text, and back."""

from __future__ import annotations

import pytest

from leasehold.leases.errors import InvalidDocument
from leasehold.leases.host_record import HostRecord, decode_host, encode_host, host_id


def test_a_record_survives_its_document_unknown_fields_included() -> None:
    record = HostRecord(
        name="a",
        incarnation="1",
        tick=3,
        pipelines=("p",),
        leases_max=0,
        draining=True,
        lease_duration_s=1.5,
        started_at="2026-01-01",
        contested_by="2",
        activity={"a": 1},
        unknown={"later": [1]},
    )
    assert decode_host(host_id("a"), encode_host(record)) == record


def test_a_document_under_another_hosts_id_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="belongs under another id"):
        decode_host(host_id("b"), encode_host(HostRecord(name="a", incarnation="1")))
