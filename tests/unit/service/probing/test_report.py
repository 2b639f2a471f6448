"""Questions one by one, and a report that can be shown to others."""

from __future__ import annotations

import asyncio
import json

import pytest

from leasehold.common.clock import BootClock
from leasehold.service.probing.report import (
    Answer,
    Finding,
    ProbeReport,
    Question,
    ask_all,
    either,
    judged,
    summary,
    to_json,
    to_markdown,
    unopened,
)


class Place:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.settled = 0

    async def settle(self) -> None:
        self.settled += 1


async def fine(place: Place) -> Finding:
    place.notes.append("sent 1 -> accepted, password=hunter2")
    return judged("yes", True)


async def wrong(place: Place) -> Finding:
    return judged("no", False)


async def broken(place: Place) -> Finding:
    place.notes.append("sent 2")
    raise ConnectionError("the connection broke")


async def endless(place: Place) -> Finding:
    await asyncio.Event().wait()
    raise AssertionError("it never ends")


def question(ask) -> Question[Place]:
    return Question(id=ask.__name__, text="Is it so?", assumed="yes", ask=ask)


async def answers(*asks, timeout_s: float = 10) -> tuple[list[Answer], Place, list[str]]:
    place, said = Place(), list[str]()
    found = await ask_all(place, [question(ask) for ask in asks], BootClock(), said.append, timeout_s=timeout_s)
    return found, place, said


async def test_a_question_that_fails_does_not_stop_the_others_and_keeps_its_evidence() -> None:
    found, place, said = await answers(broken, fine, wrong)
    assert [(each.id, each.verdict) for each in found] == [("broken", "unknown"), ("fine", "holds"), ("wrong", "fails")]
    assert found[0].answer == "ConnectionError: the connection broke"
    assert [each.evidence for each in found] == [("sent 2",), ("sent 1 -> accepted, password=***",), ()]
    assert place.settled == 3
    assert said[2] == "wrong: NOT AS ASSUMED: no"


async def test_a_question_that_takes_too_long_is_given_up() -> None:
    found, place, _ = await answers(endless, fine, timeout_s=0.05)
    assert [each.verdict for each in found] == ["unknown", "holds"]
    assert "longer than 0.05 s" in found[0].answer
    assert place.settled == 2


def test_an_answer_that_may_be_either_is_known_or_fails() -> None:
    assert (either("0").verdict, either("7", is_known=False).verdict) == ("either", "fails")


def answer(text: str, verdict: str = "holds", *evidence: str) -> Answer:
    return Answer(
        id="hub-one",
        question="Is a|b so?",
        assumed="yes",
        answer=text,
        verdict=verdict,  # type: ignore[arg-type]
        evidence=evidence,
        took_s=0.5,
    )


def report(*found: Answer, left: tuple[str, ...] = ()) -> ProbeReport:
    return ProbeReport(
        date="2026-01-31", versions={"azure-cosmos": "4.17"}, systems={"hub at ns.example": found}, left=left
    )


@pytest.mark.parametrize(
    ("found", "is_fine"),
    [
        (report(answer("yes"), answer("0", "either")), True),
        (report(answer("no", "fails")), False),
        (report(answer("?", "unknown")), False),
        (report(unopened("hub", ValueError("no such hub"))), False),
        (report(answer("yes"), left=("container 'x'",)), False),
    ],
)
def test_a_report_is_fine_if_every_answer_is_known_and_nothing_is_left(found: ProbeReport, is_fine: bool) -> None:
    assert found.is_fine is is_fine


def test_names_are_hidden_everywhere_but_not_within_words() -> None:
    found = report(
        answer("ns.example is so", "holds", "bank at ns.example", "a bankrupt one"), left=("bank: delete it",)
    )
    hidden = found.without({"ns.example": "NAMESPACE1", "ns": "NAMESPACE1", "bank": "DATABASE1"})
    text = to_markdown(hidden) + to_json(hidden)
    assert "ns.example" not in text
    assert "DATABASE1 at NAMESPACE1" in text
    assert "a bankrupt one" in text
    assert "DATABASE1: delete it" in text
    assert "## hub at NAMESPACE1" in text


def test_markdown_stays_a_table_whatever_is_answered() -> None:
    text = to_markdown(report(answer("a | b\nc", "fails", "``` sent\n# x")))
    row = next(line for line in text.splitlines() if line.startswith("| `hub-one`"))
    assert row == "| `hub-one`: Is a\\|b so? | yes | a \\| b c | NOT AS ASSUMED |"
    assert text.count("```") == 2
    assert "1 question: 0 as assumed, 0 either answer is fine, 1 NOT AS ASSUMED, 0 no answer." in text


def test_json_has_each_answer_whole() -> None:
    found = json.loads(to_json(report(answer("yes", "holds", "sent"))))
    assert found["systems"][0]["answers"] == [
        {
            "id": "hub-one",
            "question": "Is a|b so?",
            "assumed": "yes",
            "answer": "yes",
            "verdict": "holds",
            "evidence": ["sent"],
            "took_s": 0.5,
        }
    ]
    assert found["versions"] == {"azure-cosmos": "4.17"}
    assert summary(report()) == "0 questions: 0 as assumed, 0 either answer is fine, 0 NOT AS ASSUMED, 0 no answer"
