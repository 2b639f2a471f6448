"""`leasehold check --probe --service` against the wire servers, in both of their readings: the report says what they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from patience import until
from plugins_cli import Command, Commands
from plugins_cosmos import Cosmos
from plugins_eventhubs import EventHubs
from plugins_servers import Orders, served

from leasehold.service.probing import cosmos as cosmos_questions
from leasehold.service.probing import eventhubs as hub_questions

SETTINGS = """
leases: {{type: sqlite, path: leases.db}}
api: {{enabled: false}}
pipelines:
  - name: publish
    feed: {{type: cosmos, endpoint: "{endpoint}", key: "{key}", database: bank, container: orders}}
    sink: {{type: eventhubs, connection_string: "{hub}", event_hub: transformed-event, consumer_group: sinks}}
"""


@pytest.fixture
async def place(tmp_path: Path, cosmos: Cosmos, eventhubs: EventHubs) -> Path:
    """A folder with settings over both servers, which have a hub `scratch`."""
    from azure.cosmos import PartitionKey

    async with cosmos.client() as client:
        database = await client.create_database("bank")
        await database.create_container("orders", PartitionKey("/pk"))
    eventhubs.control.make_hub("scratch", 1)
    text = SETTINGS.format(endpoint=cosmos.endpoint, key=cosmos.key, hub=eventhubs.connection_string)
    (tmp_path / "bank.yaml").write_text(text)
    return tmp_path


async def containers(cosmos: Cosmos) -> list[str]:
    async with cosmos.client() as client:
        return [each["id"] async for each in client.get_database_client("bank").list_containers()]


def probe(leasehold: Commands, *options: str) -> Command:
    return leasehold("check", "bank.yaml", "--probe", "--service", *options)


def verdicts(folder: Path) -> dict[str, tuple[str, str]]:
    """Of each question the verdict and the answer, as the report has them."""
    report = json.loads((folder / "report.json").read_text())
    return {each["id"]: (each["verdict"], each["answer"]) for system in report["systems"] for each in system["answers"]}


async def test_all_questions_are_answered_as_assumed_and_nothing_is_left_behind(
    place: Path, leasehold: Commands, cosmos: Cosmos, eventhubs: EventHubs
) -> None:
    command = probe(leasehold, "--hub", "scratch", "--create", "--report", "report.json")
    assert command.ended() == 0, command.out + command.err
    found = verdicts(place)
    assert found.keys() == {each.id for each in hub_questions.QUESTIONS} | {
        each.id for each in cosmos_questions.QUESTIONS
    }
    assert {verdict for verdict, _ in found.values()} == {"holds", "either"}
    assert found["hub-nothing-published"] == ("either", "0")
    assert found["hub-null-level"] == ("either", "the current one")
    assert found["hub-return-behind"] == ("either", "the service's own number")
    assert found["hub-start-behind-end"][1].startswith("yes")
    assert found["hub-repeated-batches"][1].startswith("5;")
    assert found["cosmos-versions"][1].endswith("previous images with none")
    assert found["cosmos-lag"][1].startswith("of 20 answers, 0 have a lower ETag")
    assert await containers(cosmos) == ["orders"]
    assert eventhubs.control.bodies("transformed-event", "0") == []
    costs = [line for line in command.out.splitlines() if "publishes about" in line or "creates the container" in line]
    assert len(costs) == 2


async def test_the_report_differs_as_the_services_do(
    place: Path, leasehold: Commands, cosmos: Cosmos, eventhubs: EventHubs
) -> None:
    eventhubs.control.rules(reply="asked", null_level="next", nothing=-1, beyond="waits")
    cosmos.control.fault("lag", of="feed.latest", lsns=1, share=0.5, again=True)
    command = probe(leasehold, "--hub", "scratch", "--create", "--report", "report.json")
    assert command.ended() == 0, command.out + command.err
    found = verdicts(place)
    assert {verdict for verdict, _ in found.values()} == {"holds", "either"}
    assert found["hub-nothing-published"] == ("either", "-1")
    assert found["hub-null-level"] == ("either", "the next one")
    assert found["hub-null-level-at-highest"][1].startswith("refused")
    assert found["hub-return-behind"] == ("either", "the producer's number")
    assert found["hub-start-behind-end"] == ("either", "no, it waits")
    assert not found["cosmos-lag"][1].startswith("of 20 answers, 0 have a lower ETag")


async def test_a_service_that_does_not_behave_as_assumed_fails_the_probe_and_the_other_questions_are_asked(
    place: Path, leasehold: Commands, cosmos: Cosmos, eventhubs: EventHubs
) -> None:
    eventhubs.control.rules(old_s=15)
    cosmos.control.fault("fail", of="document.replace", status=500)
    command = probe(leasehold, "--hub", "scratch", "--create", "--report", "report.json")
    assert command.ended() == 1, command.out + command.err
    found = verdicts(place)
    assert found["hub-age-of-management"][0] == "fails"
    assert found["cosmos-compare-and-swap"][0] == "unknown"
    assert found["hub-stored-batches"][0] == found["cosmos-etag"][0] == "holds"
    assert "NOT AS ASSUMED" in command.out
    assert await containers(cosmos) == ["orders"]


@pytest.mark.parametrize(("after", "verdict", "code"), [(1, "either", 0), (2, "fails", 1)])
async def test_an_acknowledged_batch_that_is_not_stored_is_judged_by_whether_a_claim_reads_it_back(
    place: Path, leasehold: Commands, eventhubs: EventHubs, after: int, verdict: str, code: int
) -> None:
    eventhubs.control.fault("discard", of="send", hub="scratch", after=after, times=1)
    command = probe(leasehold, "--hub", "scratch", "--report", "report.json")
    assert command.ended() == code, command.out + command.err
    found = verdicts(place)
    assert found["hub-stored-batches"][0] == verdict
    assert not [each for each in found if each.startswith("cosmos")], "--create was not given"
    assert "--create permits" in command.out


async def test_the_report_has_no_names_and_no_secrets_unless_names_are_wanted(
    place: Path, leasehold: Commands, cosmos: Cosmos, eventhubs: EventHubs
) -> None:
    hidden = probe(leasehold, "--create", "--report", "hidden.md")
    assert hidden.ended() == 0, hidden.out + hidden.err
    shown = probe(leasehold, "--create", "--names", "--report", "shown.md")
    assert shown.ended() == 0, shown.out + shown.err
    texts = {name: (place / name).read_text() for name in ("hidden.md", "shown.md")}
    host = cosmos.endpoint.removeprefix("http://").rstrip("/")
    assert "## Cosmos DB, ACCOUNT1/DATABASE1" in texts["hidden.md"]
    assert host not in texts["hidden.md"]
    assert f"## Cosmos DB, {host}/bank" in texts["shown.md"]
    assert not [name for name, text in texts.items() if cosmos.key in text or eventhubs.key in text]
    assert "azure-cosmos " in texts["hidden.md"]


async def test_ctrl_c_removes_what_was_created(place: Path, leasehold: Commands, cosmos: Cosmos) -> None:
    cosmos.control.fault("delay", of="feed.*", delay_s=5)
    command = probe(leasehold, "--create")
    until(lambda: "creates the container" in command.out, "it begins")
    until(lambda: cosmos.control.requests("feed.latest") > 0, "it asks")
    command.interrupt()
    assert command.ended() == 130
    assert "interrupted; nothing is left behind" in command.out
    assert await containers(cosmos) == ["orders"]


async def test_what_cannot_be_removed_is_listed(place: Path, leasehold: Commands, cosmos: Cosmos) -> None:
    cosmos.control.fault("fail", of="container.delete", status=403)
    command = probe(leasehold, "--create")
    assert command.ended() == 1
    [left] = [each for each in await containers(cosmos) if each != "orders"]
    assert f"could not be removed: container '{left}'" in command.out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "there is no service to ask"),
        (("--hub", "Transformed-Event"), "which a pipeline uses"),
        (("--create", "--report", "missing/report.md"), "there is no such directory"),
    ],
)
async def test_what_must_not_or_cannot_be_asked_is_a_clear_error(
    place: Path, leasehold: Commands, eventhubs: EventHubs, options: tuple[str, ...], says: str
) -> None:
    command = probe(leasehold, *options)
    assert (command.ended(), says in command.err) == (2, True), command.out + command.err
    assert eventhubs.control.bodies("transformed-event", "0") == []


async def test_a_hub_that_is_missing_is_an_answer(place: Path, leasehold: Commands) -> None:
    command = probe(leasehold, "--hub", "none", "--report", "report.json")
    assert command.ended() == 1
    verdict, answer = verdicts(place)["hub-open"]
    assert (verdict, "none" in answer or "HUB" in answer) == ("unknown", True)


def test_options_of_the_questions_need_them(tmp_path: Path, leasehold: Commands) -> None:
    (tmp_path / "bank.yaml").write_text("")
    told: list[Any] = []
    for options in (("--service",), ("--probe", "--create")):
        command = leasehold("check", "bank.yaml", *options)
        told.append((command.ended(), "--service" in command.err))
    assert told == [(2, True), (2, True)]


async def test_leases_in_blobs_are_asked_beside_them(tmp_path: Path, leasehold: Commands) -> None:
    with served("leasehold_emulators.blob") as (said, _):
        (tmp_path / "bank.yaml").write_text(
            f"leases: {{type: blob, connection_string: '{said['connection_string']}'}}\n"
            "api: {enabled: false}\npipelines: [{name: p, feed: {type: log, path: in}, sink: {type: log, path: out}}]\n"
        )
        command = probe(leasehold, "--create", "--report", "report.json")
        assert command.ended() == 0, command.out + command.err
        assert {name: verdict for name, (verdict, _) in verdicts(tmp_path).items()} == {
            "blob-compare-and-swap": "holds",
            "blob-listing": "holds",
        }
        assert [each["blobs"] for each in Orders(said["control"]).order("containers")] == [0]
        text = (tmp_path / "report.json").read_text()
        assert "devstoreaccount1" not in text
        assert said["key"] not in text
