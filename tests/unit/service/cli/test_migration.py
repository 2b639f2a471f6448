"""`leasehold leases export`, `import` and `reset`, as people run them, over leases in SQLite."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from unit.leases.lease_documents import INFO, LOCK, PREFIX, dotnet, java, v2

from leasehold.leases.bootstrap import Identity, Info, decode_info, encode_info, info_id
from leasehold.leases.document import decode_lease, encode_lease, lease_id, lease_prefix
from leasehold.leases.host_record import BELL_ID, HostRecord, encode_host, host_id
from leasehold.leases.lease import Child, Lease
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.cosmos.ranges import lsn_of
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.service.cli.main import main

SETTINGS = """
leases: {path: state/leases.db}
pipelines:
  - name: orders
    feed: {type: "unit.service.cli.test_migration:Etags"}
    sink: {type: python, handler: "unit.service.cli.test_migration:Etags"}
"""


class Etags(MemoryChangeFeed):
    """A feed whose positions are those of a Cosmos container."""

    identity = "etags"

    def __init__(self) -> None:
        super().__init__(["0"])

    def compare(self, a: str | None, b: str | None) -> int:
        return lsn_of(a) - lsn_of(b)


class Place:
    """A folder with settings, and the leases beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "orders.yaml").write_text(SETTINGS)

    def __call__(self, *arguments: str, input: str | None = None) -> Result:
        file = str(self.folder / "orders.yaml")
        result = CliRunner().invoke(main, ["leases", arguments[0], file, *arguments[1:]], input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def taking(self, source: str, documents: Iterable[Any], *options: str) -> Result:
        text = "\n".join(map(json.dumps, documents))
        return self("import", "-", "--pipeline", "orders", "--from", source, *options, input=text)

    def keep(self, *leases: Lease, info: Info | None = None, hosts: Iterable[HostRecord] = ()) -> None:
        async def create(store: SqliteStore) -> None:
            await store.list("")
            for lease in leases:
                await store.create(lease_id(lease.pipeline, lease.partition), encode_lease(lease))
            for host in hosts:
                await store.create(host_id(host.name), encode_host(host))
            if info is not None:
                await store.create(info_id("orders"), encode_info(info))

        self._with(create)

    @property
    def leases(self) -> dict[str, Lease]:
        found: list[Lease] = []

        async def read(store: SqliteStore) -> None:
            found.extend(decode_lease(each.id, each.body) for each in await store.list(lease_prefix("orders")))

        self._with(read)
        return {lease.partition: lease for lease in found}

    @property
    def info(self) -> Info:
        found: list[Info] = []

        async def read(store: SqliteStore) -> None:
            stored = await store.read(info_id("orders"))
            found.append(decode_info(stored.id, stored.body))

        self._with(read)
        return found[0]

    def _with(self, act: Any) -> None:
        async def run() -> None:
            store = SqliteStore(self.folder / "state/leases.db")
            try:
                await act(store)
            finally:
                await store.close()

        asyncio.run(run())

    @property
    def has_leases(self) -> bool:
        return (self.folder / "state").exists()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def lease(partition: str = "0", continuation: str | None = '"10"', **fields: Any) -> Lease:
    return Lease(pipeline="orders", partition=partition, continuation=continuation, **fields)


def row(result: Result, partition: str) -> list[str]:
    [found] = [line.split() for line in result.stdout.splitlines()[:-1] if line.split()[:1] == [partition]]
    return found


THEIRS = [INFO, LOCK, dotnet("0", '"1234"', Owner="gone"), dotnet("1", '"77"'), v2("7")]


def test_without_apply_a_table_says_what_would_change_and_nothing_is_made(place: Place) -> None:
    told = place.taking("dotnet", THEIRS)
    assert told.exit_code == 0
    assert row(told, "0")[:4] == ["0", "created", '"1234"', "0"]
    assert row(told, "7")[:3] == ["7", "created", '"9"']
    assert told.stdout.splitlines()[-1] == (
        "3 created, 0 moved, 0 unchanged, 0 refused: nothing was written; use --apply to write"
    )
    assert not place.has_leases


def test_apply_writes_it_and_a_second_time_nothing_is_left_to_do(place: Place) -> None:
    told = place.taking("dotnet", THEIRS, "--apply")
    assert (told.exit_code, told.stdout.splitlines()[-1]) == (
        0,
        "3 created, 0 moved, 0 unchanged, 0 refused: 3 written",
    )
    assert {name: found.continuation for name, found in place.leases.items()} == {
        "0": '"1234"',
        "1": '"77"',
        "7": '"9"',
    }
    assert all(found.owner is None for found in place.leases.values())
    assert place.info.identity.feed == "etags"
    before = place.leases
    again = place.taking("dotnet", THEIRS, "--apply")
    assert (again.exit_code, again.stdout.splitlines()[-1]) == (
        0,
        "0 created, 0 moved, 3 unchanged, 0 refused: 0 written",
    )
    assert place.leases == before


def test_java_is_taken_with_its_etags_unpacked(place: Place) -> None:
    documents = [java("-7F", [("", "7F", '"500"')]), java("7F-FF", [("7F", "BF", '"9"'), ("BF", "FF", '"5"')])]
    assert place.taking("java", documents, "--apply").exit_code == 0
    assert {name: (found.continuation, found.scope) for name, found in place.leases.items()} == {
        "-7F": ('"500"', "-7F"),
        "7F-BF": ('"9"', "7F-BF"),
        "BF-FF": ('"5"', "BF-FF"),
    }


def test_an_import_over_a_position_is_a_reset_and_says_so(place: Place) -> None:
    place.keep(lease("0", '"10"', generation=4, epoch=2))
    told = place.taking("dotnet", [dotnet("0", '"20"')], "--apply")
    assert row(told, "0")[:5] == ["0", "moved", '"10"', '"20"', "5"]
    assert "a reset: generation 4 -> 5, whatever position the sink holds" in told.stdout
    assert (place.leases["0"].continuation, place.leases["0"].generation) == ('"20"', 5)


def test_one_that_is_refused_keeps_all_from_being_written(place: Place) -> None:
    place.keep(lease("0", '"5000"'))
    told = place.taking("dotnet", THEIRS, "--apply")
    assert told.exit_code == 1
    assert row(told, "0")[1] == "refused"
    assert (
        'it would move back (the lease is at "5000"), and the events between would be repeated: if you want that, use --force'
        in told.stdout
    )
    assert told.stdout.splitlines()[-1] == (
        "2 created, 0 moved, 0 unchanged, 1 refused: nothing is written as long as one is refused"
    )
    assert place.leases == {"0": lease("0", '"5000"')}
    forced = place.taking("dotnet", THEIRS, "--apply", "--force")
    assert forced.exit_code == 0
    assert place.leases["0"].continuation == '"1234"'


def test_an_owner_long_gone_is_watched_and_then_dropped(place: Place) -> None:
    file = place.folder / "orders.yaml"
    quick = "path: state/leases.db, duration_s: 2.5, balance_s: 0.3, call_timeout_s: 1.5"
    file.write_text(file.read_text().replace("path: state/leases.db", quick))
    gone = HostRecord(name="host-a", incarnation="1", lasts_s=2.5)
    place.keep(lease(owner="host-a", incarnation="1", tick=7), hosts=[gone])
    told = place.taking("dotnet", [dotnet("0", '"20"')], "--apply")
    assert told.exit_code == 0
    assert "watching for up to 2.5 s whether 1 lease has a live owner" in told.stderr
    assert "was host-a's" in told.stdout
    assert place.leases["0"].owner is None


def test_a_file_that_was_written_just_now_by_an_owner_is_refused(place: Place) -> None:
    now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    told = place.taking("dotnet", [dotnet(Owner="dotnet-1", timestamp=now)], "--apply", "--force")
    assert told.exit_code == 1
    assert f"'dotnet-1' is processing document '{PREFIX}..0': stop it, and export again" in told.stdout
    assert not place.leases


def test_what_was_exported_comes_back_whole(place: Place, tmp_path: Path) -> None:
    kept = [
        lease("0", '"10"', generation=3, epoch=9, sink_state="s", unknown={"x": [1]}, owner="host-a", incarnation="1"),
        lease("1", '"20"', closed=True, children=(Child("2", '"20"'), Child("3", '"20"'))),
        lease("2", None),
    ]
    place.keep(*kept, info=Info(identity=Identity("etags", "postgres"), complete=True))
    out = tmp_path / "leases.jsonl"
    told = place("export", "-o", str(out))
    assert (told.exit_code, told.stdout, told.stderr) == (0, "", f"4 lines written to {out}\n")
    assert place("export", "--pipeline", "orders").stdout == out.read_text()
    (tmp_path / "elsewhere").mkdir()
    elsewhere = Place(tmp_path / "elsewhere")
    restored = elsewhere("import", str(out), "--pipeline", "orders", "--from", "leasehold", "--apply")
    assert restored.exit_code == 0, restored.output
    assert elsewhere.leases == {
        each.partition: replace(each, owner=None, incarnation=None, sink_state="") for each in kept
    }
    assert elsewhere.info.complete


HOSTS = ("export", "--pipeline", "orders", "--to", "eventprocessorhost", "--prefix", "$Default")


def test_leases_are_exported_for_the_older_host_of_a_hub(place: Place) -> None:
    place.keep(lease("0", "41@4100", epoch=12), lease("1", None), lease("2", "9@900", closed=True))
    told = place(*HOSTS)
    assert told.exit_code == 0, told.output
    assert [json.loads(line) for line in told.stdout.splitlines()] == [
        {"name": f"$Default/{name}", "content": {**fields, "PartitionId": name, "Owner": "", "Token": ""}}
        for name, fields in (
            ("0", {"Offset": "4100", "SequenceNumber": 41, "Epoch": 12}),
            ("1", {"Offset": None, "SequenceNumber": 0, "Epoch": 0}),
        )
    ]


def test_nothing_is_exported_for_the_older_host_if_a_position_has_no_offset(place: Place) -> None:
    place.keep(lease("0", "41@4100"), lease("1", "42"))
    told = place(*HOSTS)
    assert (told.exit_code, told.stdout) == (1, "")
    assert "nothing was exported: lease '1': an EventProcessorHost continues by the offset" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("export", "--to", "eventprocessorhost", "--prefix", "$Default"), "needs --pipeline and --prefix"),
        (("export", "--to", "eventprocessorhost", "--pipeline", "orders"), "needs --pipeline and --prefix"),
        (("export", "--prefix", "$Default"), "--prefix needs it"),
        (("export", "--container", "old"), "need --to eventprocessorhost, without --output"),
        ((*HOSTS, "--container", "old", "-o", "blobs"), "need --to eventprocessorhost, without --output"),
        ((*HOSTS, "--container", "old"), "name the account of the blobs: --account-url, or LEASEHOLD_IMPORT"),
    ],
)
def test_options_of_an_export_that_do_not_fit_together_are_refused(
    place: Place, arguments: tuple[str, ...], why: str
) -> None:
    place.keep(lease("0", "41@4100"))
    told = place(*arguments)
    assert (told.exit_code, why in " ".join(told.stderr.split())) == (2, True), told.output


def test_an_export_of_another_feed_is_refused_unless_forced(place: Place) -> None:
    place.keep(lease(), info=Info(identity=Identity("other", "python")))
    text = place("export").stdout
    for each in (place.folder / "state").iterdir():
        each.unlink()
    told = place("import", "-", "--pipeline", "orders", "--from", "leasehold", input=text)
    assert told.exit_code == 1
    assert "the input was exported with feed 'other', and pipeline 'orders' reads 'etags'" in told.stderr
    assert place("import", "-", "--pipeline", "orders", "--from", "leasehold", "--force", input=text).exit_code == 0


def test_leases_of_another_feed_are_not_imported_over(place: Place) -> None:
    place.keep(lease(), info=Info(identity=Identity("other", "python")))
    told = place.taking("dotnet", [dotnet()])
    assert told.exit_code == 2
    assert "belong to feed 'other', but the configuration has 'etags'" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "input", "told"),
    [
        (("--from", "dotnet"), None, "name an INPUT: this lease store holds no documents of other processors"),
        (("--from", "leasehold"), None, "name an INPUT: a file that `leasehold leases export` has written"),
        (("-", "--from", "dotnet"), "nonsense", "line 1 of the input is not JSON"),
        (("-", "--from", "dotnet"), "", "the input holds no leases"),
        (("-", "--from", "dotnet", "--prefix", "x"), json.dumps(dotnet()), "holds no leases whose ids begin with 'x'"),
        (("-", "--from", "leasehold"), json.dumps(dotnet()), "not an export of Leasehold"),
        (("-", "--from", "leasehold"), "", "the input has no pipeline 'orders': it has none at all"),
        (("missing.jsonl", "--from", "dotnet"), None, "'missing.jsonl' cannot be read (No such file or directory)"),
    ],
)
def test_an_input_that_is_none_is_told_in_one_line(
    place: Place, arguments: tuple[str, ...], input: str | None, told: str
) -> None:
    result = place("import", "--pipeline", "orders", *arguments, input=input)
    assert result.exit_code == 1
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
    assert not place.has_leases


def test_an_input_that_is_not_utf_8_is_told(place: Place) -> None:
    (place.folder / "latin.jsonl").write_bytes('{"id": "é"}'.encode("latin-1"))
    result = place("import", str(place.folder / "latin.jsonl"), "--pipeline", "orders", "--from", "dotnet")
    assert "is not UTF-8 (byte 8)" in result.stderr


def test_as_json_every_change_is_told_whole(place: Place) -> None:
    place.keep(lease("0", '"10"'))
    told = json.loads(place.taking("dotnet", [dotnet("0", '"20"')], "--json").stdout)
    assert {name: told[name] for name in ("created", "moved", "unchanged", "refused", "written")} == {
        **dict.fromkeys(("created", "unchanged", "refused", "written"), 0),
        "moved": 1,
    }
    [change] = told["changes"]
    assert (change["document"], change["from"], change["to"], change["generation"]) == (
        f"{PREFIX}..0",
        '"10"',
        '"20"',
        1,
    )


def test_a_store_in_memory_takes_no_import(place: Place) -> None:
    file = place.folder / "orders.yaml"
    file.write_text(file.read_text().replace("path: state/leases.db", "type: memory"))
    told = place.taking("dotnet", [dotnet()], "--apply")
    assert (told.exit_code, told.stderr.split(":")[1]) == (1, " `leases")


def test_a_reset_is_a_new_generation_at_the_place_that_was_named(place: Place) -> None:
    place.keep(lease(owner="host-a", incarnation="1", generation=1))
    told = place("reset", "orders", "0", "--to", '"3"', "--yes")
    assert told.exit_code == 0
    assert told.stdout == (
        "lease '0' of pipeline 'orders' was reset to \"3\", generation 2; 'host-a' loses it at its next write\n"
    )
    assert place.leases["0"] == lease(owner="host-a", incarnation="1", generation=1).reset('"3"')
    assert place("reset", "orders", "0", "--to", "earliest", "--yes").stdout == (
        "lease '0' of pipeline 'orders' was reset to the feed's beginning, generation 3\n"
    )


def test_a_partition_may_begin_with_a_dash(place: Place) -> None:
    place.keep(lease("-FF"))
    assert place("reset", "orders", "-FF", "--to", '"30"', "--yes").exit_code == 0
    assert place.leases["-FF"].continuation == '"30"'
    assert json.loads(place("show", "orders", "-FF").stdout)["generation"] == 1
    assert "nothing to release" in place("release", "orders", "-FF").stdout


def test_a_reset_to_nowhere_changes_nothing(place: Place) -> None:
    ended = lease("1", closed=True, children=(Child("2", '"10"'),))
    place.keep(lease(), ended)
    told = place("reset", "orders", "0", "--to", "yesterday", "--yes").stderr
    assert "'yesterday' is neither `earliest`, `latest`, a time with its offset from UTC, nor a position" in told
    assert "is not a continuation of a Cosmos DB container" in told
    assert "has ended: reset what continues it, '2'" in place("reset", "orders", "1", "--to", '"3"', "--yes").stderr
    assert place("reset", "orders", "9", "--to", '"3"', "--yes").exit_code == 1
    assert place("reset", "orders", "0").exit_code == 2
    assert place.leases == {"0": lease(), "1": ended}


def test_several_leases_or_all_open_ones_are_reset_at_once(place: Place) -> None:
    closed = lease("c", closed=True, tombstone=True)
    place.keep(lease("a"), lease("b"), closed)
    assert place("reset", "orders", "--to", "earliest").exit_code == 2
    assert place("reset", "orders", "a", "--all", "--to", "earliest").exit_code == 2
    told = place("reset", "orders", "a", "nowhere", "b", "--to", '"3"', "--yes")
    assert (told.exit_code, len(told.stdout.splitlines())) == (1, 2)
    assert "no host has run it" in told.stderr
    told = place("reset", "orders", "--all", "--to", '"4"', "--yes")
    assert (told.exit_code, told.stdout.splitlines()) == (
        0,
        [f"lease '{name}' of pipeline 'orders' was reset to \"4\", generation 2" for name in "ab"],
    )
    assert place.leases["c"] == closed


# What is asked before a reset


def test_for_several_leases_a_reset_asks_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.keep(lease("a"), lease("b"))
    monkeypatch.setattr("leasehold.service.cli.migration.is_at_a_terminal", lambda: True)
    told = place("reset", "orders", "--all", "--to", '"3"', input="y\n")
    assert (told.exit_code, told.stderr.count("Reset them? [y/N]"), told.stderr.count("would move")) == (0, 1, 2)
    assert {name: each.generation for name, each in place.leases.items()} == {"a": 1, "b": 1}


def test_without_a_terminal_a_reset_says_what_it_would_do_and_wants_to_be_told(place: Place) -> None:
    place.keep(lease(owner="host-a", incarnation="1"))
    told = place("reset", "orders", "0", "--to", "earliest")
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr == (
        "leasehold: lease '0' of pipeline 'orders' would move from '\"10\"' to the feed's beginning:"
        " how many events are delivered again or skipped is unknown\n"
        "leasehold: sink 'python' applies redelivered events a second time: sums count them twice\n"
        "leasehold: host 'host-a' owns it: pause the pipeline first (POST /api/pipelines/orders/pause), and resume it"
        " afterwards\n"
        "leasehold: nothing was changed: to reset it, add --yes\n"
    )
    assert place.leases["0"] == lease(owner="host-a", incarnation="1")


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_at_a_terminal_a_reset_asks(place: Place, monkeypatch: pytest.MonkeyPatch, answer: str, code: int) -> None:
    place.keep(lease())
    monkeypatch.setattr("leasehold.service.cli.migration.is_at_a_terminal", lambda: True)
    told = place("reset", "orders", "0", "--to", '"3"', input=answer)
    assert told.exit_code == code
    assert "Reset it? [y/N]" in told.stderr
    assert place.leases["0"].generation == (1 if code == 0 else 0)
    assert ('was reset to "3", generation 1' in told.stdout) == (code == 0)
    assert ("nothing was changed" in told.stderr) == (code == 1)


def test_a_reset_that_cannot_be_done_is_refused_before_anybody_is_asked(place: Place) -> None:
    place.keep(lease(), lease("1", closed=True, children=(Child("2", '"10"'),)))
    for partition, to, why in (
        ("1", '"3"', "has ended"),
        ("0", "yesterday", "is not a continuation"),
        ("9", '"3"', "no lease"),
    ):
        told = place("reset", "orders", partition, "--to", to)
        assert (told.exit_code, why in told.stderr) == (1, True), told.stderr


def test_an_import_rings_for_hosts_once_it_has_written(place: Place) -> None:
    found: list[int] = []

    async def read(store: SqliteStore) -> None:
        found.extend(json.loads(stored.body)["ring"] for stored in await store.list(BELL_ID))

    place.keep(lease("9"))
    place.taking("dotnet", THEIRS)
    place._with(read)
    assert found == []
    place.taking("dotnet", THEIRS, "--apply")
    place._with(read)
    assert found == [1]
