"""Draws docs/rate-limiter.svg: what the rate limiter of asynchronous sinks makes of a destination whose capacity changes.

The sink's own `Desk` against a simulated destination, without sockets, time or chance: `python docs/rate_limiter.py` draws the
same picture every time, and a test compares it with the one in the folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from pipeline.async_sink import Converted, Failed, Limits
from pipeline.async_sink.desk import Desk, Request

LIMITS = Limits(batch_entries_max=20, in_flight_max=8, buffered_entries_max=400, buffer_age_max_s=0.05)
TAKES_S, END_S, STEP_S = 0.1, 70.0, 0.2
PHASES = (
    (0.0, 2000.0, "takes 2,000 a second"),
    (15.0, 400.0, "takes 400"),
    (35.0, 0.0, "is dead"),
    (50.0, 2000.0, "is well again"),
)
"""From when on, how many entries a second the destination takes, and what to call it."""
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 340, 52, 42, 44
FILE = Path(__file__).with_name("rate-limiter.svg")


@dataclass
class Destination:
    """Takes entries as its bucket allows, which fills at its present rate and holds what comes in half a request's time."""

    bucket: float = 0.0
    since: float = 0.0

    def answer(self, request: Request, now: float) -> Failed | None:
        """None where it is dead."""
        rate = max((start, rate) for start, rate, _ in PHASES if start <= now)[1]
        self.bucket = min(self.bucket + rate * (now - self.since), rate * TAKES_S)
        self.since = now
        taken = min(len(request.entries), int(self.bucket))
        self.bucket -= taken
        return Failed(request.entries[taken:]) if rate else None


@dataclass(frozen=True)
class Look:
    """At one moment: the limit, and the entries a second that arrived since the last look."""

    at: float
    limit: int
    rate: float


def simulated() -> list[Look]:
    desk, destination, looks = Desk(LIMITS, None), Destination(), []
    flying: list[tuple[float, int, Request]] = []
    numbers, now, arrived = count(), 0.0, 0
    while now < END_S:
        while desk.has_room:
            desk.take(Converted(value=None, bytes=1), "", now)
        while (due := desk.due_in_s(now)) is not None and due <= 0:
            heappush(flying, (now + TAKES_S, next(numbers), desk.next(now)))
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


def _answered(desk: Desk, request: Request, destination: Destination, now: float) -> None:
    answer = destination.answer(request, now)
    if answer is None:
        desk.failed(request, now, retry_after_s=None, spread=0.75)
    else:
        desk.answered(request, answer, now, spread=0.75)


def drawn(looks: list[Look]) -> str:
    """SVG. Left: entries in flight, up to the most there may be; right: entries a second, up to the most that arrive."""
    most_limit, most_rate = LIMITS.in_flight_entries_max, PHASES[0][1]
    limits = _line([(look.at, look.limit / most_limit) for look in looks])
    rates = _line([(look.at, look.rate / most_rate) for look in looks])
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        *(_phase(start, name) for start, _, name in PHASES),
        *(_tick(part, f"{most_limit * part:.0f}", f"{most_rate * part:,.0f}") for part in (0.0, 0.25, 0.5, 0.75, 1.0)),
        *(_second(second) for second in range(0, int(END_S) + 1, 10)),
        f'<polyline points="{rates}" fill="none" stroke="#2a7" stroke-width="2"/>',
        f'<polyline points="{limits}" fill="none" stroke="#36c" stroke-width="2"/>',
        f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="#36c">limit: entries in flight (left)</text>',
        f'<text x="{LEFT + 200}" y="{HEIGHT - 8}" fill="#2a7">entries a second that arrive (right)</text>',
        f'<text x="{WIDTH - LEFT}" y="{HEIGHT - 8}" text-anchor="end">seconds</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(at: float) -> float:
    return LEFT + (WIDTH - 2 * LEFT) * at / END_S


def _y(part: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part


def _line(points: list[tuple[float, float]]) -> str:
    return " ".join(f"{_x(at):.1f},{_y(part):.1f}" for at, part in points)


def _phase(start: float, name: str) -> str:
    x = _x(start)
    line = f'<line x1="{x:.1f}" y1="{TOP - 22}" x2="{x:.1f}" y2="{_y(0):.1f}" stroke="#999" stroke-dasharray="3 3"/>'
    return f'{line}<text x="{x + 4:.1f}" y="{TOP - 12}">{name}</text>'


def _tick(part: float, left: str, right: str) -> str:
    y = _y(part)
    return (
        f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - LEFT}" y2="{y:.1f}" stroke="#eee"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#36c">{left}</text>'
        f'<text x="{WIDTH - LEFT + 6}" y="{y + 4:.1f}" fill="#2a7">{right}</text>'
    )


def _second(second: int) -> str:
    return f'<text x="{_x(second):.1f}" y="{_y(0) + 16:.1f}" text-anchor="middle">{second}</text>'


if __name__ == "__main__":
    FILE.write_text(drawn(simulated()))
