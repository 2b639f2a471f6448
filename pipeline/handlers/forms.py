"""The forms that a handler may have. Pure, and without Arrow.

async def on_changes(changes, context): ...       # or a plain `def`, which runs in a thread
class OnChanges(Handler): ...                     # one object for each lease
def make_handler(): return OnChanges(pool)        # a factory of such objects
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from leasehold.pipeline.errors import NotImportable, SinkRejected
from leasehold.pipeline.handlers.handler import Handler
from leasehold.pipeline.imports import imported, is_async, is_generator, takes

Form = Literal["function", "class", "factory"]
SHAPE = "write `async def NAME(changes, context)`, a subclass of leasehold.Handler, or a function that makes one"

TURN_ROUND = "swap the two"


def found(path: str) -> object:
    """What `module:name` names. Raises SinkRejected."""
    try:
        return imported(path)
    except NotImportable as error:
        raise SinkRejected(f"handler {error}") from error


def name_of(handler: object) -> str:
    """The handler's name, for people."""
    if isinstance(handler, partial):
        return name_of(handler.func)
    return str(getattr(handler, "__qualname__", None) or type(handler).__qualname__)


def form_of(handler: object, name: str, *, is_manual: bool = False, has_timeout: bool = False) -> Form:
    """Raises SinkRejected if it has none of the forms, or if the settings need an `async def` handler."""
    if isinstance(handler, Handler):
        raise SinkRejected(
            f"handler '{name}' is an object, and each lease needs its own: give the class {type(handler).__name__}, or a function"
            " that makes such objects"
        )
    needs = {"is_manual": is_manual, "has_timeout": has_timeout}
    if isinstance(handler, type):
        return _form_of_class(handler, name, needs)
    if inspect.iscoroutine(handler) or inspect.isgenerator(handler) or inspect.isasyncgen(handler):
        raise SinkRejected(f"handler '{name}' is the result of a call: give the function itself, and do not call it")
    if not callable(handler):
        raise SinkRejected(f"handler '{name}' is of type {type(handler).__name__}: {SHAPE}")
    if isinstance(getattr(handler, "__self__", None), Handler):
        raise SinkRejected(
            f"handler '{name}' is a method of an object, and each lease needs an object of its own: give the class, or a"
            " function that makes such objects"
        )
    if isinstance(handler, partial) and isinstance(handler.func, type):
        return _form_of_partial(handler, name, needs)
    if is_generator(handler):
        raise SinkRejected(
            f"handler '{name}' is a generator function, so calling it runs nothing: remove `yield` from it"
        )
    form = _form_of_function(handler, name)
    if form == "function" and not is_async(handler):
        _check_plain(name, "it is", **needs)
    return form


def _check_plain(name: str, subject: str, is_manual: bool, has_timeout: bool) -> None:
    """Raises SinkRejected."""
    if is_manual:
        raise SinkRejected(
            f"handler '{name}': {subject} a plain function, which cannot await `context.checkpoint`: define it with `async def`"
        )
    if has_timeout:
        raise SinkRejected(
            f"handler '{name}': {subject} a plain function, and `parallel.timeout_s` needs an `async def` one, because a thread"
            " cannot be cancelled: remove the setting, or define the handler with `async def`"
        )


def _form_of_class(handler: type, name: str, needs: Mapping[str, bool]) -> Form:
    """Raises SinkRejected."""
    check_class(handler, name, **needs)
    if not takes(handler, 0):
        raise SinkRejected(
            f"handler '{name}': its `__init__` takes {_signature(handler)}, and each lease makes an object without arguments:"
            f" give a function that makes it, like `handler=lambda: {handler.__name__}(...)`"
        )
    return "class"


def _form_of_partial(handler: partial[Any], name: str, needs: Mapping[str, bool]) -> Form:
    """Raises SinkRejected."""
    assert isinstance(handler.func, type)
    check_class(handler.func, name, **needs)
    if not takes(handler, 0):
        raise SinkRejected(
            f"handler '{name}': its `__init__` takes {_signature(handler)} in addition: give these to `partial`"
        )
    return "factory"


def check_class(handler: type, name: str, *, is_manual: bool, has_timeout: bool) -> None:
    """Raises SinkRejected unless its objects can be handlers."""
    if not issubclass(handler, Handler):
        raise SinkRejected(
            f"handler '{name}' is a class that does not derive from leasehold.Handler: derive it from that"
        )
    if handler.process is Handler.process:
        raise SinkRejected(
            f"handler '{name}' has no method `process`: define `async def process(self, changes, context)`"
        )
    if abstract := sorted(getattr(handler, "__abstractmethods__", ())):
        raise SinkRejected(
            f"handler '{name}' is an abstract class: define {', '.join(abstract)} in a subclass, and give that"
        )
    for method, arguments in (("open", "context"), ("process", "changes, context"), ("close", "context, reason")):
        count = 1 + len(arguments.split(", "))
        if not callable(getattr(handler, method)):
            raise SinkRejected(
                f"handler '{name}': `{method}` is not a method: define `async def {method}(self, {arguments})`"
            )
        if not takes(getattr(handler, method), count):
            raise SinkRejected(
                f"handler '{name}': `{method}` takes {_signature(getattr(handler, method))}, and is called with"
                f" (self, {arguments}): let it take these"
            )
        if method == "process" and _is_turned_round(handler.process):
            raise SinkRejected(
                f"handler '{name}': `process` takes {_signature(handler.process)}, and is called with (self, {arguments}):"
                f" {TURN_ROUND}"
            )
        if is_generator(getattr(handler, method)):
            raise SinkRejected(f"handler '{name}': `{method}` is a generator function: remove `yield` from it")
    if not is_async(handler.process):
        _check_plain(name, "`process` is", is_manual, has_timeout)


def _form_of_function(handler: Any, name: str) -> Form:
    """Raises SinkRejected."""
    if takes(handler, 2):
        if _is_turned_round(handler):
            raise SinkRejected(
                f"handler '{name}' takes {_signature(handler)}, and is called with (changes, context): {TURN_ROUND}"
            )
        return "function"
    subject = f"handler '{name}' takes {_signature(handler)}"
    if not takes(handler, 0):
        raise SinkRejected(f"{subject}, and cannot be called with (changes, context): {_lacking(handler)}")
    if _returns_nothing(handler):
        raise SinkRejected(
            f"{subject} and returns nothing: let it take (changes, context), or return an object of a subclass of"
            " leasehold.Handler"
        )
    if is_async(handler):
        raise SinkRejected(
            f"{subject} and is an `async def` function, and a factory of handlers is called without `await`: define it with"
            " `def`, and await in the handler's `open`"
        )
    return "factory"


def _is_turned_round(function: Any) -> bool:
    """Whether the context comes first according to the parameters' names, as in the SDKs of Azure."""
    try:
        names = [each for each in inspect.signature(function).parameters if each != "self"][:2]
    except ValueError:  # a builtin without a signature
        return False
    return [each.endswith("context") for each in names] == [True, False]


def _lacking(function: Any) -> str:
    """What to do about a function that needs another number of arguments than two or none."""
    if next(iter(inspect.signature(function).parameters), "") == "self":
        return "give that method of an object, or the class if it derives from leasehold.Handler"
    return "let it take these two"


def _returns_nothing(function: Any) -> bool:
    """Whether each `return` of the function returns None, so that it makes no handler. Runs nothing."""
    if not inspect.isfunction(function):
        return False
    return all(
        (each.opname == "RETURN_CONST" and each.argval is None)
        or (before.opname == "LOAD_CONST" and before.argval is None and not each.is_jump_target)
        for before, each in pairwise(dis.get_instructions(function))
        if each.opname.startswith("RETURN_")
    )


def _signature(function: Any) -> str:
    try:
        return str(inspect.signature(function, eval_str=False))
    except ValueError:  # a builtin without a signature
        return "other arguments"
