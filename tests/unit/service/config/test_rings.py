"""Rings of pipelines by files, logs, hubs, containers and dead letters are refused, and nothing that only looks like one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from unit.service.config.test_load import problems, settings

from leasehold.pipeline.connectors.files.feed.pattern import Pattern
from leasehold.service.config.rings import overlap


def pipeline(name: str, feed: str, sink: str, letters: str | None = None, sql: str | None = None) -> str:
    more = f", dead_letters: {{{letters}}}, on_error: dead_letter" if letters else ""
    more += "" if sql is None else f', sql: "{sql}"'
    return f"  - {{name: {name}, feed: {{{feed}}}, sink: {{{sink}}}{more}}}\n"


def files(path: str, format: str = "jsonl") -> str:
    return f"type: files, path: '{path}', format: {format}"


def log(path: str) -> str:
    return f"type: log, path: '{path}'"


def hub(name: str, group: str = "$Default", at: str = "bank") -> str:
    return f"type: eventhubs, namespace: {at}.servicebus.windows.net, event_hub: {name}, consumer_group: {group}"


def cosmos(container: str, at: str = "bank") -> str:
    address = f"endpoint: 'https://{at}.documents.azure.com', identity: default"
    return f"type: cosmos, {address}, database: shop, container: {container}"


ALL = "SELECT partition, sequence, body FROM events"
SOME = f"{ALL} WHERE key = 'new'"


def fine(*pipelines: str, head: str = "") -> bool:
    return len(settings(head + "pipelines:\n" + "".join(pipelines)).pipelines) == len(pipelines)


def ring(*pipelines: str, head: str = "", folder: Path = Path("/etc/leasehold")) -> str:
    (found,) = problems(head + "pipelines:\n" + "".join(pipelines), folder=folder)
    return found


@pytest.mark.parametrize(
    ("reads", "writes"),
    [
        ("**/*.jsonl", "out"),
        ("*/*/*/*/*.jsonl", "out"),
        ("out/loop/**/*.jsonl", "out"),
        ("out/**", "./x/../out"),
        ("/etc/leasehold/out/**/0*.jsonl", "out"),
        ("[o]ut/**/*[0-9].jsonl", "out"),
        ("out/_leasehold/**/*.json", "out"),
        ("**/*.jsonl", "."),
    ],
)
def test_a_feed_whose_pattern_covers_its_own_sink_is_refused(reads: str, writes: str) -> None:
    assert "pipelines[0].sink.path is where its feed reads, which would never end: use another" in ring(
        pipeline("loop", files(reads), files(writes))
    )


@pytest.mark.parametrize(
    ("reads", "sink"),
    [
        ("*.jsonl", files(".")),
        ("in/**/*.jsonl", files("out")),
        ("in/*.jsonl", files("in")),
        ("in/*.jsonl", files("in/out")),
        ("**/*.jsonl", files("out", "parquet")),
        ("**/*.jsonl", log("out")),
        ("**/*.jsonl", files(".out")),
        ("out/other/**/*.jsonl", files("out")),
        ("out/**/events-*.jsonl", files("out")),
        ("out-[0-9]/**/*.jsonl", files("out")),
    ],
)
def test_a_pattern_that_covers_nothing_of_the_sink_is_fine(reads: str, sink: str) -> None:
    assert fine(pipeline("loop", files(reads), sink))


def test_a_table_of_delta_is_a_ring_only_for_patterns_that_cover_its_files() -> None:
    delta = files("out", "delta")
    assert fine(pipeline("loop", files("**/*.jsonl"), delta))
    assert "is where its feed reads" in ring(pipeline("loop", files("out/**"), delta))


def test_dead_letters_under_the_pattern_of_the_feed_are_refused() -> None:
    found = ring(pipeline("loop", files("**/*.jsonl"), log("out"), files("letters")))
    assert "pipelines[0].dead_letters.path is where its feed reads, which would never end" in found
    found = ring(pipeline("loop", log("in"), log("out"), log("in")))
    assert "pipelines[0].dead_letters.path is the log that its feed reads, which would never end" in found


def test_a_ring_of_several_pipelines_is_named_once_with_the_way() -> None:
    found = ring(
        pipeline("a", files("**/*.jsonl"), log("one")),
        pipeline("b", log("one"), log("two")),
        pipeline("c", log("two"), files("out")),
    )
    assert "closes a ring, b -> c -> a -> b, which would never end: use another" in found


def test_two_pipelines_that_feed_each_other_are_a_ring_by_files_logs_and_letters() -> None:
    assert "closes a ring" in ring(
        pipeline("a", files("one/**/*.jsonl"), files("two")), pipeline("b", files("two/**/*.jsonl"), files("one"))
    )
    assert "closes a ring" in ring(pipeline("a", log("one"), log("two")), pipeline("b", log("two"), log("one")))
    assert "closes a ring" in ring(
        pipeline("a", files("in/**/*.jsonl"), log("out"), log("letters")), pipeline("mend", log("letters"), files("in"))
    )


def test_pipelines_in_a_row_are_no_ring() -> None:
    assert fine(
        pipeline("a", files("in/*.jsonl"), files("one")),
        pipeline("b", files("one/a/**/*.jsonl"), log("two"), files("letters")),
        pipeline("c", log("two"), log("three")),
        pipeline("d", log("two"), log("four")),
    )


def test_the_files_of_a_log_are_not_read_as_files_by_what_writes_it() -> None:
    assert "is where its feed reads" in ring(pipeline("loop", files("state/**"), log("state/log")))


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    both = [("link/**/*.jsonl", "out"), ("out/**/*.jsonl", "link")]
    for reads, writes in both:
        assert "is where its feed reads" in ring(pipeline("loop", files(reads), files(writes)), folder=tmp_path)


def test_a_host_does_not_read_its_own_log() -> None:
    found = ring(pipeline("a", files("**/*.jsonl"), log("one")), head="log: {file: logs/host.jsonl}\n")
    assert found == (
        "line 1: log.file is a file that the feed of pipelines[0] reads, which would never end: use another"
    )
    head = "log: {file: logs/host.log}\n"
    assert fine(pipeline("a", files("**/*.jsonl"), log("one")), head=head)


def test_a_path_whose_variable_is_not_set_closes_no_ring() -> None:
    found = ring(pipeline("a", files("**/*.jsonl"), files("${OUT}")))
    assert found == "line 2: pipelines[0].sink.path needs the environment variable OUT, which is not set: set it"


def test_a_folder_with_the_characters_of_a_glob_is_itself(tmp_path: Path) -> None:
    folder = tmp_path / "a[1]*"
    folder.mkdir()
    assert "is where its feed reads" in ring(pipeline("loop", files("**/*.jsonl"), files("out")), folder=folder)


def test_a_feed_that_reads_its_own_sink_s_hub_or_container_is_refused() -> None:
    end = "which would never end: use another, or let a transform leave out events (`WHERE`, or a function)"
    found = ring(pipeline("loop", hub("orders"), hub("ORDERS", "sink")))
    assert found == f"line 2: pipelines[0].sink.event_hub is the hub that its feed reads, {end}"
    text = "Endpoint=sb://Bank.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=Zm9v;EntityPath=orders"
    found = ring(
        pipeline("loop", hub("orders"), f"type: eventhubs, connection_string: '{text}', consumer_group: sink", sql=ALL)
    )
    assert f"pipelines[0].sink is the hub that its feed reads, {end}" in found
    assert text not in found
    found = ring(pipeline("loop", cosmos("orders"), cosmos("orders")))
    assert found == f"line 2: pipelines[0].sink.container is the container that its feed reads, {end}"
    text = "AccountEndpoint=https://bank.documents.azure.com:443/;AccountKey=Zm9v;"
    other = f"type: cosmos, connection_string: '{text}', database: shop, container: orders"
    assert "is the container that its feed reads" in ring(pipeline("loop", cosmos("orders"), other))


def test_a_feed_that_reads_its_own_sink_s_topic_or_subject_is_refused() -> None:
    topic = "type: kafka, servers: 'a:1,b:2', topic: orders"
    found = ring(pipeline("loop", topic, "type: kafka, servers: 'B:2, A:1', topic: orders"))
    assert "pipelines[0].sink.topic is the topic that its feed reads" in found
    subject = "type: nats, servers: 'a:1', stream: shop, partitions: 2, subject:"
    found = ring(pipeline("loop", f"{subject} orders", f"{subject} orders".replace("a:1", "nats://A:1")))
    assert "pipelines[0].sink.subject is the subject that its feed reads" in found
    assert fine(pipeline("chain", f"{subject} orders", f"{subject} totals"))


def test_another_hub_or_container_is_fine() -> None:
    assert fine(
        pipeline("a", hub("orders"), hub("other", "sink")),
        pipeline("b", hub("orders", "b"), hub("orders", "sink", at="other")),
        pipeline("c", cosmos("orders"), cosmos("Orders")),
        pipeline("d", cosmos("orders", at="other"), cosmos("orders", at="bank")),
        pipeline("e", cosmos("stock"), hub("orders", "e")),
    )


@pytest.mark.parametrize(
    ("sql", "is_fine"),
    [
        (SOME, True),
        ("SELECT key AS id, 'delete' AS operation FROM events", True),
        ("SELECT e.body FROM events e LEFT ANTI JOIN events d USING (key)", True),
        (ALL, False),
        ("SELECT count(*) AS wherefore FROM events GROUP BY key", False),
    ],
)
@pytest.mark.parametrize("place", [hub, cosmos])
def test_a_transform_that_may_leave_out_events_may_write_where_its_feed_reads(
    place: Callable[[str], str], sql: str, is_fine: bool
) -> None:
    more = ", consumer_group: sink" if place is hub else ""
    sink = place("orders").replace(", consumer_group: $Default", "") + more
    loop = pipeline("loop", place("orders"), sink, sql=sql)
    if is_fine:
        assert fine(loop)
    else:
        assert "that its feed reads, which would never end" in ring(loop)


def test_dead_letters_in_the_hub_of_the_feed_are_refused_whatever_the_transform_leaves_out() -> None:
    found = ring(pipeline("loop", hub("orders"), log("out"), hub("orders", "letters"), sql=SOME))
    assert found.endswith(
        "pipelines[0].dead_letters.event_hub is the hub that its feed reads, which would never end: use another"
    )


def test_several_pipelines_that_feed_each_other_by_hubs_and_containers_are_a_ring_unless_one_leaves_out_events() -> (
    None
):
    def around(sql: str) -> tuple[str, ...]:
        return (
            pipeline("a", cosmos("orders"), hub("orders", "sink")),
            pipeline("b", hub("orders"), log("one"), sql=sql),
            pipeline("c", log("one"), cosmos("orders")),
        )

    assert "closes a ring, b -> c -> a -> b, which would never end: use another, or let a transform" in ring(
        *around(ALL)
    )
    assert fine(*around(SOME))


def test_a_pipeline_that_mends_dead_letters_and_leaves_some_out_is_no_ring() -> None:
    def mending(sql: str) -> tuple[str, ...]:
        return (
            pipeline("a", hub("orders"), log("out"), hub("letters", "letters"), sql=SOME),
            pipeline("mend", hub("letters"), hub("orders", "sink"), sql=sql),
        )

    assert "closes a ring" in ring(*mending(ALL))
    assert fine(*mending(SOME))


@pytest.mark.parametrize(
    ("pattern", "files", "expected"),
    [
        ("a*c", "*b*", True),
        ("a?", "a", False),
        ("*", ".hidden", False),
        (".*", ".hidden", True),
        ("[[]x", "[[]x", True),
        ("[*]", "*", True),
        ("x[", "x[", True),
        ("*" * 5000, "*" * 200 + "a", True),
    ],
)
def test_two_names_overlap_if_some_name_matches_both(pattern: str, files: str, expected: bool) -> None:
    assert overlap((pattern,), (files,)) is expected


def test_a_feed_does_not_follow_links_below_a_wildcard_which_could_close_a_ring(tmp_path: Path) -> None:
    for folder in ("in/own", "out/own"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.jsonl").write_text("{}\n")
    (tmp_path / "in/lnk").symlink_to("../out")
    (tmp_path / "in/own/deep").symlink_to("../../out/own")
    (tmp_path / "fixed").symlink_to("out")
    for pattern, found, passed in (
        ("in/*/*/*.jsonl", [], ["lnk", "deep"]),
        ("in/*/*.jsonl", ["own/a.jsonl"], ["lnk"]),
        ("in/*/deep/*.jsonl", [], ["lnk", "deep"]),
        ("fixed/*/*.jsonl", ["own/a.jsonl"], []),
    ):
        listed = Pattern.parse(str(tmp_path / pattern)).list_files()
        assert list(listed.files) == found
        assert [Path(each).name for each in listed.passed_over] == passed
