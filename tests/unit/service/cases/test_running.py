"""A case runs through the parts of its pipeline, and its result is judged."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from unit.service.cases.conftest import case_of, prepared

from leasehold.service.cases.ends import events_of
from leasehold.service.cases.judging import problems_of
from leasehold.service.cases.running import run_case

LETTERS = "{type: log, path: dead}"


def lengths(events: pa.Table) -> pa.Table:
    return events.select(["partition", "sequence"]).append_column("bytes", pc.binary_length(events["body"]))


async def judge(case: object, **settings: object) -> list[str]:
    one = prepared(**{"sink": "{type: files, path: out}", "apply": lengths, **settings})  # type: ignore[arg-type]
    return problems_of(case, await run_case(one, case))  # type: ignore[arg-type]


async def test_rows_that_are_expected_pass() -> None:
    case = case_of("a", {"body": "bcd", "partition": "1"}, rows=[{"bytes": 3, "partition": "1"}, {"bytes": 1}])
    assert await judge(case) == []


async def test_a_wrong_row_is_shown_beside_the_actual_one() -> None:
    assert await judge(case_of("a", "bc", rows=[{"bytes": 1}, {"bytes": 3}])) == [
        "2 rows expected:",
        "  expected   | actual",
        "  {bytes: 1} | {bytes: 1}",
        "! {bytes: 3} | {bytes: 2}",
    ]


async def test_a_column_that_the_output_lacks_is_named() -> None:
    assert await judge(case_of("a", rows=[{"byte": 1}])) == [
        "the output has no column 'byte': it has partition, sequence, bytes"
    ]


async def test_columns_are_compared_if_they_are_named() -> None:
    assert await judge(case_of("a", columns=["partition", "sequence", "bytes"])) == []
    assert "! partition, bytes | partition, sequence, bytes" in await judge(
        case_of("a", columns=["partition", "bytes"])
    )


async def test_the_order_of_rows_is_compared_if_it_is_wanted() -> None:
    rows = [{"bytes": 2}, {"bytes": 1}]
    assert await judge(case_of("a", "bc", rows=rows)) == []
    assert (await judge(case_of("a", "bc", rows=rows, order="exact")))[0] == "2 rows expected, in this order:"


async def test_an_event_that_cannot_be_processed_is_a_dead_letter_where_there_are_any() -> None:
    case = case_of(
        "a", "poison", "bc", rows=[{"bytes": 1}, {"bytes": 2}], dead_letters=[{"event": 2, "reason": "is poison"}]
    )
    assert await judge(case, dead_letters=LETTERS) == []


async def test_dead_letters_are_compared() -> None:
    events = ({"body": "a", "partition": "1"}, "poison", {"body": "poison", "partition": "1"})
    found = await judge(
        case_of(*events, dead_letters=[{"event": 1}, {"event": 3, "reason": "other"}]), dead_letters=LETTERS
    )
    assert found[0] == "dead letters:"
    assert [line.split("|")[0].strip() for line in found[2:]] == ["! event 1", "!", "! event 3: ... other ..."]
    assert [line.split("|")[1].strip() for line in found[2:]] == ["", "event 2: it is poison", "event 3: it is poison"]


async def test_without_dead_letters_a_partition_stops_which_has_to_be_expected() -> None:
    case = case_of("a", "poison", {"body": "bc", "partition": "1"}, rows=[{"bytes": 1}, {"bytes": 2}])
    assert await judge(case) == ["partition '0' stops: it is poison"]
    assert await judge(case.model_copy(update={"stops": "poison"})) == []
    assert await judge(case.model_copy(update={"stops": "cure"})) == [
        "a partition should stop with an error that contains 'cure', and: it is poison"
    ]
    assert await judge(case_of("a", stops="cure")) == [
        "a partition should stop with an error that contains 'cure', and: nothing stopped"
    ]


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ("{type: log, path: out}", "the output has 'bytes': a log takes the columns body, key"),
        (
            '{type: postgres, dsn: "postgresql://x", table: t, mode: upsert, key: [id]}',
            "no column 'id', which `key` names",
        ),
        (
            '{type: http, url: "https://x", content: body}',
            "the endpoint cannot take row 1 of the output, which has no `body`",
        ),
        ('{type: http, url: "https://x", order_by: id}', "has no column 'id', which `order_by` names"),
        (
            "{type: cosmos, endpoint: 'https://x', key: eA==, database: d, container: c}",
            "the container cannot take row 1",
        ),
        (
            "{type: eventhubs, namespace: a.b, identity: default, event_hub: h, consumer_group: g}",
            "an event hub takes the columns",
        ),
    ],
)
async def test_an_output_that_the_sink_never_takes_is_a_failure(sink: str, problem: str) -> None:
    (found,) = await judge(case_of("a"), sink=sink)
    assert found.startswith("the sink refuses the output of partition '0': ")
    assert problem in found


async def test_a_type_that_files_have_no_form_for_is_a_failure() -> None:
    def durations(events: pa.Table) -> pa.Table:
        return events.select(["partition"]).append_column("d", pa.array([1] * events.num_rows, pa.duration("s")))

    (found,) = await judge(case_of("a"), sink="{type: files, path: out, format: jsonl}", apply=durations)
    assert "the output's column 'd' is duration[s]" in found


async def test_a_pipeline_without_a_transform_delivers_the_events() -> None:
    event = {
        "body": {"a": 1},
        "key": "k",
        "properties": {"p": "q"},
        "operation": "create",
        "time": "2026-01-31T12:00:00Z",
    }
    row = {"body": {"a": 1}, "key": "k", "properties": {"p": "q"}, "operation": "create", "sequence": 0}
    case = case_of(event, rows=[{**row, "enqueued_time": "2026-01-31T12:00:00Z", "partition": "0"}])
    assert problems_of(case, await run_case(prepared(), case)) == []


def test_events_are_numbered_in_their_partition() -> None:
    found = events_of(case_of("a", {"body": "b", "partition": "1"}, "c"))
    assert {name: table["sequence"].to_pylist() for name, table in found.items()} == {"0": [0, 1], "1": [0]}
