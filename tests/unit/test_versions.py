"""docs/versions.md: its tables are of this repository, and change with it."""

from __future__ import annotations

import pytest
import tier
import versions

LOCK = '[[package]]\nname = "pyspark"\nversion = "4.9.9"\n\n[[package]]\nname = "local"\n'
RUNS = "# kept by hand\n" + "".join(
    "\t".join(row) + "\n"
    for row in (
        ("date", "commit", "tier", "load", "passed", "failed", "skipped", "flaky", "seconds", "cpu_s"),
        ("2026-01-01", "aaaa", "test", "none", "10", "0", "1", "0", "5", "6"),
        ("2026-01-02", "bbbb", ".ci/run", "none", "", "0", "", "0", "5"),
        ("2026-01-03", "cccc", "test", "others", "12", "0", "1", "2", "5", "6"),
    )
)


def test_the_page_has_the_versions_that_the_tests_run_with() -> None:
    page = versions.PAGE.read_text()
    (begin, end) = (page.index("<!-- parts"), page.index("<!-- end of parts"))
    assert (
        page[begin:end] == (new := versions.written(page))[new.index("<!-- parts") : new.index("<!-- end of parts")]
    ), "run make versions"


def test_each_run_on_the_page_is_one_that_was_kept() -> None:
    """It may be older than the last one: `make versions` before a release brings the newest."""
    block = versions.PAGE.read_text().partition("<!-- tiers")[2].partition("<!-- end of tiers")[0]
    shown = [row.strip("| ").split(" | ") for row in block.splitlines() if row.startswith("| `")]
    kept = {
        (f"`{run['tier']}`", run["date"], run["commit"], run["passed"] or "all")
        for run in versions.runs((versions.ROOT / "tests/runs.tsv").read_text())
    }
    assert len(shown) >= 3
    assert [row for row in shown if tuple(row[:4]) not in kept] == []


def test_a_package_has_the_version_of_the_lock_and_the_bounds_of_the_project() -> None:
    assert versions.locked(LOCK) == {"pyspark": "4.9.9"}
    project = {"dependencies": ["pyspark>=4.0,<5", "click>=8"], "optional-dependencies": {"x": ["psycopg[binary]>=3"]}}
    assert versions.bounds(project) == {"pyspark": ">=4.0,<5", "click": ">=8", "psycopg": ">=3"}


def test_of_each_tier_the_last_run_is_shown() -> None:
    assert versions.tiers(RUNS).splitlines()[2:] == [
        "| `.ci/run` | 2026-01-02 | bbbb | all | 0 | 0 | none |",
        "| `test` | 2026-01-03 | cccc | 12 | 0 | 2 | others |",
    ]


def test_a_part_whose_version_is_not_found_is_an_error() -> None:
    with pytest.raises(KeyError, match="pythons"):
        versions.parts({}, {}, ())


def test_a_part_names_the_tiers_that_try_it_and_those_without_a_kept_run() -> None:
    found = {**versions.locked((versions.ROOT / "uv.lock").read_text()), **versions.elsewhere()}
    bounds = dict.fromkeys(found, ">=1")
    shown = versions.parts(found, bounds, {"test"}).splitlines()
    assert [row.endswith("| `test`, `dist` (no run kept) |") for row in shown if row.startswith("| Spark,")] == [True]
    assert {each for by in versions.TRIED_BY.values() for each in by} - tier.TIERS.keys() == {"dist", "matrix"}


def test_only_the_named_block_of_a_page_changes() -> None:
    page = "a\n<!-- parts, written by `make versions` -->\nold\n<!-- end of parts -->\nb\n"
    assert versions.with_block(page, "parts", "new") == page.replace("old", "new")
