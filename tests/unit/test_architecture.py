"""Import arrows, and what the core may not call: both hold, and both catch what they are there for."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("leasehold", "leases", "pipeline", "service")

EDGES = (
    *(
        "leasehold.common.clock",
        "leasehold.common.entra_token",
        "leasehold.leases.contract",
        "leasehold.leases.stores",
    ),
    *(
        "leasehold.pipeline.connectors",
        "leasehold.pipeline.contract",
        "leasehold.pipeline.spark.jre",
        "leasehold.pipeline.spark.engine",
        "leasehold.pipeline.spark.jvm",
    ),
    *(
        "leasehold.pipeline.spark.connect",
        "leasehold.pipeline.spark.executors",
        "leasehold.pipeline.spark.master",
        "leasehold.pipeline.spark.runs",
        "leasehold.pipeline.spark.session",
        "leasehold.pipeline.spark.transform",
    ),
    *(
        "leasehold.service.api",
        "leasehold.service.cli.main",
        "leasehold.service.cli.demo.bank",
        "leasehold.service.cli.demo.transactions",
        "leasehold.service.cli.demo.bank",
        "leasehold.service.cli.demo.postgres",
    ),
    *(
        "leasehold.service.callback_thread",
        "leasehold.service.cases.disturbance",
        "leasehold.service.cases.disturbed_run",
        "leasehold.service.cli.copy",
        "leasehold.service.cli.host_name",
        "leasehold.service.cli.test",
    ),
    *(
        "leasehold.service.cli.migration",
        "leasehold.service.cli.offline_view",
        "leasehold.service.cli.probe_services",
        "leasehold.service.processor",
        "leasehold.service.cli.run",
        "leasehold.service.api.server",
    ),
    *("leasehold.service.telemetry.otlp", "leasehold.service.wiring.build"),
    *("leasehold.common.given_credential", "leasehold.service.embedded"),
)
"""Where time, randomness, ids and threads come in. Everything else gets them as arguments, or cannot be simulated."""

FORBIDDEN = (
    *("time.", "uuid.", "secrets.", "random.", "os.urandom", "os.getrandom", "threading.", "concurrent.futures."),
    *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
    *("asyncio.to_thread", "asyncio.run_coroutine_threadsafe"),
)
FORBIDDEN_METHODS = ("run_in_executor",)
TYPES = ("random.Random",)
"""Allowed as a type, but not to be made: a generator that nobody seeded is randomness of one's own."""


LINKED = ("leases", "pipeline", "service")
"""Folders of the repository that `leasehold` links as its packages."""


def modules(*folders: str) -> Iterator[tuple[str, Path]]:
    for folder in folders:
        above = "leasehold." if folder in LINKED else ""
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path == path.resolve():
                yield above + ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


def is_within(module: str, parents: tuple[str, ...]) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)


def imported_names(tree: ast.AST) -> dict[str, str]:
    """The local name of everything imported -> what it is."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (parent := dotted(node.value, names)):
        return f"{parent}.{node.attr}"
    return None


def forbidden_uses(source: str) -> list[str]:
    tree = ast.parse(source)
    names = imported_names(tree)
    made = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        name = dotted(node, names) or ""
        is_forbidden = any(name.startswith(rule) if rule.endswith(".") else name == rule for rule in FORBIDDEN)
        is_method = isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_METHODS
        if is_method or (is_forbidden and not (name in TYPES and id(node) not in made)):
            found.append(f"line {node.lineno}: {name or ast.unparse(node)}")
    return found


def lint_imports(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--config", ROOT / "pyproject.toml"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def test_imports_follow_the_arrows() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


PLANTED = {
    "leases/lease.py": "leasehold.pipeline.event",
    "pipeline/event.py": "leasehold.leases.lease",
    "leases/expiry.py": "leasehold.service.host",
    "pipeline/pump/runner.py": "leasehold.service.worker",
    "leases/keeper.py": "leasehold.leases.stores.memory",
    "pipeline/batch.py": "leasehold.pipeline.connectors.memory",
    "pipeline/transform.py": "pyspark",
    "service/host.py": "psycopg",
    "service/partitions.py": "leasehold.service.group.view",
    "service/config/section.py": "leasehold.service.wiring.build",
    "pipeline/feed.py": "fastapi",
    "service/worker.py": "fastapi",
    "leases/tenure.py": "time",
    "service/stats.py": "opentelemetry",
    "pipeline/markers.py": "uuid",
    "service/group/activity.py": "leasehold.testing",
}


def test_an_import_against_the_arrows_is_caught(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "leasehold", tmp_path / "leasehold", ignore=shutil.ignore_patterns("__pycache__"))
    for path, name in PLANTED.items():
        with (tmp_path / "leasehold" / path).open("a") as file:
            file.write(f"\nimport {name}\n")
    result = lint_imports(tmp_path)
    importers = {path: f"leasehold.{path.removesuffix('.py').replace('/', '.')}" for path in PLANTED}
    missed = [path for path, name in PLANTED.items() if f"{importers[path]} -> {name} (" not in result.stdout]
    assert result.returncode == 1
    assert not missed, result.stdout


def test_leases_imports_the_standard_library_and_what_all_share() -> None:
    """Vendor SDKs stay in leasehold.leases.stores; the contract suites are run by pytest."""
    for module, path in modules("leases"):
        if not is_within(module, ("leasehold.leases.stores",)):
            tops = {name.partition(".")[0] for name in imported_names(ast.parse(path.read_text())).values()}
            allowed = {"leasehold", "pytest"} if is_within(module, ("leasehold.leases.contract",)) else {"leasehold"}
            assert tops - sys.stdlib_module_names <= allowed, module


AZURE_HOMES = {
    "azure.cosmos": (
        "leasehold.leases.stores.cosmos",
        "leasehold.pipeline.connectors.cosmos.client",
    ),
    "azure.storage": ("leasehold.leases.stores.blob", "leasehold.pipeline.connectors.files.sink.blobs"),
}
"""Of Azure's SDKs, which import-linter sees as one package."""


@pytest.mark.parametrize("sdk", AZURE_HOMES)
def test_each_of_azure_s_sdks_has_its_homes(sdk: str) -> None:
    importers = {
        module
        for module, path in modules(*PACKAGES)
        if any(is_within(name, (sdk,)) for name in imported_names(ast.parse(path.read_text())).values())
    }
    assert importers
    assert all(is_within(module, AZURE_HOMES[sdk]) for module in importers)


OWN_JSON = {
    "leasehold.leases.contract": "test suites",
    "leasehold.pipeline.contract": "test suites",
    "leasehold.pipeline.spark.session": "Spark's plan of the operator's SQL",
    "leasehold.pipeline.spark.transform": "Spark's form of the operator's schema",
    "leasehold.service.api.middleware": "an answer of this host",
}
"""Who parses JSON without a bound of its nesting, and whose JSON that is."""
PARSERS = {"json.load", "json.loads"}


def parses_json(tree: ast.AST) -> bool:
    names = imported_names(tree)
    return any(dotted(node, names) in PARSERS for node in ast.walk(tree) if isinstance(node, ast.expr))


def test_json_from_outside_is_parsed_with_a_bound_of_its_nesting() -> None:
    found = {module for module, path in modules(*PACKAGES) if parses_json(ast.parse(path.read_text()))}
    assert {module for module in found if not is_within(module, tuple(OWN_JSON))} == set()
    assert parses_json(ast.parse("from json import loads\nloads(text)"))


CHECKED_BY = {"leasehold.pipeline.connectors.cosmos.json_text": "leasehold.pipeline.connectors.cosmos.records"}
"""Modules of decoders, and the only one that imports each, which checks the text first."""


def test_a_decoder_of_json_is_used_behind_a_check_of_its_nesting() -> None:
    texts = {module: path.read_text() for module, path in modules(*PACKAGES)}
    for module, text in texts.items():
        if "raw_decode(" in text:
            assert "check_nesting(" in texts[CHECKED_BY.get(module, module)], module
    for module, checking in CHECKED_BY.items():
        assert [name for name, text in texts.items() if f"from {module} import" in text] == [checking]


SHIELDS = {"leasehold.leases.stores.sqlite"}
"""Whose error nobody else sees, if the caller is cancelled: then it is right to report it."""


def test_a_task_that_outlives_its_caller_is_awaited_without_shield() -> None:
    """Since Python 3.14 `asyncio.shield` reports its error, though others see it."""
    assert {module for module, path in modules(*PACKAGES) if "asyncio.shield(" in path.read_text()} == SHIELDS


def test_nothing_waits_for_python_to_run_out_of_stack() -> None:
    """Whether it notices, and at which depth, differs from version to version."""
    assert [
        module
        for module, path in modules(*PACKAGES, "tests/lab/servers", "tests/plugins")
        if "RecursionError" in path.read_text()
    ] == []


def test_the_core_takes_time_randomness_ids_and_threads_as_arguments() -> None:
    core = [(module, path) for module, path in modules(*PACKAGES) if not is_within(module, EDGES)]
    found = [f"{path.relative_to(ROOT)}, {use}" for _, path in core for use in forbidden_uses(path.read_text())]
    assert {
        "leasehold.leases.keeper",
        "leasehold.leases.balance",
        "leasehold.pipeline.pump.delivering",
        "leasehold.service.host",
        "leasehold.service.worker",
    } <= {m for m, _ in core}
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "import time as t\nf = t.time",
        "from time import monotonic\nmonotonic()",
        "from datetime import UTC, datetime\ndatetime.now(UTC)",
        "import datetime\nf = datetime.datetime.now",
        "import random\nrandom.random()",
        "import random\nrandom.Random()",
        "from random import Random\nRandom(1)",
        "from uuid import uuid4\nuuid4()",
        "import asyncio\nasyncio.to_thread(print)",
        "import asyncio\nasyncio.get_running_loop().run_in_executor(None, print)",
        "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor()",
        "import os\nos.urandom(8)",
    ],
)
def test_a_call_that_cannot_be_simulated_is_caught(source: str) -> None:
    assert forbidden_uses(source)


@pytest.mark.parametrize(
    "source",
    [
        "import random\ndef f(rng: random.Random) -> float:\n    return rng.random()",
        "from datetime import datetime\ndatetime.fromisoformat('2026-01-01')",
        "async def f(clock):\n    await clock.sleep(clock.time())",
        "import asyncio\nasyncio.get_running_loop().create_task(f())",
    ],
)
def test_what_comes_as_an_argument_is_not_caught(source: str) -> None:
    assert not forbidden_uses(source)


ARGUMENTS_MAX = 9
DOCUMENTS = ("Letter", "ManifestEntry", "DataFile", "Lease", "HostRecord", "HostStatus", "BatchStatus", "Activity")
"""Their fields are those of a stored document, or of an answer of the API."""
SETTINGS = ("PipelineParts", "ProcessorCore")
"""What a program sets, each by its name and with a default."""


def arguments_of(node: ast.ClassDef) -> int:
    """Of its own constructor: those of `__init__`, or the public fields of a dataclass."""
    for each in node.body:
        if isinstance(each, ast.FunctionDef) and each.name == "__init__":
            return len([*each.args.posonlyargs, *each.args.args, *each.args.kwonlyargs]) - 1
    if not any("dataclass" in ast.unparse(each) for each in node.decorator_list):
        return 0
    fields = [ast.unparse(each) for each in node.body if isinstance(each, ast.AnnAssign)]
    return sum(not field.startswith("_") and "ClassVar[" not in field and "init=False" not in field for field in fields)


def test_a_constructor_takes_few_arguments() -> None:
    classes = [
        node
        for _, path in modules(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    over = {node.name for node in classes if arguments_of(node) > ARGUMENTS_MAX}
    assert over == {*DOCUMENTS, *SETTINGS}


ANSWERS = {"Child", "Host", "Lease", "Pipeline"}
"""Models of `service/api/schemas.py` that show the thing of that name: clients find them in `/openapi.json`."""


def repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def class_names(source: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def test_no_two_classes_of_the_product_have_one_name() -> None:
    found = {module: class_names(path.read_text()) for module, path in modules(*PACKAGES)}
    assert repeated(name for names in found.values() for name in names) == ANSWERS
    assert set(found["leasehold.service.api.schemas"]) >= ANSWERS
    assert repeated(class_names("class A: ...\ndef f() -> None:\n    class A: ...")) == {"A"}
