"""No test outside of `timing` and `lab` depends on how fast the machine is: it waits for states, by tests/patience.py."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ELSEWHERE = ("timing", "lab")
MEASURING = ("patience.py", "tier.py", "everything.py", "starts.py", "containers.py")
"""The helper itself, and programs that say how long something took."""
WAITS = ("until", "eventually", "wait_until", "wait_for")
SLEEPS = ("time.sleep", "asyncio.sleep", "sleep")
CLOCKS = ("time.monotonic", "time.perf_counter", "monotonic", "perf_counter")
LOOP_CLOCKS = ("loop.time", "asyncio.get_running_loop().time")
SUSPECT = re.compile(r"(sleep|monotonic|perf_counter|loop\(?\)?\.time)\(|def _?(until|eventually|wait_)")
"""In the text; to parse them all takes seconds."""
NAMES = ("sleep", "monotonic", "perf_counter", "time")


def complaints(source: str, *, is_test: bool) -> list[str]:
    if not SUSPECT.search(source):
        return []
    module = ast.parse(source)
    has_virtual = any(_is_virtual(node) for node in ast.walk(module)) or "from lab.simulation" in source
    return [*_complaints(module, is_virtual=_is_virtual(module), is_test=is_test, helps_virtual=has_virtual)]


def _complaints(node: ast.AST, *, is_virtual: bool, is_test: bool, helps_virtual: bool) -> Iterator[str]:
    """helps_virtual: whether functions that are no tests may be on virtual time."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        if node.name.removeprefix("_") in WAITS:
            yield f"line {node.lineno}: {node.name}: use tests/patience.py, or `until` of lab.simulation on virtual time"
        if not node.name.startswith("test_") and helps_virtual:
            is_virtual = True
    is_virtual = is_virtual or _is_virtual(node)
    if isinstance(node, ast.Call):
        yield from _complaints_of_call(node, is_virtual=is_virtual, is_test=is_test)
    for child in ast.iter_child_nodes(node):
        yield from _complaints(child, is_virtual=is_virtual, is_test=is_test, helps_virtual=helps_virtual)


def _complaints_of_call(node: ast.Call, *, is_virtual: bool, is_test: bool) -> Iterator[str]:
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called not in NAMES:
        return
    name = ast.unparse(node.func)
    if name == "time.sleep" or (name in SLEEPS and not is_virtual and ast.unparse(node.args[0]) != "0"):
        yield f"line {node.lineno}: {ast.unparse(node)}: wait for a state, by tests/patience.py"
    if is_test and (name in CLOCKS or (name in LOOP_CLOCKS and not is_virtual)):
        yield f"line {node.lineno}: {ast.unparse(node)}: measure in tests/timing, or on virtual time"


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
    ],
)
def test_each_kind_is_found(source: str, is_test: bool, count: int) -> None:
    assert len(complaints(source, is_test=is_test)) == count
