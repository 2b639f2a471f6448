"""The figures of a group as a table of docs/scaling.md, and the targets that they are held to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from lab.scale.situations import OUTAGE_S, Row, Setup

PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"
IDLE, JOIN, LOADED_JOIN, DEATH = "idle", "a host joins", "a host joins, under load", "a host dies"
REQUESTS_MAX: Mapping[str, float] = {"3x32": 50, "11x1920": 50, "100x20000": 60, "500x100000": 60}
OWNED_S_MAX: Mapping[str, float] = {"3x32": 10, "100x20000": 15, "500x100000": 15}
JOINED_S_MAX: Mapping[str, float] = {"100x20000": 30, "500x100000": 30}
LOADED_JOIN_S_MAX: Mapping[str, float] = {"9x900": 3}
OUTAGES = (f"the container is away for {OUTAGE_S:g} s", f"writes fail for {OUTAGE_S:g} s")
HEADER = (
    "| situation | requests | in blobs | documents | KB | leases owned after | shares even after | moves | repeated batches |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
)


def missed(setup: Setup, rows: Sequence[Row]) -> Iterator[str]:
    """The targets that the figures miss."""
    by_name = {row.situation: row for row in rows}
    yield from _above(setup, by_name, IDLE, "requests a minute and host", lambda row: row.requests, REQUESTS_MAX)
    yield from _above(setup, by_name, DEATH, "s until all leases are owned", lambda row: row.owned_s, OWNED_S_MAX)
    yield from _above(setup, by_name, JOIN, "s until shares are even", lambda row: row.even_s, JOINED_S_MAX)
    yield from _above(setup, by_name, LOADED_JOIN, "s until shares are even", lambda row: row.even_s, LOADED_JOIN_S_MAX)
    if (idle := by_name.get(IDLE)) and idle.lease_writes:
        yield f"{setup.name}, {IDLE}: {idle.lease_writes} writes to leases, and none is allowed"
    if (joined := by_name.get(LOADED_JOIN)) and joined.repeated:
        yield f"{setup.name}, {LOADED_JOIN}: {joined.repeated} batches repeated, and none is allowed"
    for name in OUTAGES:
        if (outage := by_name.get(name)) and outage.moves:
            yield f"{setup.name}, {name}: {outage.moves} leases moved, and none may"


def _above(
    setup: Setup, rows: Mapping[str, Row], situation: str, what: str, figure: object, limits: Mapping[str, float]
) -> Iterator[str]:
    if (row := rows.get(situation)) is None or (limit := limits.get(setup.name)) is None:
        return
    found = figure(row)  # type: ignore[operator]  # a function of a row
    if found is None or found > limit:
        told = "never" if found is None else f"{found:.1f}"
        yield f"{setup.name}, {situation}: {told} {what}, and the target is {limit:g}"


def table(rows: Sequence[Row]) -> list[str]:
    return [*HEADER, *map(_line, rows)]


def _line(row: Row) -> str:
    cells = (
        row.situation,
        *(f"{figure:,.1f}" for figure in (row.requests, row.blob_requests)),
        *(f"{figure:,.0f}" for figure in (row.documents, row.kilobytes)),
        *("not in time" if found is None else f"{found:.1f} s" for found in (row.owned_s, row.even_s)),
        f"{row.moves:,}",
        "" if row.repeated is None else f"{row.repeated:,}",
    )
    return f"| {' | '.join(cells)} |"


def write(name: str, lines: Sequence[str], page: Path = PAGE) -> None:
    """Replace what stands between the markers of a group."""
    begin, end = f"<!-- make scale: {name} -->", f"<!-- end of {name} -->"
    text = page.read_text()
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page.name} lacks the markers {begin!r} and {end!r}: put them where the table belongs")
    page.write_text("\n".join((before + begin, *lines, end)) + after)
