"""Asks questions one by one, and reports the answers with their evidence. A question that fails does not stop the others."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, Protocol, TypeVar

from leasehold.common.clock import Clock
from leasehold.service.texts import counted, readable

Verdict = Literal["holds", "either", "fails", "unknown"]
WORDS: Mapping[Verdict, str] = {
    "holds": "as assumed",
    "either": "either answer is fine",
    "fails": "NOT AS ASSUMED",
    "unknown": "no answer",
}
QUESTION_S_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Finding:
    answer: str
    verdict: Verdict


def judged(answer: str, holds: bool) -> Finding:
    return Finding(answer, "holds" if holds else "fails")


def either(answer: str, is_known: bool = True) -> Finding:
    """Leasehold handles this answer, if it is one of those that it knows."""
    return Finding(answer, "either" if is_known else "fails")


class ProbedSystem(Protocol):
    """A system that answers. notes: what was sent and what came back, for one question."""

    notes: list[str]

    async def settle(self) -> None:
        """Close what a question has left open."""
        ...


P = TypeVar("P", bound=ProbedSystem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Generic[P]):
    """id: docs/guarantees.md names it. assumed: the answer that Leasehold relies on."""

    id: str
    text: str
    assumed: str
    ask: Callable[[P], Awaitable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    id: str
    question: str
    assumed: str
    answer: str
    verdict: Verdict
    evidence: tuple[str, ...]
    took_s: float


async def ask_all(
    place: P,
    questions: Sequence[Question[P]],
    clock: Clock,
    say: Callable[[str], None],
    *,
    timeout_s: float = QUESTION_S_MAX,
) -> list[Answer]:
    return [await _ask(place, question, clock, say, timeout_s) for question in questions]


async def _ask(place: P, question: Question[P], clock: Clock, say: Callable[[str], None], timeout_s: float) -> Answer:
    place.notes.clear()
    began = clock.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            found = await question.ask(place)
    except TimeoutError:
        found = Finding(f"it took longer than {timeout_s:g} s", "unknown")
    except Exception as error:
        found = Finding(f"{type(error).__name__}: {error}", "unknown")
    answer = Answer(
        id=question.id,
        question=question.text,
        assumed=question.assumed,
        answer=readable(found.answer),
        verdict=found.verdict,
        evidence=tuple(map(readable, place.notes)),
        took_s=round(clock.monotonic() - began, 2),
    )
    await place.settle()
    say(f"{answer.id}: {WORDS[answer.verdict]}: {answer.answer}")
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """date: of its beginning. versions: of what was used. left: what could not be removed."""

    date: str
    versions: Mapping[str, str]
    systems: Mapping[str, Sequence[Answer]] = field(default_factory=dict)
    left: Sequence[str] = ()

    @property
    def answers(self) -> list[Answer]:
        return [answer for answers in self.systems.values() for answer in answers]

    @property
    def is_fine(self) -> bool:
        """Whether every question has an answer that Leasehold knows."""
        return not self.left and all(answer.verdict in ("holds", "either") for answer in self.answers)

    def without(self, names: Mapping[str, str]) -> ProbeReport:
        """The report, with the names of accounts and the like replaced. Pure."""
        return replace(
            self,
            systems={
                _hidden(system, names): [_anonymous(answer, names) for answer in answers]
                for system, answers in self.systems.items()
            },
            left=[_hidden(each, names) for each in self.left],
        )


def _anonymous(answer: Answer, names: Mapping[str, str]) -> Answer:
    evidence = tuple(_hidden(each, names) for each in answer.evidence)
    return replace(answer, answer=_hidden(answer.answer, names), evidence=evidence)


def _hidden(text: str, names: Mapping[str, str]) -> str:
    """The longest names first, since one may be within another."""
    for name in sorted(names, key=len, reverse=True):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", names[name], text, flags=re.IGNORECASE)
    return text


def unopened(system: str, error: Exception) -> Answer:
    """The only answer of a system that could not be reached, or that refused."""
    return Answer(
        id=f"{system}-open",
        question="Does the service answer at all?",
        assumed="yes",
        answer=readable(str(error)),
        verdict="unknown",
        evidence=(),
        took_s=0.0,
    )


def summary(report: ProbeReport) -> str:
    counts = {verdict: sum(answer.verdict == verdict for answer in report.answers) for verdict in WORDS}
    return f"{counted(len(report.answers), 'question')}: " + ", ".join(
        f"{count} {WORDS[verdict]}" for verdict, count in counts.items()
    )


def to_json(report: ProbeReport) -> str:
    systems = [
        {"system": system, "answers": [_answer_fields(answer) for answer in answers]}
        for system, answers in report.systems.items()
    ]
    body = {"date": report.date, "versions": dict(report.versions), "systems": systems, "left": list(report.left)}
    return json.dumps(body, ensure_ascii=False, indent=2) + "\n"


def _answer_fields(answer: Answer) -> dict[str, object]:
    return {
        "id": answer.id,
        "question": answer.question,
        "assumed": answer.assumed,
        "answer": answer.answer,
        "verdict": answer.verdict,
        "evidence": list(answer.evidence),
        "took_s": answer.took_s,
    }


def to_markdown(report: ProbeReport) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    lines = ["# What the services answered", "", f"{report.date}; {versions}.", "", f"{summary(report)}.", ""]
    for each in report.left:
        lines += [f"Could not be removed: {each}.", ""]
    for system, answers in report.systems.items():
        lines += [f"## {system}", "", "| question | assumed | answer | verdict |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{answer.id}`: {_cell(answer.question)} | {_cell(answer.assumed)} | {_cell(answer.answer)} |"
            f" {WORDS[answer.verdict]} |"
            for answer in answers
        ]
        for answer in answers:
            lines += [
                "",
                f"### `{answer.id}` ({answer.took_s:g} s)",
                "",
                "```",
                *map(_in_one_line, answer.evidence),
                "```",
            ]
        lines.append("")
    return "\n".join(lines)


def _cell(text: str) -> str:
    return _in_one_line(text).replace("|", "\\|")


def _in_one_line(text: str) -> str:
    return " ".join(text.replace("```", "'''").split())
