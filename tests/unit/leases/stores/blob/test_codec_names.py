"""Every document has a blob of its own, whose name Azure takes, and which leads back to it."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from leasehold.leases.document import ID_CHARACTERS_MAX, lease_id, lease_prefix
from leasehold.leases.stores.blob.codec import blob_name, blob_prefixes, id_of

IDS = st.one_of(
    st.from_regex(r"[A-Za-z0-9/._%-]{1,255}", fullmatch=True),
    st.builds(lease_id, st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True), st.text(min_size=1)),
    st.sampled_from(
        ["orders/info", "_hosts/a", "_leasehold/orders/leases/7", "a/leases/b/leases/c", "_a/leases/b", ".", "a./b."]
    ),
)


@pytest.mark.parametrize(
    ("id", "name"),
    [
        ("orders/leases/7", "orders/7"),
        ("orders/leases/data%2F2026.csv", "orders/data~2F2026.csv"),
        ("orders/leases/v1.", "orders/v1.!"),
        ("orders/leases/%2E%2E", "orders/~2E~2E"),
        ("orders/info", "_leasehold/orders/info"),
        ("_hosts/host-a", "_leasehold/_hosts/host-a"),
        ("orders/leases/", "_leasehold/orders/leases/"),
    ],
)
def test_a_document_lies_where_people_look_for_it(id: str, name: str) -> None:
    assert (blob_name(id), id_of(name)) == (name, id)


@given(IDS)
def test_a_name_leads_back_to_its_id_and_azure_takes_it(id: str) -> None:
    assume(not id.startswith("/") and not id.endswith("/") and "//" not in id)
    name = blob_name(id)
    assert id_of(name) == id
    assert len(name) <= 1024
    assert not re.search(r"\.(/|$)|\\|%|[^!-~]", name)


@given(IDS, IDS)
def test_no_two_documents_share_a_blob(one: str, other: str) -> None:
    assert (blob_name(one) == blob_name(other)) == (one == other)


@given(st.text(max_size=40) | st.from_regex(r"[a-z_./!~%2E]{0,12}", fullmatch=True))
def test_a_name_that_we_would_not_give_stands_for_nothing(name: str) -> None:
    found = id_of(name)
    assert found is None or blob_name(found) == name


@given(IDS, st.integers(0, ID_CHARACTERS_MAX))
def test_a_listing_asks_for_every_document_that_begins_so_and_once(id: str, length: int) -> None:
    prefixes = blob_prefixes(id[:length])
    assert sum(blob_name(id).startswith(prefix) for prefix in prefixes) == 1


def test_a_pipeline_s_leases_are_one_listing() -> None:
    assert blob_prefixes(lease_prefix("orders")) == ["orders/"]
    assert blob_prefixes("_hosts/") == ["_leasehold/_hosts/"]
