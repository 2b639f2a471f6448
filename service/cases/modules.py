"""A handler's own modules, imported afresh for each simulated process, so that their variables are lost as in a real one.

The loaded modules of the handler's package and next to it are dropped, and the user's modules elsewhere that these use.
Installed packages, packages with compiled parts, which might not load twice, and the modules of the pipeline's `function`
are kept: Spark sends functions and classes of the latter by name.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

OWN = ("leasehold",)
_MACHINERY = frozenset((*OWN, "__main__", "pyspark", "py4j"))
"""Never dropped. A distribution of Spark has its Python packages in a directory of its own."""
_ADVICE = "so its variables keep their values when a host is killed"
_NAMES_SHOWN = 5


class HandlerModules:
    """handler, function: `module:attribute`, as the pipeline names them. observers: the `state` and `reset` of a case."""

    def __init__(self, handler: str, function: str | None = None, observers: Iterable[str] = ()) -> None:
        self._handler = _module_of(handler)
        self._function = None if function is None else _module_of(function)
        self._observers = {_module_of(each) for each in observers}
        self._once = set[str]()
        """Modules elsewhere that cannot be imported twice."""
        self._touched = set[str]()
        self._all_stay = False
        self.limit: str | None = None
        """Which modules are not imported afresh, and why, if any are not; for people."""
        self.renewed = 0
        """How many modules were dropped for the present simulated process."""

    def import_afresh(self) -> None:
        """Import the modules as a new process does. Modules that cannot be imported a second time stay."""
        self.renewed = 0
        if self._all_stay:
            return
        kept = used_by(self._function, sys.modules)
        if self._handler in kept:
            self._keep_all(f"is also used by the pipeline's `function`, {_ADVICE}: move the handler")
            return
        dropped = self._droppable(kept)
        self.limit = self.limit or _limit_of(self._handler, kept, dropped)
        self._touched |= dropped.keys()
        _drop(dropped)
        try:
            for name in (self._handler, *sorted(self._observers & dropped.keys() - {self._handler})):
                import_module(name)
        except (Exception, SystemExit) as error:  # of a user's code
            _drop(self._droppable(kept))
            _put_back(dropped)
            self._keep_after(error, dropped)
            return
        self.renewed = len(dropped)

    @contextmanager
    def lend(self) -> Iterator[None]:
        """At the end, put back the modules that were loaded before."""
        before = dict(sys.modules)
        try:
            yield
        finally:
            loaded = self._droppable(used_by(self._function, sys.modules))
            _drop(loaded)
            _put_back({name: before[name] for name in self._touched | loaded.keys() if name in before})

    def _droppable(self, kept: Collection[str]) -> dict[str, ModuleType]:
        return droppable(sys.modules, self._handler, {*kept, *self._once}, self._observers)

    def _keep_after(self, error: BaseException, dropped: Mapping[str, ModuleType]) -> None:
        """If modules elsewhere may be the cause, only they stay."""
        what = f"cannot be imported twice in one process ({type(error).__name__}: {error})"
        near = _near(sys.modules, self._handler)
        if elsewhere := dropped.keys() - near:
            self._once |= elsewhere
            self.limit = f"{_listed(elsewhere)} {what}, {_advice(elsewhere)}"
            self.import_afresh()
        elif dropped:  # otherwise the sink reports it
            self._keep_all(f"{what}, {_ADVICE}")

    def _keep_all(self, why: str) -> None:
        self._all_stay = True
        self.limit = f"the module '{self._handler}' {why}"


def droppable(
    modules: Mapping[str, ModuleType | None],
    handler: str,
    kept: Collection[str] = (),
    observers: Collection[str] = (),
) -> dict[str, ModuleType]:
    """The handler's loaded modules, and the user's modules that they or the observers use.

    handler, kept, observers: names of modules.
    """
    near = _near(modules, handler)
    if not near:
        return {}
    loaded = {name: module for name, module in list(modules.items()) if module is not None}
    packages = defaultdict[str, list[str]](list)
    compiled = set[str]()
    for name, module in loaded.items():
        packages[_top_of(name)].append(name)
        if _is_compiled(module):
            compiled.add(_top_of(name))
    stay = {parent for name in kept for parent in _with_parents(name)}
    used = _reached({*(near - stay), *observers}, modules, _origins, _imports)
    elsewhere = {
        name for top in {_top_of(each) for each in used} for name in packages[top] if _is_users(name, loaded[name])
    }
    return {
        name: loaded[name]
        for name in loaded
        if (name in near or name in elsewhere) and _top_of(name) not in compiled and name not in stay
    }


def _near(modules: Mapping[str, ModuleType | None], handler: str) -> set[str]:
    """The handler's package, and the modules next to it. Empty if it is not loaded, has no file, or is not a user's."""
    top = _top_of(handler)
    place = _place_of(modules.get(top))
    if place is None or top in _MACHINERY:
        return set()
    return {
        name
        for name, module in list(modules.items())
        if module is not None
        and (_top_of(name) == top or _is_beside(module, place.parent))
        and _top_of(name) not in _MACHINERY
    }


def used_by(name: str | None, modules: Mapping[str, ModuleType | None]) -> set[str]:
    """A module, and the user's modules that its variables come from. Empty if there is none, or if it has no file."""
    if name is None or _place_of(modules.get(_top_of(name))) is None:
        return set()
    return _reached({name}, modules, _origins)


def _reached(
    roots: Collection[str],
    modules: Mapping[str, ModuleType | None],
    *steps: Callable[[ModuleType], Iterable[str]],
) -> set[str]:
    """The roots that are loaded, and the user's modules that steps lead to, directly or through others."""
    found, waiting = set[str](), list(roots)
    while waiting:
        module = modules.get(one := waiting.pop())
        if module is None or one in found or not (one in roots or _is_users(one, module)):
            continue
        found.add(one)
        for step in steps:
            waiting += step(module)
    return found


def _origins(module: ModuleType) -> Iterator[str]:
    """The modules that define its variables' values. A plain value, such as a set, does not show its origin."""
    for value in list(vars(module).values()):
        origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(origin, str):
            yield origin


def _imports(module: ModuleType) -> Collection[str]:
    """What the module's text imports, at its top or in a function, with the packages around that."""
    file = getattr(module, "__file__", None)
    package = getattr(module, "__package__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return ()
    return _imports_of(file, package if isinstance(package, str) else "")


@lru_cache(10_000)
def _imports_of(file: str, package: str) -> frozenset[str]:
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, (around, node.module)))
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return frozenset(name for each in found for name in _with_parents(each))


def shadowed(folder: Path, paths: Iterable[str]) -> dict[str, tuple[Path, Path]]:
    """A folder's modules that are hidden by loaded modules of the same name from elsewhere: name -> loaded file, own file.

    paths: `module:attribute`. Only their modules count, and what these import.
    """
    found, seen = dict[str, tuple[Path, Path]](), set[str]()
    waiting = [name for path in paths for name in _with_parents(_module_of(path))]
    while waiting:
        name = waiting.pop()
        own = _file_in(folder, name)
        if name in seen or own is None:
            continue
        seen.add(name)
        is_package = own.name == "__init__.py"
        module = sys.modules.get(name)
        loaded = _place_of(module)
        if loaded is not None and loaded != (own.parent if is_package else own) and _is_users(name, module):
            found[name] = loaded / "__init__.py" if is_package else loaded, own
        waiting += _imports_of(str(own), name if is_package else name.rpartition(".")[0])
    return found


def _file_in(folder: Path, name: str) -> Path | None:
    place = folder.joinpath(*name.split("."))
    files = (place / "__init__.py", place.parent / f"{place.name}.py")
    return next((file.resolve() for file in files if file.is_file()), None)


def _limit_of(handler: str, kept: Collection[str], dropped: Collection[str]) -> str | None:
    """Why modules of the user that the handler uses stay; None if none do."""
    used = _reached({handler}, sys.modules, _origins, _imports)
    stay = {name for name in used if name not in dropped and _is_users(name, sys.modules[name])}
    if shared := stay & {parent for name in kept for parent in _with_parents(name)}:
        return (
            f"the pipeline's `function` also uses {_listed(shared)}, {_advice(shared)}: keep the handler's state in a module"
            " that `function` does not use"
        )
    packages = {_top_of(name) for name, module in list(sys.modules.items()) if stay and _is_compiled(module)}
    if compiled := {name for name in stay if _top_of(name) in packages}:
        has = "has" if len(compiled) == 1 else "have"
        return (
            f"{_listed(compiled)} {has} compiled parts, {_advice(compiled)}: keep the handler's state in a module of"
            " pure Python"
        )
    return None


def _listed(names: Collection[str]) -> str:
    found = [f"'{name}'" for name in sorted(names)]
    more = [] if len(found) <= _NAMES_SHOWN else [f"{len(found) - _NAMES_SHOWN} more"]
    return " and ".join(filter(None, (", ".join(found[:_NAMES_SHOWN]), *more)))


def _advice(names: Collection[str]) -> str:
    return _ADVICE if len(names) == 1 else _ADVICE.replace("its", "their")


def _module_of(path: str) -> str:
    return path.partition(":")[0]


def _top_of(name: str) -> str:
    return name.partition(".")[0]


def _with_parents(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _place_of(module: ModuleType | None) -> Path | None:
    """A module's file, or a package's directory; None if it is built in, or made by a program."""
    if folders := list(getattr(module, "__path__", ())):
        return _resolved(folders[0])
    file = getattr(module, "__file__", None)
    return _resolved(file) if isinstance(file, str) else None


@lru_cache(10_000)
def _resolved(path: str) -> Path:
    """Resolved once: a process has thousands of modules, and each simulated process looks at all."""
    return Path(path).resolve()


def _is_beside(module: ModuleType, folder: Path) -> bool:
    place = _place_of(module)
    return place is not None and place.is_relative_to(folder) and not _is_installed(place)


def _is_users(name: str, module: ModuleType | None) -> bool:
    """Whether a user has written the module, and it is not a test of pytest, which must not load twice."""
    place = _place_of(module)
    loader = type(getattr(module, "__loader__", None)).__module__
    return (
        place is not None
        and _top_of(name) not in _MACHINERY
        and not _is_installed(place)
        and not loader.startswith("_pytest.")
    )


@lru_cache(10_000)
def _is_installed(place: Path) -> bool:
    return any(part in ("site-packages", "dist-packages") for part in place.parts) or any(
        place.is_relative_to(root) for root in _installed_roots()
    )


@cache
def _installed_roots() -> set[Path]:
    paths = sysconfig.get_paths()
    return {Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}


def _is_compiled(module: ModuleType | None) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and file.endswith(tuple(EXTENSION_SUFFIXES))


def _drop(modules: Mapping[str, ModuleType]) -> None:
    """Remove modules, also from packages that stay, where `from package import name` would find them."""
    for name, module in modules.items():
        sys.modules.pop(name, None)
        package, _, own = name.rpartition(".")
        parent = sys.modules.get(package)
        if parent is not None and vars(parent).get(own) is module:
            delattr(parent, own)


def _put_back(modules: Mapping[str, ModuleType]) -> None:
    sys.modules.update(modules)
    for name, module in modules.items():
        package, _, own = name.rpartition(".")
        if (parent := sys.modules.get(package)) is not None:
            setattr(parent, own, module)
