"""A handler's own modules lose their variables with each process, and nothing else does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from leasehold.service.cases.modules import HandlerModules, droppable, shadowed, used_by


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder: Path, **files: str) -> None:
    """By the names of the modules, `shop__ledger` for shop/ledger.py."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/', 1)}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.fixture
def library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another directory of a user, beside the handler's."""
    found = folder / "library"
    found.mkdir()
    (folder / "app").mkdir()
    monkeypatch.syspath_prepend(found)
    monkeypatch.syspath_prepend(folder / "app")
    return found


def values(name: str) -> list[int]:
    found: list[int] = import_module(name).SEEN
    return found


def test_variables_of_the_handler_and_of_what_is_beside_it_are_lost(folder: Path) -> None:
    write(folder, counter_a="import memory_a\nSEEN = []", memory_a="SEEN = []")
    values("counter_a").append(1)
    values("memory_a").append(1)
    modules = HandlerModules("counter_a:Handler")
    modules.import_afresh()
    assert values("counter_a") == values("memory_a") == []
    assert modules.limit is None
    assert modules.renewed == 2


def test_a_package_is_imported_afresh_as_a_whole(folder: Path) -> None:
    write(
        folder,
        shop_a__init="",
        shop_a__handlers="from shop_a import ledger\nSEEN = ledger.SEEN",
        shop_a__ledger="SEEN = []",
    )
    values("shop_a.handlers").append(1)
    HandlerModules("shop_a.handlers:Handler").import_afresh()
    assert values("shop_a.handlers") == []
    assert values("shop_a.handlers") is values("shop_a.ledger")


def test_what_was_loaded_before_is_put_back(folder: Path) -> None:
    write(folder, shop_b__handlers="SEEN = []", late_b="")
    before = import_module("shop_b.handlers")
    modules = HandlerModules("shop_b.handlers:Handler")
    with modules.lend():
        modules.import_afresh()
        assert import_module("shop_b.handlers") is not before
        import_module("late_b")
    assert sys.modules["shop_b.handlers"] is before
    assert sys.modules["shop_b"].handlers is before


def test_installed_packages_and_those_with_compiled_parts_stay(tmp_path: Path) -> None:
    def module(name: str, file: Path) -> ModuleType:
        found = ModuleType(name)
        found.__file__ = str(file)
        return found

    installed = tmp_path / ".venv/lib/site-packages"
    modules = {
        each.__name__: each
        for each in (
            module("totals", tmp_path / "totals.py"),
            module("helper", tmp_path / "lib/helper.py"),
            module("quick", tmp_path / "quick/__init__.py"),
            module("quick.parts", tmp_path / "quick/parts.cpython-311-x86_64-linux-gnu.so"),
            module("quick.more", tmp_path / "quick/parts.abi3.so"),
            module("requests", installed / "requests.py"),
            module("leasehold", tmp_path / "leasehold.py"),
            module("elsewhere", tmp_path.parent / "elsewhere.py"),
            ModuleType("made"),
        )
    }
    assert set(droppable(modules, "totals")) == {"totals", "helper"}
    assert set(droppable(modules, "requests")) == {"requests"}
    assert droppable(modules, "made") == droppable(modules, "leasehold") == droppable(modules, "missing") == {}


def test_modules_of_the_function_stay_because_spark_sends_its_code_by_name(folder: Path) -> None:
    write(
        folder,
        views_c="from rates_c import rate\ndef view(events): return rate(events)",
        rates_c="SEEN = []\ndef rate(events): return events",
        handler_c="import rates_c\nSEEN = []",
    )
    view = import_module("views_c").view
    values("handler_c").append(1)
    values("rates_c").append(1)
    assert used_by("views_c", sys.modules) == {"views_c", "rates_c"}
    HandlerModules("handler_c:Handler", "views_c:view").import_afresh()
    assert values("handler_c") == []
    assert values("rates_c") == [1]
    assert import_module("views_c").view is view


def test_a_handler_beside_the_function_keeps_its_variables_and_that_is_reported(folder: Path) -> None:
    write(folder, both_d="SEEN = []\ndef view(events): return events")
    values("both_d").append(1)
    modules = HandlerModules("both_d:Handler", "both_d:view")
    modules.import_afresh()
    assert values("both_d") == [1]
    assert modules.limit is not None
    assert modules.limit.startswith(
        "the module 'both_d' is also used by the pipeline's `function`, so its variables keep"
    )


def test_a_module_that_cannot_be_imported_twice_stays_and_that_is_reported(folder: Path) -> None:
    once = "import sys\nassert not hasattr(sys, 'once_e'), 'registered already'\nsys.once_e = 1\nSEEN = []"
    write(folder, once_e=once, memory_e="SEEN = []", caller_e="import memory_e, once_e\nSEEN = []")
    try:
        for name in ("caller_e", "memory_e"):
            values(name).append(1)
        modules = HandlerModules("caller_e:Handler")
        for _ in range(2):
            modules.import_afresh()
            assert values("caller_e") == values("memory_e") == [1]
            assert modules.renewed == 0
        assert modules.limit == (
            "the module 'caller_e' cannot be imported twice in one process (AssertionError: registered already), so its"
            " variables keep their values when a host is killed"
        )
    finally:
        del sys.once_e  # type: ignore[attr-defined]


def test_a_handler_that_is_missing_is_left_to_the_sink_to_report() -> None:
    modules = HandlerModules("no_such_module:Handler")
    modules.import_afresh()
    assert modules.limit is None


IMPORTS = {
    "a value": "from seen_{n} import SEEN",
    "a module": "import seen_{n}",
    "through another module": "import between_{n}",
    "within a function": "def process():\n    from seen_{n} import SEEN",
    "a module of a package": "from shop_{n} import ledger",
    "a value of a module of a package": "from shop_{n}.ledger import SEEN",
}


@pytest.mark.parametrize("form", IMPORTS)
def test_a_module_elsewhere_that_the_handler_uses_loses_its_variables_too(
    form: str, folder: Path, library: Path
) -> None:
    n = f"far_{list(IMPORTS).index(form)}"
    write(
        library,
        **{
            f"seen_{n}": "SEEN = []",
            f"between_{n}": f"from seen_{n} import SEEN",
            f"shop_{n}____init__": "from . import other",
            f"shop_{n}__other": "SEEN = []",
            f"shop_{n}__ledger": "SEEN = []",
            f"unused_{n}": "SEEN = []",
        },
    )
    write(folder / "app", **{f"handler_{n}": IMPORTS[form].format(n=n)})
    used = f"shop_{n}.ledger" if "package" in form else f"seen_{n}"
    import_module(f"handler_{n}")
    for name in (used, f"unused_{n}"):
        values(name).append(1)
    modules = HandlerModules(f"handler_{n}:Handler")
    before = import_module(used)
    with modules.lend():
        modules.import_afresh()
        assert values(used) == []
        assert values(f"unused_{n}") == [1]
        assert modules.limit is None
    assert import_module(used) is before


def test_relative_imports_of_a_package_elsewhere_are_followed(folder: Path, library: Path) -> None:
    write(
        library,
        shop_g____init__="",
        shop_g__api="from .ledger import SEEN as KNOWN",
        shop_g__ledger="from deeper_g import SEEN",
        deeper_g="SEEN = []",
    )
    write(folder / "app", handler_g="from shop_g import api")
    import_module("handler_g")
    values("deeper_g").append(1)
    HandlerModules("handler_g:Handler").import_afresh()
    assert values("deeper_g") == []
    assert import_module("handler_g").api.KNOWN is values("shop_g.ledger") is values("deeper_g")


def test_state_and_reset_elsewhere_see_the_modules_of_the_new_process(folder: Path, library: Path) -> None:
    write(library, seen_h="SEEN = []", checks_h="from seen_h import SEEN")
    write(folder / "app", handler_h="import seen_h")
    import_module("handler_h")
    values("checks_h").append(1)
    HandlerModules("handler_h:Handler", observers=["checks_h:state", "checks_h:reset"]).import_afresh()
    assert values("checks_h") is values("seen_h")
    assert values("seen_h") == []


def test_a_module_elsewhere_that_the_function_uses_too_stays_and_that_is_reported(folder: Path, library: Path) -> None:
    write(library, rates_i="SEEN = []\ndef rate(events): return events", seen_i="SEEN = []")
    write(folder / "app", views_i="from rates_i import rate", handler_i="import rates_i\nfrom seen_i import SEEN")
    for name in ("views_i", "handler_i"):
        import_module(name)
    for name in ("rates_i", "seen_i"):
        values(name).append(1)
    modules = HandlerModules("handler_i:Handler", "views_i:view")
    for _ in range(2):
        modules.import_afresh()
        assert values("rates_i") == [1]
        assert values("seen_i") == []
        values("seen_i").append(1)
    assert modules.limit == (
        "the pipeline's `function` also uses 'rates_i', so its variables keep their values when a host is killed: keep the"
        " handler's state in a module that `function` does not use"
    )


def test_a_module_elsewhere_that_cannot_be_imported_twice_stays_and_that_is_reported(
    folder: Path, library: Path
) -> None:
    once = "import sys\nassert not hasattr(sys, 'once_j'), 'registered already'\nsys.once_j = 1\nSEEN = []"
    write(library, once_j=once)
    write(folder / "app", handler_j="import once_j\nSEEN = []")
    modules = HandlerModules("handler_j:Handler")
    try:
        for _ in range(2):
            for name in ("handler_j", "once_j"):
                values(name).append(1)
            modules.import_afresh()
            assert values("handler_j") == []
        assert values("once_j") == [1, 1]
        assert modules.limit == (
            "'once_j' cannot be imported twice in one process (AssertionError: registered already), so its variables keep"
            " their values when a host is killed"
        )
    finally:
        del sys.once_j  # type: ignore[attr-defined]


def test_a_package_elsewhere_with_compiled_parts_stays_and_that_is_reported(folder: Path, library: Path) -> None:
    write(library, quick_k____init__="SEEN = []")
    write(folder / "app", handler_k="import quick_k")
    import_module("handler_k")
    values("quick_k").append(1)
    part = ModuleType("quick_k.parts")
    part.__file__ = str(library / "quick_k/parts.abi3.so")
    sys.modules["quick_k.parts"] = part
    modules = HandlerModules("handler_k:Handler")
    modules.import_afresh()
    assert values("quick_k") == [1]
    assert modules.limit == (
        "'quick_k' has compiled parts, so its variables keep their values when a host is killed: keep the handler's state in"
        " a module of pure Python"
    )


def test_installed_packages_and_spark_stay_although_the_handler_uses_them(folder: Path, library: Path) -> None:
    installed = library / "site-packages"
    write(installed, other_l="SEEN = []")
    sys.path.insert(0, str(installed))
    try:
        write(
            folder / "app",
            handler_l="import json, pyarrow, pytest, pyspark, other_l, leasehold.service.texts\nSEEN = []",
        )
        kept = ("json", "pyarrow", "pytest", "pyspark", "other_l", "leasehold.service.texts")
        import_module("handler_l")
        before = [sys.modules[name] for name in kept]
        modules = HandlerModules("handler_l:Handler")
        modules.import_afresh()
        assert [sys.modules[name] for name in kept] == before
        assert (modules.limit, modules.renewed) == (None, 1)
    finally:
        sys.path.remove(str(installed))


def test_spark_in_a_directory_of_its_own_and_modules_of_pytest_stay(tmp_path: Path) -> None:
    def module(name: str, loader: object = None) -> ModuleType:
        found = ModuleType(name)
        found.__file__ = str(tmp_path / f"{name}.py")
        found.__loader__ = loader  # type: ignore[assignment]
        return found

    rewriter = type("AssertionRewritingHook", (), {"__module__": "_pytest.assertion.rewrite"})()
    used = [module("pyspark"), module("conftest", rewriter), module("ours")]
    handler = module("handler")
    handler.__file__ = str(tmp_path / "app/handler.py")
    vars(handler).update({each.__name__: each for each in used})
    modules = {each.__name__: each for each in (handler, *used)}
    assert set(droppable(modules, "handler")) == {"handler", "ours"}


def test_modules_of_the_same_name_in_another_folder_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = folder / "first", folder / "second"
    for each in (first, second):
        each.mkdir()
        write(each, views_m="import helper_m, json", helper_m="", unused_m="", json="", shop_m__init="")
        (each / "shop_m/__init__.py").write_text("from . import ledger_m")
        write(each, shop_m__ledger_m="")
    monkeypatch.syspath_prepend(first)
    paths = ["views_m:view", "shop_m:Handler"]
    assert shadowed(second, paths) == {}, "nothing is loaded yet"
    for name in ("views_m", "unused_m", "shop_m"):
        import_module(name)
    assert shadowed(first, paths) == {}
    names = {"views_m": "views_m.py", "helper_m": "helper_m.py", "shop_m": "shop_m/__init__.py"}
    names["shop_m.ledger_m"] = "shop_m/ledger_m.py"
    assert shadowed(second, paths) == {name: (first / file, second / file) for name, file in names.items()}
    assert shadowed(folder / "none", paths) == {}
