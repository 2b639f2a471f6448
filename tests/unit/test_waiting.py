"""No test outside `timing`, `lab` and `image` depends on how fast the machine is: it waits for states (tests/patience.py).

The connectors in `plugins` are no tests: a feed may sleep until it looks again.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

TESTS = Path(__file__).parents[1]
ELSEWHERE = ("timing", "lab", "image", "plugins")
MEASURING = ("patience.py", "tier.py", "everything.py", "starts.py", "containers.py")
"""The helper itself, and programs that say how long something took."""
WAITS = ("until", "eventually", "wait_until", "wait_for")
SLEEPS = ("time.sleep", "asyncio.sleep", "sleep")
CLOCKS = (
    "monotonic",
    "perf_counter",
    "process_time",
    "thread_time",
    "monotonic_ns",
    "perf_counter_ns",
    "process_time_ns",
)
LOOP_CLOCKS = ("loop.time", "asyncio.get_running_loop().time", "asyncio.get_event_loop().time")
WALL_CLOCKS = ("time", "time_ns", "now", *CLOCKS)
PAGE_CLOCK = re.compile(r"\bperformance\.now\(|\bDate\.now\(")
PRINTED_CLOCK = re.compile(
    rf"\bprint\(.*\b(?:{'|'.join(CLOCKS)})\(\)|\b(?:{'|'.join(CLOCKS)})\(\).*\bprint\(", re.DOTALL
)
BOUNDED = (
    "acquire",
    "ended",
    "settimeout",
    "timeout",
    "timeout_at",
    "wait",
    "wait_for",
    "join",
    "result",
    "get",
    "communicate",
    "run",
    "check_output",
    "urlopen",
)
"""Calls that give up after a time."""
AT_ONCE_S, LONG_S = 0, 60
"""Limits between these two are kept by a fast machine alone."""
SUSPECT = re.compile(
    r"(sleep|time(_ns)?|now|monotonic(_ns)?|perf_counter(_ns)?|until(_async)?|eventually|wait(_for|_until)?|timeout|join|result)\("
    r"|(acquire|ended|settimeout|wait_for_timeout)\(|timeout=|within_s=|from time import|import time as"
)
"""In the text; to parse them all takes seconds."""
NAMES = ("sleep", "time", *CLOCKS)


def complaints(source: str, *, is_test: bool) -> list[str]:
    if not SUSPECT.search(source):
        return []
    module = ast.parse(source)
    if is_test:  # the names of helpers are of faults, which take as long as they say
        module = _Constants.in_place(module)
    has_virtual = any(_is_virtual(node) for node in ast.walk(module)) or "from lab.simulation" in source
    return [*_complaints(module, is_virtual=_is_virtual(module), is_test=is_test, helps_virtual=has_virtual)]


class _Constants(ast.NodeTransformer):
    """Numbers instead of the names that a module gives them, as in `WAIT_S = 2`."""

    def __init__(self, numbers: dict[str, ast.Constant]) -> None:
        self._numbers = numbers

    @classmethod
    def in_place(cls, module: ast.Module) -> ast.Module:
        numbers = {
            each.targets[0].id: each.value
            for each in module.body
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and _is_number(each.value)
        }
        cls(numbers).visit(module)
        return module

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._numbers.get(node.id, node) if isinstance(node.ctx, ast.Load) else node


def _is_number(node: ast.AST) -> TypeGuard[ast.Constant]:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _complaints(
    node: ast.AST, *, is_virtual: bool, is_test: bool, helps_virtual: bool, may_time_out: bool = False
) -> Iterator[str]:
    """helps_virtual: whether functions that are no tests may be on virtual time. may_time_out: whether that is expected."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if node.name.removeprefix("_") in WAITS:
            yield f"line {node.lineno}: {node.name}: use tests/patience.py, or `until` of lab.simulation on virtual time"
        if not node.name.startswith("test_") and helps_virtual:
            is_virtual = True
    is_virtual = is_virtual or _is_virtual(node)
    may_time_out = may_time_out or _expects_timeout(node)
    if isinstance(node, ast.Call):
        yield from _complaints_of_call(node, is_virtual=is_virtual, is_test=is_test)
        if not (is_virtual or may_time_out):
            yield from _complaints_of_limit(node)
    if is_test and not is_virtual:
        yield from _complaints_of_measure(node)
    for child in ast.iter_child_nodes(node):
        yield from _complaints(
            child, is_virtual=is_virtual, is_test=is_test, helps_virtual=helps_virtual, may_time_out=may_time_out
        )


def _complaints_of_call(node: ast.Call, *, is_virtual: bool, is_test: bool) -> Iterator[str]:
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called == "wait_for_timeout":
        yield f"line {node.lineno}: {ast.unparse(node)}: wait for what the page shows"
    if called not in NAMES:
        return
    name = ast.unparse(node.func)
    if name == "time.sleep" or (name in SLEEPS and not is_virtual and ast.unparse(node.args[0]) != "0"):
        yield f"line {node.lineno}: {ast.unparse(node)}: wait for a state, by tests/patience.py"
    if is_test and (name.removeprefix("time.") in CLOCKS or (name in LOOP_CLOCKS and not is_virtual)):
        yield f"line {node.lineno}: {ast.unparse(node)}: measure in tests/timing, or on virtual time"


def _complaints_of_limit(node: ast.Call) -> Iterator[str]:
    """Limits in numbers: what waits for a state has the patience of all tests."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if name not in BOUNDED:
        return
    limits = [keyword.value for keyword in node.keywords if keyword.arg in ("timeout", "within_s")]
    if name in ("timeout", "wait", "join", "result", "settimeout", "ended"):
        limits += node.args[:1]
    if name == "wait_for":
        limits += node.args[1:2]
    for limit in limits:
        if _is_number(limit) and AT_ONCE_S < limit.value < LONG_S:  # type: ignore[operator]
            yield f"line {node.lineno}: {ast.unparse(node)}: a slow machine takes longer: use PATIENCE_S of tests/patience.py"


def _complaints_of_measure(node: ast.AST) -> Iterator[str]:
    """How long a wait took, and clocks of programs that a test writes or imports under another name."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.Return | ast.Compare | ast.NamedExpr | ast.BinOp):
        for call in (each for child in ast.iter_child_nodes(node) for each in (child, getattr(child, "value", None))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in ("until", "until_async", "patience.until"):
                yield f"line {node.lineno}: {ast.unparse(node)}: measure in tests/timing, or on virtual time"
    if isinstance(node, ast.Compare) and _bounds_a_difference(node):
        yield f"line {node.lineno}: {ast.unparse(node)}: measure in tests/timing, or on virtual time"
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and PAGE_CLOCK.search(node.value):
        yield f"line {node.lineno}: a page with a clock: measure in tests/timing"
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and PRINTED_CLOCK.search(node.value):
        yield f"line {node.lineno}: a program with a clock: measure in tests/timing"
    if isinstance(node, ast.Import | ast.ImportFrom):
        for alias in node.names:
            if (alias.name == "time" and alias.asname) or (
                getattr(node, "module", "") == "time" and alias.name != "time"
            ):
                yield f"line {node.lineno}: {ast.unparse(node)}: import the module `time`, by its name"


def _bounds_a_difference(node: ast.Compare) -> bool:
    """Whether the time of a clock, less another time, is compared with a number."""
    sides = (node.left, *node.comparators)
    differences = [
        each
        for side in sides
        for each in ast.walk(side)
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub)
    ]
    called = [each.func for found in differences for each in ast.walk(found) if isinstance(each, ast.Call)]
    return any(map(_is_number, sides)) and any(getattr(each, "attr", "") in WALL_CLOCKS for each in called)


def _expects_timeout(node: ast.AST) -> bool:
    """Whether it is a block that ends by a limit: then a slow machine only ends it later."""
    return isinstance(node, ast.With | ast.AsyncWith) and any(
        re.fullmatch(
            r"(pytest\.raises|(contextlib\.)?suppress)\(.*\bTimeoutError\b.*\)", ast.unparse(item.context_expr)
        )
        for item in node.items
    )


def _is_virtual(node: ast.AST) -> bool:
    """Whether it has the mark: a function, a class, or a module with it in its `pytestmark`."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return any("mark.virtual" in ast.unparse(each) for each in node.decorator_list)
    assigned = [each for each in node.body if isinstance(each, ast.Assign)] if isinstance(node, ast.Module) else []
    return any(
        ast.unparse(each.targets[0]) == "pytestmark" and "virtual" in ast.unparse(each.value) for each in assigned
    )


def files() -> list[Path]:
    parts = [path for path in sorted(TESTS.iterdir()) if path.name not in (*ELSEWHERE, *MEASURING, "node", "browser")]
    return [found for path in parts for found in ([path] if path.suffix == ".py" else sorted(path.rglob("*.py")))]


def test_all_tests_wait_for_states_and_measure_no_time() -> None:
    found = {
        str(path.relative_to(TESTS)): complaints(path.read_text(), is_test=path.name.startswith("test_"))
        for path in files()
    }
    assert len(found) > 300
    assert {path: told for path, told in found.items() if told} == {}


IMPORT = re.compile(r"^(?:from|import) +(?:tests\.)?(\w+)\b[\w.]*?(?:\.| import .*\b)(test_\w+)", re.MULTILINE)


def borrowed(source: str, tier: str) -> list[str]:
    """Tests of other tiers that a module imports. What tiers share is in modules without tests."""
    return [f"{other}: {name}" for other, name in IMPORT.findall(source) if other != tier]


def test_no_tier_imports_tests_of_another() -> None:
    modules = [path for path in TESTS.rglob("*.py") if "node_modules" not in path.parts]
    found = {str(path): borrowed(path.read_text(), path.relative_to(TESTS).parts[0]) for path in modules}
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from acceptance.test_cases import replace", 1),
        ("from tests.acceptance.test_cases import replace", 1),
        ("import acceptance.test_cases as cases", 1),
        ("from unit.pipeline import test_pump", 1),
        ("from lab.test_chaos import x", 0),
        ("from unit.pipeline.burials import NOW", 0),
        ("from pages import examples\n\ndef test_a(): ...", 0),
    ],
)
def test_an_import_of_another_tier_is_found(source: str, count: int) -> None:
    assert len(borrowed(source, "lab")) == count


VIRTUAL = "@pytest.mark.virtual\n"


@pytest.mark.parametrize(
    ("source", "is_test", "count"),
    [
        ("def test_a():\n    time.sleep(1)", True, 1),
        (f"{VIRTUAL}async def test_a():\n    time.sleep(1)", True, 1),
        ("async def test_a():\n    await asyncio.sleep(0.1)", True, 1),
        ("async def test_a():\n    await asyncio.sleep(0)", True, 0),
        (f"{VIRTUAL}async def test_a():\n    await asyncio.sleep(5)", True, 0),
        (f"async def test_a():\n    await asyncio.sleep(5)\n{VIRTUAL}async def test_b(): ...", True, 1),
        (f"async def helps():\n    await asyncio.sleep(5)\n{VIRTUAL}async def test_b(): ...", True, 0),
        ("pytestmark = pytest.mark.virtual\nasync def test_a():\n    await asyncio.sleep(5)", True, 0),
        ("async def helps():\n    await asyncio.sleep(5)", False, 1),
        ("def test_a():\n    began = time.monotonic()", True, 1),
        ("def test_a():\n    began = perf_counter()", True, 1),
        ("def measures():\n    return time.monotonic()", False, 0),
        ("async def test_a():\n    began = asyncio.get_running_loop().time()", True, 1),
        (f"{VIRTUAL}async def test_a():\n    began = asyncio.get_running_loop().time()", True, 0),
        ("async def _until(condition): ...", False, 1),
        ("class Case:\n    def eventually(self): ...", True, 1),
        ("from patience import until", True, 0),
        ("def test_a():\n    began = time.process_time()", True, 1),
        ("def test_a():\n    began = time.monotonic_ns()", True, 1),
        ("from time import monotonic as clock\nx = monotonic", True, 1),
        ("import time as t\ndef test_a():\n    t.sleep(1)", True, 1),
        ("def test_a():\n    run('import time; print(time.perf_counter())')", True, 1),
        ("def test_a():\n    assert until(done) < 5", True, 1),
        ("def test_a():\n    took = until(done)", True, 1),
        ("async def test_a():\n    took = await until_async(done)", True, 1),
        ("async def test_a():\n    assert 3 > await until_async(done)", True, 1),
        ("def test_a():\n    until(done)", True, 0),
        (f"{VIRTUAL}async def test_a():\n    assert await until(done) < 5", True, 0),
        ("async def test_a():\n    await asyncio.wait_for(task, 0.5)", True, 1),
        ("async def test_a():\n    await asyncio.wait_for(task, timeout=5)", True, 1),
        ("async def test_a():\n    async with asyncio.timeout(30):\n        await task", True, 1),
        ("async def test_a():\n    await asyncio.wait([task], timeout=0.2)", True, 1),
        (
            "async def test_a():\n    with pytest.raises(TimeoutError):\n        await asyncio.wait_for(task, 0.1)",
            True,
            0,
        ),
        (f"{VIRTUAL}async def test_a():\n    await asyncio.wait_for(task, 0.5)", True, 0),
        ("def test_a():\n    Event().wait(1)", True, 1),
        ("def test_a():\n    thread.join(5)", True, 1),
        ("def test_a():\n    process.wait(timeout=10)", True, 1),
        ("def test_a():\n    subprocess.run(['x'], timeout=30)", True, 1),
        ("def test_a():\n    subprocess.run(['x'], timeout=PATIENCE_S)", True, 0),
        ("def test_a():\n    queue.get(timeout=1)", True, 1),
        ("def helps():\n    process.wait(timeout=10)", False, 1),
        ("WAIT_S = 2\ndef test_a():\n    Event().wait(WAIT_S)", True, 1),
        ("def test_a():\n    lock.acquire(timeout=2)", True, 1),
        ("def test_a():\n    client.settimeout(1)", True, 1),
        ("def test_a():\n    host.ended(5)", True, 1),
        ("def test_a():\n    host.ended(within_s=5)", True, 1),
        ("async def test_a():\n    await page.wait_for_timeout(500)", True, 1),
        ("def test_a():\n    assert time.time() - began < 2", True, 1),
        ("def test_a():\n    assert abs(shown - time.time()) < 60", True, 1),
        ("def test_a():\n    assert clock.monotonic() - began < 2", True, 1),
        ("def test_a():\n    assert (datetime.now(UTC) - began).total_seconds() < 2", True, 1),
        ("def test_a():\n    assert began <= shown <= time.time()", True, 0),
        ("def test_a():\n    then = time.time() - age_s", True, 0),
        ("DRAWN = 'const began = performance.now()'", True, 1),
        ("def test_a():\n    ', '.join(names)\n    process.wait()", True, 0),
    ],
)
def test_each_kind_is_found(source: str, is_test: bool, count: int) -> None:
    assert len(complaints(source, is_test=is_test)) == count
