"""Unit tests lie where the code lies: tests/unit/<package path>/test_<module>.py, or test_<module>_<aspect>.py as listed."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
HOMES = {
    **dict.fromkeys(("leasehold", "leases", "pipeline", "service"), ROOT),
    **dict.fromkeys(("scale", "scenarios", "servers"), ROOT / "tests"),
}
"""Where the packages lie that are mirrored."""
ABOUT_THE_WHOLE = (
    "test_advisories.py",
    "test_architecture.py",
    "test_bench.py",
    "test_contributing.py",
    "test_decisions.py",
    "test_deprecated.py",
    "test_dist.py",
    "test_guarantees.py",
    "test_language.py",
    "test_leasehold.py",
    "test_matrix.py",
    "test_mirror.py",
    "test_names.py",
    "test_plugins_page.py",
    "test_references.py",
    "test_simulation.py",
    "test_site.py",
    "test_total.py",
    "test_workflows.py",
)
"""At the top of tests/unit. Everything else is about a module or a package."""
NOT_PYTHON = {UNIT / "chart": ROOT / "helm"}
"""Folder of tests -> what it is about, which is not Python."""
ASPECTS = {
    "leasehold.common.clock": "backoff pace",
    "leases.bootstrap": "scopes",
    "leases.import_.cosmos_import": "java_token",
    "leases.lineage": "finished",
    "leases.recovery": "children",
    "leases.stores.blob.codec": "names",
    "pipeline.async_sink.request_entry": "element_converter",
    "pipeline.async_sink.writer": "runner sink sink_errors sink_in_doubt sink_page sink_troubles",
    "pipeline.batch": "bound",
    "pipeline.connectors.cosmos.feed": "parts ranges",
    "pipeline.connectors.eventhubs.feed.feed": "ranges",
    "pipeline.connectors.eventhubs.feed.receiver": "table_columns",
    "pipeline.connectors.eventhubs.sink.producer_groups": "claims",
    "pipeline.connectors.eventhubs.sink.writer": "output",
    "pipeline.connectors.files.delta.committer": "merges",
    "pipeline.connectors.files.delta.sink": "contract crashes staged",
    "pipeline.connectors.files.feed.feed": "contract paths",
    "pipeline.connectors.files.feed.reader": "malformed ranges",
    "pipeline.connectors.files.sink.manifest": "compaction",
    "pipeline.connectors.files.sink.sink": "contract crashes staged stalled",
    "pipeline.connectors.log.feed": "ranges reader",
    "pipeline.dead_letters.settled": "replay",
    "pipeline.dead_letters.side_output_sink": "async contract states",
    "pipeline.imports": "adopt",
    "pipeline.limits": "memory_budget",
    "pipeline.parsing.parse": "suspects",
    "pipeline.producer.idempotent": "lease_state",
    "pipeline.producer.partition": "closing parts",
    "pipeline.pump.runner": "parts ranges staged",
    "pipeline.ranges": "shrink",
    "pipeline.spark.jre": "packages",
    "pipeline.spark.jvm": "registration scratch",
    "pipeline.spark.reason": "last_words",
    "pipeline.sql_text": "columns",
    "service.api.app": "openapi shutdown",
    "service.api.events": "watching",
    "service.api.operations": "reset",
    "service.api.server": "connections",
    "service.cli.common": "fast_imports standard_output",
    "service.cli.demo.bank": "progress",
    "service.cli.files": "log",
    "service.cli.main": "imports unreadable",
    "service.cli.migration": "close docs places",
    "service.cli.replay": "replay_progress",
    "service.cli.run": "arrow_memory collections open_files",
    "service.config.cosmos": "feed leases",
    "service.config.custom": "parallel",
    "service.config.eventhubs": "feed sink",
    "service.config.files": "sink",
    "service.config.http": "cosmos",
    "service.config.leases": "blob",
    "service.config.postgres": "leases",
    "service.config.section": "extras",
    "service.config.settings": "dead_letters spark",
    "service.failures": "reports",
    "service.group.actions": "close",
    "service.group.import_sources": "liveness",
    "service.group.status": "standstill",
    "service.group.view": "shared",
    "leases.host_record": "ticks",
    "leases.keeper": "changes",
    "leases.tenure": "sessions",
    "service.host": "async_sink faults notifications overload pause regressions scopes sessions",
    "service.partitions": "background_calls listings",
    "service.stats": "summary",
    "service.telemetry.logs": "fields",
    "service.telemetry.otlp": "logs metrics",
    "service.texts": "plurals",
    "service.worker": "checkpoints closing ends ranges",
}
"""Module -> the aspects that have a test file of their own, `test_<module>_<aspect>.py`. Add yours here."""


def module_of(test: Path) -> str | None:
    """What a test file is about: a module or a package of its folder's package, or one of its ASPECTS."""
    folder = test.parent.relative_to(UNIT)
    package = HOMES.get(folder.parts[0], ROOT) / folder
    words = test.stem.removeprefix("test_").split("_")
    for length in range(len(words), 0, -1):
        name, aspect = "_".join(words[:length]), "_".join(words[length:])
        if (package / f"{name}.py").is_file() or (package / name / "__init__.py").is_file():
            module = ".".join((*folder.parts, name))
            return module if not aspect or aspect in ASPECTS.get(module, "").split() else None
    return None


def is_about_python(test: Path) -> bool:
    return test.parent != UNIT and test.parent not in NOT_PYTHON


def test_files_about_one_module_lie_where_it_lies() -> None:
    tests = [path for path in UNIT.rglob("test_*.py") if is_about_python(path)]
    assert len(tests) > 100
    strays = [str(path.relative_to(ROOT)) for path in tests if module_of(path) is None]
    assert not strays, "name the module in the file's name, or move the file to the folder of its package"


def test_each_aspect_has_a_file() -> None:
    names = {f"{module}_{aspect}" for module, aspects in ASPECTS.items() for aspect in aspects.split()}
    files = {
        ".".join(path.relative_to(UNIT).with_suffix("").parts).replace(".test_", ".")
        for path in UNIT.rglob("test_*.py")
    }
    assert names - files == set()


def test_the_chart_alone_is_not_python() -> None:
    assert [str(folder) for folder in (*NOT_PYTHON, *NOT_PYTHON.values()) if not folder.is_dir()] == []
    assert not is_about_python(UNIT / "chart/test_chart.py")
    assert is_about_python(UNIT / "service/chart/test_chart.py")


def test_few_files_are_about_the_whole() -> None:
    assert sorted(path.name for path in UNIT.glob("test_*.py")) == sorted(ABOUT_THE_WHOLE)


@pytest.mark.parametrize(
    ("test", "module"),
    [
        ("service/cli/test_host_name.py", "service.cli.host_name"),
        ("service/test_host_faults.py", "service.host"),
        ("service/test_host_name.py", None),
        ("service/test_host_nonsense.py", None),
        ("service/test_nothing.py", None),
        ("service/chart/test_chart.py", None),
        ("leases/stores/test_memory.py", "leases.stores.memory"),
        ("leases/test_memory.py", None),
    ],
)
def test_the_longest_name_of_a_module_counts(test: str, module: str | None) -> None:
    assert module_of(UNIT / test) == module
