"""What a host has delivered by the time it ends: for the log as fields, and for people as a line for each pipeline.

A batch whose answer was lost counts only if this host delivered it again: the sink has it, and another claim found out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from service.plurals import counted
from service.stats import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What this host has delivered of one pipeline. rows: of output; dead_letters: of the events."""

    pipeline: str
    events: int
    rows: int
    dead_letters: int


def summaries_of(tally: Tally, pipelines: Iterable[str]) -> list[Summary]:
    return [
        Summary(pipeline=name, events=tally.events[name], rows=tally.rows[name], dead_letters=tally.dead_letters[name])
        for name in pipelines
    ]


def summary_lines(summaries: Iterable[Summary], *, finished: Collection[str], is_alone: bool) -> list[str]:
    """finished: pipelines that have nothing left to do. is_alone: whether this host has seen no other one at work."""
    whose = "" if is_alone else "this host: "
    return [f"{whose}{each.pipeline}: {_work(each, is_finished=each.pipeline in finished)}" for each in summaries]


def _work(done: Summary, *, is_finished: bool) -> str:
    if is_finished and not done.events:
        return "nothing to do"
    counts = [counted(done.events, "event") + " in", counted(done.rows, "row") + " out"]
    return ", ".join(counts + [counted(done.dead_letters, "dead letter")] * bool(done.dead_letters))
