"""Third-party parts: importing them by `module:attribute`, and checking them."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from leasehold.pipeline.errors import NotImportable


def imported(path: str) -> object:
    """The object at `module:attribute` (both may be dotted). Imports the module, which may take some time.

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
    """Check that the module exists. It is not run, because a function's module may need a running Spark; its parents are.

    Raises NotImportable.
    """
    module_name, _ = _split(path)
    if module_name in sys.modules:  # `find_spec` does not find __main__
        return
    try:
        found = find_spec(module_name)
    except ModuleNotFoundError as error:
        raise _not_found(path, module_name, error) from error
    except (Exception, SystemExit) as error:  # from a parent
        raise _failed(path, module_name, error) from error
    if found is None:
        raise _missing(path, module_name)


def is_async(function: object) -> bool:
    call = getattr(function, "__call__", None)  # noqa: B004  # of an object with such a method
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def takes(function: Callable[..., object], count: int) -> bool:
    """Whether the function can be called with this many arguments. True for a builtin without a signature."""
    try:
        inspect.signature(function).bind(*range(count))
    except ValueError:
        return True
    except TypeError:
        return False
    return True


def is_generator(function: object) -> bool:
    """Whether calling it only makes a generator, plain or async, and runs none of its code."""
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
            f"'{path}' does not name anything: write it as 'module:attribute', such as 'bank.views:balances'"
        )
    return module_name, attribute


def _not_found(path: str, module_name: str, error: ModuleNotFoundError) -> NotImportable:
    """The module itself or a parent is missing, or a module that one of them imports."""
    if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
        return _failed(path, module_name, error)
    return _missing(path, error.name)


def _missing(path: str, module_name: str) -> NotImportable:
    return NotImportable(
        f"'{path}' cannot be imported: there is no module '{module_name}': put it next to the YAML file, install it, or add its"
        " directory to PYTHONPATH"
    )


def _failed(path: str, module_name: str, error: BaseException) -> NotImportable:
    return NotImportable(
        f"'{path}' cannot be imported: module '{module_name}' fails with {type(error).__name__}: {error}"
    )


T = TypeVar("T")


def derived(part: T, base: type) -> T:
    """The part itself. Raises TypeError if it does not derive from this base class."""
    if not isinstance(part, base):
        raise TypeError(
            f"{type(part).__qualname__} does not derive from leasehold.{base.__name__}: name that as its base class"
        )
    return part
