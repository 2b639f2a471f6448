"""Objects that settings name as `module:attribute`."""

from __future__ import annotations

import os
import sys
from functools import reduce
from importlib import import_module
from pathlib import Path

from pipeline.errors import NotImportable


def imported(path: str) -> object:
    """The object at `module:attribute` (both may be dotted). Imports the module, which may take its time.

    Raises NotImportable.
    """
    module_name, _, attribute = path.partition(":")
    if not all(name.isidentifier() for name in (*module_name.split("."), *attribute.split("."))):
        raise NotImportable(
            f"'{path}' does not name anything: write it as 'module:attribute', 'bank.views:balances' say"
        )
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _failed(path, module_name, error) from error
        raise NotImportable(
            f"'{path}' cannot be imported: there is no module '{error.name}': install it, or add its directory to PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:
        raise _failed(path, module_name, error) from error
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise NotImportable(f"'{path}' cannot be imported: module '{module_name}' has no '{attribute}'") from error


def search_in(folder: Path) -> None:
    """Find modules in `folder` too: in this process, and in those that it starts, Spark's Python workers among them."""
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def _failed(path: str, module_name: str, error: BaseException) -> NotImportable:
    return NotImportable(
        f"'{path}' cannot be imported: module '{module_name}' fails with {type(error).__name__}: {error}"
    )
