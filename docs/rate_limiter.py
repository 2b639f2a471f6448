"""Draws docs/rate-limiter.svg: what the rate limiter of asynchronous sinks makes of a destination whose capacity changes.

The sink's own `RequestScheduler` against a simulated destination, without sockets or time, its chance from one seed:
`python docs/rate_limiter.py` draws the same picture every time, and a test compares it with the one in the folder. `make bench`
puts the same sink before a real one that has the same troubles, in real time, and draws that run into build/.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from leasehold.pipeline.async_sink import Converted, Failed, Limits
from leasehold.pipeline.async_sink.request_scheduler import Request, RequestScheduler

LIMITS = Limits(
    batch_entries_max=20, in_flight_max=8, buffered_entries_max=400, buffer_age_max_s=0.05, request_timeout_s=2.0
)
TAKES_S, STEP_S = 0.1, 0.2
WELL = 2000.0


@dataclass(frozen=True)
class Phase:
    """From `start` seconds on. takes: entries a second. throttle, items, stall: the share of requests, or of entries, in it."""

    start: float
    name: str
    takes: float = WELL
    throttle: float = 0.0
    items: float = 0.0
    stall: float = 0.0


PHASES = (
    Phase(0, "is well"),
    Phase(10, "takes 400 a second", takes=400),
    Phase(30, "throttles 80 %", throttle=0.8),
    Phase(45, "a tenth fails", items=0.1),
    Phase(62, "half stalls", stall=0.5),
    Phase(75, "is dead", takes=0),
    Phase(135, "is well again"),
)
END_S = 155.0
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 1000, 340, 52, 42, 44
FILE = Path(__file__).with_name("rate-limiter.svg")


@dataclass
class Destination:
    """Takes entries as its bucket allows, which fills at its present rate and holds what comes in half a request's time."""

    rng: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311  # the same picture every time
    bucket: float = 0.0
    since: float = 0.0

    def takes_s(self, now: float) -> float:
        """How long its next answer takes; none comes where the sink gives up first."""
        return LIMITS.request_timeout_s if self.rng.random() < phase_at(now).stall else TAKES_S

    def answer(self, request: Request, now: float) -> Failed | None:
        """None where all of it fails."""
        phase = phase_at(now)
        self.bucket = min(self.bucket + phase.takes * (now - self.since), phase.takes * TAKES_S)
        self.since = now
        if now - request.sent_at >= LIMITS.request_timeout_s or not phase.takes or self.rng.random() < phase.throttle:
            return None
        if phase.items:
            return Failed([each for each in request.entries if self.rng.random() < phase.items], is_throttled=False)
        taken = min(len(request.entries), int(self.bucket))
        self.bucket -= taken
        return Failed(request.entries[taken:])


def phase_at(now: float) -> Phase:
    return max((phase for phase in PHASES if phase.start <= now), key=lambda phase: phase.start)


@dataclass(frozen=True)
class Look:
    """At one moment: the limit, and the entries a second that arrived since the last look."""

    at: float
    limit: int
    rate: float


def simulated() -> list[Look]:
    desk, destination, looks = RequestScheduler(LIMITS, None), Destination(), []
    flying: list[tuple[float, int, Request]] = []
    numbers, now, arrived = count(), 0.0, 0
    while now < END_S:
        while desk.has_room:
            desk.take(Converted(value=None, bytes=1), "", now)
        while (due := desk.due_in_s(now)) is not None and due <= 0:
            heappush(flying, (now + destination.takes_s(now), next(numbers), desk.next(now)))
        now = min(_times(flying, now, due, len(looks)))
        while flying and flying[0][0] <= now:
            before = desk.acknowledged
            _answered(desk, heappop(flying)[2], destination, now)
            arrived += desk.acknowledged - before
        if now >= len(looks) * STEP_S:
            looks.append(Look(now, desk.limiter.entries, arrived / STEP_S))
            arrived = 0
    return looks


def _times(flying: list[tuple[float, int, Request]], now: float, due: float | None, looks: int) -> Iterator[float]:
    """When something may happen."""
    yield looks * STEP_S
    if flying:
        yield flying[0][0]
    if due is not None:
        yield now + due


def _answered(desk: RequestScheduler, request: Request, destination: Destination, now: float) -> None:
    answer = destination.answer(request, now)
    if answer is None:
        desk.failed(request, now, retry_after_s=None, jitter=0.5)
    else:
        desk.answered(request, answer, now, jitter=0.5)


def drawn(looks: Sequence[Look], phases: Sequence[Phase] = PHASES) -> str:
    """SVG. Left: entries in flight, up to the most there may be; right: entries a second, up to the most that arrive."""
    end_s, most_limit = looks[-1].at, max(look.limit for look in looks)
    most_rate = max(phase.takes for phase in phases)
    limits = _line([(look.at / end_s, look.limit / most_limit) for look in looks])
    rates = _line([(look.at / end_s, min(1.0, look.rate / most_rate)) for look in looks])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *(_phase(phase.start / end_s, phase.name) for phase in phases),
        *(_tick(part, f"{most_limit * part:.0f}", f"{most_rate * part:,.0f}") for part in (0.0, 0.25, 0.5, 0.75, 1.0)),
        *(_second(second / end_s, second) for second in range(0, int(end_s) + 1, 10)),
        f'<polyline points="{rates}" fill="none" stroke="#2a7" stroke-width="2"/>',
        f'<polyline points="{limits}" fill="none" stroke="#36c" stroke-width="2"/>',
        f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="#36c">limit: entries in flight (left)</text>',
        f'<text x="{LEFT + 200}" y="{HEIGHT - 8}" fill="#2a7">entries a second that arrive (right)</text>',
        f'<text x="{WIDTH - LEFT}" y="{HEIGHT - 8}" text-anchor="end">seconds</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(part: float) -> float:
    return LEFT + (WIDTH - 2 * LEFT) * part


def _y(part: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part


def _line(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{_x(at):.1f},{_y(part):.1f}" for at, part in points)


def _phase(part: float, name: str) -> str:
    x = _x(part)
    line = f'<line x1="{x:.1f}" y1="{TOP - 22}" x2="{x:.1f}" y2="{_y(0):.1f}" stroke="#999" stroke-dasharray="3 3"/>'
    return f'{line}<text x="{x + 4:.1f}" y="{TOP - 12}">{name}</text>'


def _tick(part: float, left: str, right: str) -> str:
    y = _y(part)
    return (
        f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - LEFT}" y2="{y:.1f}" stroke="#eee"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#36c">{left}</text>'
        f'<text x="{WIDTH - LEFT + 6}" y="{y + 4:.1f}" fill="#2a7">{right}</text>'
    )


def _second(part: float, second: int) -> str:
    return f'<text x="{_x(part):.1f}" y="{_y(0) + 16:.1f}" text-anchor="middle">{second}</text>'


if __name__ == "__main__":
    FILE.write_text(drawn(simulated()))
