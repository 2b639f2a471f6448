"""Leasehold's own export: an import of it is what was exported, and a file that is not whole is refused."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.leases.test_document import leases as any_lease

from leasehold.leases.bootstrap import Identity, Info
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.import_.export_format import ExportedPipeline, groups_in, lines_of
from leasehold.leases.lease import Child, Lease

IDENTITY = Identity("log:raw", "postgresql://db", "a1b2")
LEASE = Lease(
    pipeline="orders",
    partition="0",
    owner="host-a",
    incarnation="1f",
    epoch=4,
    generation=2,
    tick=99,
    continuation='"1234"',
    sink_state='{"level":3}',
    handoff_to="host-b",
    children=(Child("1", '"1234"', "-7F"),),
    unknown={"x": {"deep": [1]}},
)
GROUP = ExportedPipeline(
    pipeline="orders", info=Info(identity=IDENTITY, complete=True), leases=(LEASE, replace(LEASE, partition="1"))
)
HEADER, FIRST, SECOND = lines_of([GROUP])


def text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


@given(st.lists(any_lease, max_size=5, unique_by=lambda lease: lease.key), st.booleans())
def test_what_was_exported_is_what_is_imported(leases: list[Lease], complete: bool) -> None:
    names = sorted({lease.pipeline for lease in leases} | {"empty"})
    groups = [
        ExportedPipeline(
            pipeline=name,
            info=Info(identity=IDENTITY, complete=complete),
            leases=tuple(lease for lease in leases if lease.pipeline == name),
        )
        for name in names
    ]
    assert groups_in(text(*lines_of(groups))) == {group.pipeline: group for group in groups}


def test_owners_and_wishes_stay_behind_and_all_else_comes() -> None:
    [first, _] = groups_in(text(HEADER, FIRST, SECOND))["orders"].candidates
    assert first.lease == replace(LEASE, owner=None, incarnation=None, handoff_to=None)
    assert (first.document, first.partition, first.owner) == ("orders/leases/0", "0", "host-a")


def test_a_line_is_an_object_that_says_what_it_is_and_of_which_version() -> None:
    """As docs/migration.md has it."""
    header, first = json.loads(HEADER), json.loads(FIRST)
    assert header["leasehold"] == first["leasehold"] == 1
    assert header["pipeline"] == {
        "name": "orders",
        "feed": "log:raw",
        "sink": "postgresql://db",
        "transform": "a1b2",
        "complete": True,
        "leases": 2,
    }
    assert first["lease"]["continuation"] == '"1234"'


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([HEADER, FIRST], "has 1 leases of pipeline 'orders' but announces 2: it was cut off"),
        ([HEADER], "has 0 leases of pipeline 'orders' but announces 2"),
        ([FIRST, SECOND], "has leases of pipeline 'orders' and not the line about it"),
        ([HEADER, FIRST, SECOND, SECOND], "has 3 leases"),
        ([HEADER, HEADER, FIRST, SECOND], "line 2 of the input': field 'pipeline' 'orders' occurs twice"),
        ([HEADER, FIRST, SECOND[:-9]], "line 3 of the input' is not JSON"),
        ([HEADER, "[]"], "line 2 of the input' is not a JSON object"),
        (
            ['{"id":"a..0","LeaseToken":"0"}'],
            "not an export of Leasehold: if it comes from .NET or Java, add --from dotnet or --from java",
        ),
        ([HEADER.replace('"leasehold":1', '"leasehold":2')], "field 'leasehold' is 2"),
        ([HEADER.replace('"complete":true', '"complete":1')], "field 'complete' must be true or false"),
        ([HEADER.replace('"leases":2', '"leases":-1')], "field 'leases' must lie between"),
        (
            [HEADER, FIRST.replace('"epoch":4', '"epoch":9223372036854775808'), SECOND],
            "'orders/leases/0': field 'epoch'",
        ),
        ([HEADER, FIRST.replace('"version":1', '"version":3'), SECOND], "field 'version' is 3"),
        ([HEADER, '{"leasehold":1,"lease":7}'], "field 'lease' must be an object"),
        ([HEADER, '{"leasehold":1,"lease":{"pipeline":"orders"}}'], "field 'partition' must be a text"),
        ([HEADER, '{"leasehold":1,"lease":' + '{"x":' * 40 + "1" + "}" * 41], "nested more than 32 deep"),
        (["x" * 200_000], "line 1 of the input' is larger than"),
    ],
)
def test_an_export_that_is_not_whole_is_refused_by_its_line(lines: list[str], told: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        groups_in(text(*lines))
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=200))
def test_nothing_else_is_ever_raised(said: str) -> None:
    with suppress(InvalidDocument):
        groups_in(said)
