"""`make model`: the rules hold, and each unsafe variant fails. Prints how many states were looked at."""

from __future__ import annotations

import sys

import click
from lab.model import namesakes
from lab.model.liveness import RULES, UNSAFE, Bounds, searched

SHORT_TIMES = Bounds(until=4, beats=2, wins=1, looks=2, reads=0)
LONG_TIMES = Bounds(until=6, beats=2, wins=1, looks=2, reads=0)
READS = Bounds(until=4, beats=2, wins=1, looks=1, reads=1)
TURNS = Bounds(until=2, beats=2, wins=1, looks=1, reads=0, turns=2)
ALL = (TURNS, READS, SHORT_TIMES, LONG_TIMES)


def main() -> int:
    is_as_expected = True
    for bounds in ALL:
        found = searched(RULES, bounds, told=lambda states: click.echo(f"  {states:,} states", err=True))
        is_as_expected &= not found.course
        click.echo(f"the rules: {'UNSAFE' if found.course else 'safe'}, {found.states:,} states")
        for state in found.course:
            click.echo(f"    {state}")
    for variant in UNSAFE:
        found = next((found for bounds in ALL if (found := searched(variant, bounds)).course), None)
        is_as_expected &= found is not None
        shown = "holds, though it must not" if found is None else f"unsafe after {len(found.course) - 1} steps"
        click.echo(f"{variant.name}: {shown}")
    for name, problem in namesakes.results():
        is_as_expected &= problem is None
        click.echo(f"namesakes, {name}: {problem or 'as expected'}")
    return 0 if is_as_expected else 1


if __name__ == "__main__":
    sys.exit(main())
