"""The benchmarks' table: a missed target is seen, and a part that fails does not keep the others from running."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from math import nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

BENCH = Path(__file__).parents[1] / "lab/bench"
GOOD = """
from results import Figure, finish
figure = Figure(name="speed", unit="events/s", ours=200.0, others={"theirs": 100.0}, beside="theirs", bound=%s)
raise SystemExit(finish("good", [figure]))
"""


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The runner, with its neighbours, and a directory of its own."""
    monkeypatch.setenv("BENCH_ROOT", str(tmp_path))
    monkeypatch.syspath_prepend(BENCH)
    yield importlib.import_module("bench")
    for name in ("results", "page", "bench"):
        sys.modules.pop(name)


@pytest.mark.parametrize(
    ("value", "bound", "is_most", "is_missed"),
    [
        (1.0, 2.0, False, True),
        (2.0, 2.0, False, False),
        (2.1, 2.0, True, True),
        (2.0, None, True, False),
        (nan, 2.0, True, True),
    ],
)
def test_a_target_is_missed_on_the_wrong_side_of_its_bound(
    bench: Any, value: float, bound: float | None, is_most: bool, is_missed: bool
) -> None:
    assert bench.Figure(name="x", unit="s", ours=value, bound=bound, is_most=is_most).is_missed is is_missed
    beside = bench.Figure(
        name="x", unit="s", ours=10 * value, others={"a": 10.0, "b": 1.0}, beside="a", bound=bound, is_most=is_most
    )
    assert beside.is_missed is is_missed


def ran(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bound: float, *only: str) -> int:
    (tmp_path / "good.py").write_text(GOOD % bound)
    (tmp_path / "bad.py").write_text("raise RuntimeError('no server')")
    monkeypatch.setattr(bench, "SCRIPTS", {name: str(tmp_path / f"{name}.py") for name in ("bad", "good")})
    monkeypatch.setattr(sys, "argv", ["bench", *only])
    return int(bench.main())


def test_a_part_that_fails_is_named_and_the_others_run(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(bench, monkeypatch, tmp_path, 1.5) == 1
    said = capsys.readouterr().out
    assert "failed: bad" in said
    assert "2.00 of theirs" in said
    assert "missed:" not in said


def test_a_target_that_is_missed_ends_the_run_with_1(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(bench, monkeypatch, tmp_path, 1.5, "--only", "good") == 0
    assert ran(bench, monkeypatch, tmp_path, 2.5, "--only", "good") == 1
    assert "missed: speed: 2, target >= 2.5 of theirs" in capsys.readouterr().out


def test_the_page_shows_each_figure_and_says_what_is_missed(bench: Any) -> None:
    met = bench.Figure(name="speed", unit="events/s", ours=2e6, others={"theirs": 1e6}, beside="theirs", bound=1.5)
    missed = bench.Figure(name="cost", unit="us/event", ours=3.0, bound=2.2, is_most=True)
    lines = list(bench.page.lines({"micro-batches": [met, missed]}, {"cpus": 2}, datetime(2026, 1, 1, tzinfo=UTC)))
    assert "## Micro batches" in lines
    assert "| speed | events/s | 2,000,000 | theirs 1,000,000 | 2.00 of theirs |  | >= 1.5 of theirs |  |" in lines
    assert "| cost | us/event | 3.00 |  |  |  | <= 2.2 | missed |" in lines
    picture = bench.page.drawn([met])
    assert picture.count("<rect") == 2
    assert "speed, of theirs" in picture


@pytest.fixture
def part(bench: Any) -> Iterator[Callable[[str], Any]]:
    """Imports a part, or a side."""
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCH:
            del sys.modules[name]


@pytest.mark.parametrize(("rate", "latency_ms", "missed"), [(96.0, 10.9, []), (94.0, 11.1, [0, 1])])
def test_exactly_once_may_cost_a_twentieth_of_the_rate_and_a_millisecond(
    part: Callable[[str], Any], rate: float, latency_ms: float, missed: list[int]
) -> None:
    exactly_once = part("exactly_once")
    measured = {
        "exactly-once": [exactly_once.Measured([rate], [2.1], [latency_ms])],
        "at-least-once": [exactly_once.Measured([100.0], [2.0], [10.0])],
    }
    figures = exactly_once.figures("spark", measured)
    assert [n for n, figure in enumerate(figures) if figure.is_missed] == missed


def test_deliveries_take_turns_at_being_first(part: Callable[[str], Any]) -> None:
    turns = list(part("exactly_once").turned(2))
    assert turns == [*turns[:2], *reversed(turns[:2])]
    assert set(turns[:2]) == {"exactly-once", "at-least-once"}


def test_a_peer_is_shown_with_its_ratio_and_promises_nothing(part: Callable[[str], Any]) -> None:
    [figure] = part("peers").figures({"leasehold": [(50.0, 4.0), (60.0, 3.0), (70.0, 2.0)], "duckdb": [(120.0, 1.0)]})
    assert figure.value == 0.5
    assert figure.cpu_us == {"leasehold": 3.0, "duckdb": 1.0}
    assert not figure.is_missed


@pytest.mark.parametrize(
    "peer", [name for name in ("duckdb", "polars", "python") if name == "python" or find_spec(name)]
)
def test_peers_sum_to_the_cent(part: Callable[[str], Any], peer: str) -> None:
    bodies = [
        b'{"account":"a","value":0.10,"kind":"x"}',
        b'{"account":"b","value":9999.99}',
        b'{"account":"a","value":0.20}',
    ]
    sums = part("peer_sides").SUMS[peer]()(pa.table({"body": pa.array(bodies, pa.binary())})).to_pylist()
    assert sorted((row["account"], row["value"], row["events"]) for row in sums) == [
        ("a", Decimal("0.30"), 2),
        ("b", Decimal("9999.99"), 1),
    ]
