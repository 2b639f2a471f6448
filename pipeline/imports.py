"""Parts of third parties: objects named as `module:attribute`, and parts that do not derive from our base classes."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from functools import cache, reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from leasehold.pipeline.errors import NotImportable


def imported(path: str) -> object:
    """The object at `module:attribute` (both may be dotted). Imports the module, which may take its time.

    Raises NotImportable.
    """
    module_name, attribute = _split(path)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise _not_found(path, module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(path, module_name, error) from error
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise NotImportable(f"'{path}' cannot be imported: module '{module_name}' has no '{attribute}'") from error


def require_module(path: str) -> None:
    """That there is such a module. It is not run, because a function's module may need a Spark that runs; its parents are.

    Raises NotImportable.
    """
    module_name, _ = _split(path)
    if module_name in sys.modules:  # __main__ is there, and cannot be found
        return
    try:
        found = find_spec(module_name)
    except ModuleNotFoundError as error:
        raise _not_found(path, module_name, error) from error
    except (Exception, SystemExit) as error:  # of a parent
        raise _failed(path, module_name, error) from error
    if found is None:
        raise _missing(path, module_name)


def is_generator(function: object) -> bool:
    """Whether a call of it only makes a generator, plain or async, and runs none of its code."""
    call = getattr(function, "__call__", None)  # noqa: B004  # of an object with such a method
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in (function, call))


def search_in(folder: Path) -> None:
    """Find modules in `folder` too: in this process, and in those that it starts, Spark's Python workers among them."""
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def _split(path: str) -> tuple[str, str]:
    """Raises NotImportable."""
    module_name, _, attribute = path.partition(":")
    if not all(name.isidentifier() for name in (*module_name.split("."), *attribute.split("."))):
        raise NotImportable(
            f"'{path}' does not name anything: write it as 'module:attribute', 'bank.views:balances' say"
        )
    return module_name, attribute


def _not_found(path: str, module_name: str, error: ModuleNotFoundError) -> NotImportable:
    """The module itself or a parent is missing, or what one of them imports."""
    if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
        return _failed(path, module_name, error)
    return _missing(path, error.name)


def _missing(path: str, module_name: str) -> NotImportable:
    return NotImportable(
        f"'{path}' cannot be imported: there is no module '{module_name}': put it beside the YAML file, install it, or add its"
        " directory to PYTHONPATH"
    )


def _failed(path: str, module_name: str, error: BaseException) -> NotImportable:
    return NotImportable(
        f"'{path}' cannot be imported: module '{module_name}' fails with {type(error).__name__}: {error}"
    )


# Parts that do not derive from the base class of their interface: taken for one more release.
#
# Before 0.2.0 a part was recognised by its methods. The next release takes only what derives from the base class.

T = TypeVar("T")

_RENAMED = {"held_back": "find_held_back", "moved": "wait_for_progress"}
"""Old name of a method -> its name since 0.2.0."""


def adopt(part: T, base: type) -> T:
    """The part itself, which derives from `base` afterwards. Raises TypeError if its class forbids that (`__slots__`)."""
    kind: type = type(part)
    if (derived := _derived(kind, base)) is not kind:
        part.__class__ = derived
    return part


@cache
def _derived(kind: type, base: type) -> type:
    new_names = {
        new: getattr(kind, old)
        for old, new in _RENAMED.items()
        if hasattr(base, new) and hasattr(kind, old) and getattr(kind, new, None) in (None, getattr(base, new))
    }
    for new, method in new_names.items():
        _warn(f"{kind.__qualname__}.{method.__name__} is now called {new}: rename it")
    if issubclass(kind, base):
        return type(kind.__name__, (kind,), new_names) if new_names else kind
    _warn(f"{kind.__qualname__} does not derive from leasehold.{base.__name__}: the next release takes only what does")
    return type(kind.__name__, (kind, base), new_names)


def _warn(what: str) -> None:
    warnings.warn(what, DeprecationWarning, stacklevel=4)
