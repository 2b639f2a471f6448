"""docs/performance.md and its picture: the figures of the last whole run of `make bench`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from html import escape
from math import isnan

from results import DOCS, HEADER, Figure, cells

PAGE = DOCS / "performance.md"
PICTURE = PAGE.with_suffix(".svg")
WIDTH, LINE, LABEL, RIGHT = 900, 26, 520, 70

ABOUT = """# Performance

This page shows what one run of `make bench` measured. Measure on your own machine before you rely on a figure.

- All systems that one row compares are measured in the same run.
  Figures are medians of several repetitions, unless there is only one.
  Only .NET's writes are computed. The raw socket reader only counts frames, and the loops under *Peers* keep no position.
- Events of the hub have no application properties. The times of plans are CPU times.
- All systems over Kafka read the same topics of one broker. Its CPU time is not counted.
  Spark's real-time mode delivers at least once.
- *CPU us/event* is the CPU time of the processes that do the work. For micro-batches these are Python, Java and PostgreSQL.
- A ratio is ours divided by the other's. For times and costs, less is better.

"""
NOTES = """
## Where the time goes

These profiles and trials were made on two cores while the code grew. They explain the targets that are missed.

**A warm micro-batch pipeline** takes some 3 us of CPU time per event:

| process | us/event | of that |
| --- | --- | --- |
| Java | 1.5 | tasks 0.55, compiling 0.3, planning and taking the rows over 0.2, scheduling 0.15, garbage collection 0.1 |
| Python | 0.9 | reading the log and parsing JSON |
| PostgreSQL | 0.65 | upserts: four partitions with 10,000 accounts each for 400,000 events |

- Batches of 200,000 events and jobs of 32 MiB need more memory, and are not faster.
- Compiling with C1 alone, or raising the JIT's thresholds 40-fold, helps a cold pipeline or single events.
  But a warm pipeline then costs more.
- Other allocators for Arrow change nothing that can be measured.
- Structured Streaming sums over all partitions in one job, so it writes a quarter of the rows.

**One event through Spark** takes some 15 ms in Spark.
A job that does nothing takes 5 ms of this, because a dozen threads pass it on.
The rest is Spark's: it cleans closures by reading class files, opens an SQL execution, serves the rows,
and generates code that it has compiled before.

- Analysing the query first, and then running it, took 7 ms more.
- Keeping the RDD of Arrow batches and collecting it again takes longer than running the DataFrame again.

**One event without a transform** takes 4 to 6 ms.
Appending it durably takes 1 ms, and noticing and reading it takes another 1 ms.
PostgreSQL takes 1 to 2 ms, because its commit waits for the disk as well.
The rest is spent between threads, and until the observer sees the row.

- Sending the rows in the message that commits them, and checking busy logs every millisecond, saved 2 ms.
- Checking twice as often saves another quarter of a millisecond, and costs a twentieth of a core.

**Receiving from an event hub** takes 0.8 us of CPU time per event. A reader that only counts frames takes 0.1 us.
The difference is the decoding of frames into columns, with NumPy.

- Events with application properties are decoded one by one, which takes several times as long.
- Guessing that all frames are equally long saves 0.06 us, but is useful only in benchmarks.

**Publishing to an event hub** takes 1.4 us of CPU time per event, and 3.2 us until the event is acknowledged.
All clients wait for each batch.
For the rest of the time, the server decodes the batch, which takes equally long for every client.

- Sending the next batch before the last one is acknowledged would hide that time. The producer does not do this:
  after a failure, the fate of one batch may be unknown, but not that of two.
"""


def write(figures: Mapping[str, Sequence[Figure]], machine: object, at: datetime) -> None:
    PICTURE.write_text(drawn([each for part in figures.values() for each in part if each.beside is not None]))
    PAGE.write_text("\n".join(lines(figures, machine, at)) + "\n")


def lines(figures: Mapping[str, Sequence[Figure]], machine: object, at: datetime) -> Iterator[str]:
    yield ABOUT.rstrip("\n")
    yield ""
    about = machine if isinstance(machine, Mapping) else {}
    yield (
        f"Measured on {at:%Y-%m-%d} with {about.get('cpus')} CPUs, Python {about.get('python')} and Spark {about.get('spark')}:"
        " `make bench`."
    )
    yield ""
    yield f"![Ours divided by the other's, for each figure that has one]({PICTURE.name})"
    for part, found in figures.items():
        yield ""
        yield f"## {part.replace('-', ' ').capitalize()}"
        yield ""
        yield _row(HEADER)
        yield _row(["---"] * len(HEADER))
        yield from (_row(cells(each)) for each in found)
    yield NOTES.rstrip("\n")


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def drawn(figures: Sequence[Figure]) -> str:
    """SVG: a bar for each ratio, a line where the target is, both by the larger of the two."""
    height = LINE * len(figures) + 2 * LINE
    bars = [part for n, figure in enumerate(figures) for part in _bar(figure, LINE * (n + 1))]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            *bars,
            f'<text x="{LABEL}" y="{height - 8}" fill="#555">bar: ours divided by the other\'s; line: target</text>',
            "</svg>",
            "",
        ]
    )


def _bar(figure: Figure, y: float) -> Iterator[str]:
    room = WIDTH - LABEL - RIGHT
    most = max(figure.value, figure.bound or 0.0, 1e-9)
    length = 0.0 if isnan(figure.value) else room * figure.value / most
    color = "#c33" if figure.is_missed else "#2a7"
    yield f'<text x="{LABEL - 8}" y="{y + 4}" text-anchor="end">{escape(f"{figure.name}, of {figure.beside}")}</text>'
    yield f'<rect x="{LABEL}" y="{y - 8}" width="{length:.1f}" height="14" fill="{color}"/>'
    yield f'<text x="{LABEL + length + 4:.1f}" y="{y + 4}">{figure.value:.2f}</text>'
    if figure.bound is not None:
        x = LABEL + room * figure.bound / most
        yield f'<line x1="{x:.1f}" y1="{y - 11}" x2="{x:.1f}" y2="{y + 9}" stroke="#333" stroke-width="2"/>'
