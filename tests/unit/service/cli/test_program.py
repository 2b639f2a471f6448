"""`@leasehold.handler`: a function with its settings, which runs as a program, and errors for wrong ones."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pytest
from patience import PATIENCE_S

import leasehold
from leasehold.service.config.load import ConfigurationError

FEED = {"type": "files", "path": "orders-*.jsonl", "key": "customer"}
handled: list[str] = []


@leasehold.handler(feed=FEED, leases={"type": "sqlite", "path": "state/leases.db"})
async def pay_orders(event: Any) -> None:
    """Pays."""
    handled.append(event["key"])


@leasehold.handler(feed=FEED, timeout_s=5)
def pay_in_a_thread(event: Any) -> None: ...


@leasehold.handler(feed={**FEED, "pth": 1}, key="account", max=0)
async def pay_wrongly(event: Any) -> None: ...


def test_the_function_can_still_be_called_and_looks_like_itself() -> None:
    handled.clear()
    asyncio.run(pay_orders({"key": "ann"}))
    assert handled == ["ann"]
    assert (pay_orders.__name__, pay_orders.__doc__) == ("pay_orders", "Pays.")


def test_its_arguments_are_settings() -> None:
    settings = pay_orders.settings()
    (pipeline,) = settings.pipelines
    assert (pipeline.name, pipeline.sink.handler) == ("pay_orders", f"{__name__}:pay_orders")  # type: ignore[union-attr]
    assert pipeline.sink.parallel.max == 64  # type: ignore[union-attr]
    assert settings.api.enabled is False


def test_it_runs_until_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    handled.clear()
    (tmp_path / "orders-1.jsonl").write_text('{"customer": "ann"}\n{"customer": "bob"}\n{"customer": "ann"}\n')
    leasehold.run(pay_orders, until_idle=True)
    assert sorted(handled) == ["ann", "ann", "bob"]
    pay_orders.run(until_idle=True)
    assert len(handled) == 3, "positions are kept"


def test_all_wrong_settings_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        pay_wrongly.run()
    assert ended.value.code == 2
    found = capsys.readouterr().err
    assert "@leasehold.handler of 'pay_wrongly': " in found
    assert "pth" in found
    assert "parallel.max" in found
    assert "line " not in found


def test_a_key_that_no_event_has_is_reported() -> None:
    program = leasehold.handler(feed=FEED, key="account")(pay_orders.function)
    with pytest.raises(ConfigurationError, match=r"`sink\.parallel\.key` names the column 'account'"):
        program.settings()


def test_a_function_that_does_not_fit_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        leasehold.run(pay_in_a_thread, until_idle=True)
    assert ended.value.code == 2
    assert "is a plain function, and `parallel.timeout_s` needs an `async def` one" in capsys.readouterr().err


def test_a_function_within_a_function_cannot_be_found_by_its_name() -> None:
    async def inner(event: Any) -> None: ...

    with pytest.raises(ValueError, match="is inside a function: move it to the top level of its module"):
        leasehold.handler(feed=FEED)(inner)


def test_a_function_without_the_decorator_is_refused() -> None:
    with pytest.raises(TypeError, match=r"leasehold\.run takes a function with @leasehold\.handler"):
        leasehold.run(print)  # type: ignore[arg-type]


def test_a_file_of_settings_can_name_it() -> None:
    from leasehold.pipeline.connectors.handlers import load
    from leasehold.pipeline.limits import ParallelLimits

    assert load(f"{__name__}:pay_orders", ParallelLimits()) is pay_orders.function


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pipeline": {"feed": FEED}}, "`feed` is given twice, as an argument and as a key of `pipeline`: remove one"),
        ({"name": "a", "pipeline": {"name": "a"}}, "`name` is given twice, as an argument and as a key of `pipeline`"),
        (
            {"dead_letters": {"type": "log", "path": "a"}, "pipeline": {"dead_letters": {"type": "log", "path": "b"}}},
            "`dead_letters` is given twice, as an argument and as a key of `pipeline`",
        ),
        (
            {"leases": {"type": "memory"}, "settings": {"leases": {"type": "memory"}}},
            "`leases` is given twice, as an argument and as a key of `settings`",
        ),
        (
            {"pipeline": {"sink": {"type": "log", "path": "out"}}},
            r"`pipeline` has the key `sink`, but the function is the sink: remove the key",
        ),
        (
            {"settings": {"pipelines": []}},
            r"`settings` has the key `pipelines`, but the function is the only pipeline: remove the key",
        ),
    ],
    ids=["feed", "name", "dead_letters", "leases", "sink", "pipelines"],
)
def test_arguments_that_contradict_each_other_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        leasehold.handler(feed=FEED, **arguments)


def test_what_is_given_once_may_stand_in_either_place() -> None:
    program = leasehold.handler(
        feed=FEED,
        pipeline={"name": "payments", "dead_letters": {"type": "log", "path": Path("dead")}},
        settings=MappingProxyType({"leases": {"type": "memory"}}),
    )(pay_orders.function)
    settings = program.settings()
    (pipeline,) = settings.pipelines
    assert pipeline.name == "payments"
    assert pipeline.dead_letters is not None
    assert settings.leases.type == "memory"


def test_a_value_that_no_file_could_hold_is_refused_by_its_place() -> None:
    since = {**FEED, "start": datetime(2026, 1, 31, tzinfo=UTC)}
    program = leasehold.handler(feed=since, pipeline={"sql": {"a"}, "schema": [b"x"]})(pay_orders.function)
    with pytest.raises(ConfigurationError) as refused:
        program.settings()
    assert [each.partition(":")[0] for each in refused.value.problems] == [
        "pipelines[0].feed.start is of the type datetime",
        "pipelines[0].sql is of the type set",
        "pipelines[0].schema[0] is of the type bytes",
    ]


def test_without_parentheses_the_error_names_them() -> None:
    with pytest.raises(
        TypeError, match=r"needs parentheses with its arguments by name: write @leasehold\.handler\(feed="
    ):
        leasehold.handler(pay_orders.function)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match="required keyword-only argument: 'feed'"):
        leasehold.handler()  # type: ignore[call-arg]


# Programs that run as `__main__`

SCRIPT = """
import leasehold

print("begun", flush=True)

@leasehold.handler(feed={"type": "files", "path": "orders-*.jsonl", "key": "customer"})
async def handle(event):
    print("handled:", event["key"], flush=True)

leasehold.run(handle, until_idle=True)
"""
SETTINGS = """
leases: {type: sqlite, path: leases.db}
api: {enabled: false}
pipelines:
  - name: handle
    feed: {type: files, path: "orders-*.jsonl", key: customer}
    sink: {type: python, handler: "payments:handle", parallel: {key: key}}
"""


def run_python(folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, *arguments]
    return subprocess.run(line, cwd=folder, input=text, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders-1.jsonl").write_text('{"customer": "ann"}\n{"customer": "bob"}\n')
    (tmp_path / "payments.py").write_text(SCRIPT)
    return tmp_path


def test_two_scripts_with_equal_names_of_functions_do_not_share_leases(folder: Path) -> None:
    (folder / "refunds.py").write_text(SCRIPT)
    first = run_python(folder, "payments.py")
    assert first.returncode == 0, first.stderr
    second = run_python(folder, "refunds.py")
    assert second.returncode == 2, second.stdout
    assert (
        "the leases of pipeline 'handle' belong to sink 'python:payments:handle', but the configuration has"
        " 'python:refunds:handle': give the pipeline another name"
    ) in " ".join(second.stderr.split())
    (folder / "refunds.py").write_text(SCRIPT.replace('key": "customer"}', 'key": "customer"}, name="refunds"'))
    named = run_python(folder, "refunds.py")
    assert named.returncode == 0, named.stderr
    assert named.stdout.count("handled:") == 2


def test_a_script_runs_once_and_is_the_module_of_its_name(folder: Path) -> None:
    """Without `if __name__ == "__main__"`, a second import would run it within itself."""
    (folder / "settings.yaml").write_text(SETTINGS)
    script = run_python(folder, "payments.py")
    assert script.returncode == 0, script.stderr
    assert (script.stdout.count("begun"), script.stdout.count("handled:")) == (1, 2)
    module = run_python(folder, "-m", "payments")
    assert module.returncode == 0, module.stderr
    assert (module.stdout.count("begun"), module.stdout.count("handled:")) == (1, 0), "it has the same leases"
    (folder / "payments.py").write_text(SCRIPT.replace("leasehold.run", "# leasehold.run"))
    with (folder / "orders-1.jsonl").open("a") as orders:
        orders.write('{"customer": "cat"}\n')
    file = run_python(folder, "-m", "leasehold", "run", "--until-idle", "settings.yaml")
    assert file.returncode == 0, file.stderr
    assert "handled: cat" in file.stdout
    assert file.stdout.count("handled:") == 1, "a file of settings has the same leases"


@pytest.mark.parametrize("imports", ["import payments\n", ""], ids=["imported", "not imported yet"])
def test_a_module_that_has_the_name_of_the_script_is_not_taken_for_it(folder: Path, imports: str) -> None:
    (folder / "payments").mkdir()
    (folder / "payments/__init__.py").touch()
    (folder / "payments.py").write_text(f"{imports}{SCRIPT}")
    ended = run_python(folder, "payments.py")
    assert ended.returncode == 2, ended.stderr
    assert "hosts find the handler in the module 'payments', and " in ended.stderr
    assert f"payments/__init__.py has that name too: rename {folder.resolve() / 'payments.py'}" in ended.stderr


def test_a_program_from_the_standard_input_has_no_other_name(folder: Path) -> None:
    ended = run_python(folder, "-", text=SCRIPT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("handled:") == 2


@pytest.mark.parametrize(
    ("file", "spec", "module"),
    [
        ("/app/payments.py", None, "payments"),
        ("/app/payments", None, "payments"),
        ("/app/2-payments v1.2.py", None, "_2_payments_v1_2"),
        ("/app/überweisung.py", None, "_überweisung"),
        ("/app/payments/__main__.py", "__main__", "payments"),
        ("/app/payments.pyz/__main__.py", "__main__", "payments"),
        ("/app/shop/payments.py", "shop.payments", "shop.payments"),
        ("/app/shop/__main__.py", "shop.__main__", "shop.__main__"),
        (None, None, "__main__"),
    ],
)
def test_a_main_module_is_named_as_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, file: str | None, spec: str | None, module: str
) -> None:
    main = ModuleType("__main__")
    main.__file__ = file
    main.__spec__ = None if spec is None else ModuleSpec(spec, None)
    if file is None:
        del main.__file__, main.__spec__
    monkeypatch.setitem(sys.modules, "__main__", main)

    async def handle(event: Any) -> None: ...

    handle.__module__, handle.__qualname__ = "__main__", "handle"
    (pipeline,) = leasehold.handler(feed=FEED)(handle).settings().pipelines
    assert pipeline.sink.handler == f"{module}:handle"  # type: ignore[union-attr]
