"""Handlers as the sink `python` calls them: an observer for each lease, or a function for the events of one key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import partial
from typing import Any, cast

import pyarrow as pa

from leasehold.pipeline.connectors.handler_loop import HandlerLoop, call_plainly
from leasehold.pipeline.connectors.handlers import ForLease, do_nothing, refuse_unrun
from leasehold.pipeline.connectors.python import PythonWriter, Report
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.handlers.changes import Context, Gets, HandlerLease, LeaseLost, changes_in, changes_of
from leasehold.pipeline.handlers.events import AckRefused, Events
from leasehold.pipeline.handlers.forms import SHAPE, Form, check_class, form_of
from leasehold.pipeline.handlers.handler import Handler
from leasehold.pipeline.imports import is_async
from leasehold.pipeline.limits import ParallelLimits
from leasehold.pipeline.sink import Claim, CloseReason

Answer = Awaitable[None] | None


Seen = MutableMapping[int, Handler]
"""By id, the handlers that a factory has made and that are still in use: a weak mapping."""


class OfFunction(Handler):
    def __init__(self, function: Any) -> None:
        self.process = function  # type: ignore[method-assign]


class Observer:
    """Each method is a coroutine function if the handler's is, so that the sink runs plain ones in a thread."""

    def __init__(self, handler: Handler, *, name: str, gets: Gets, loop: HandlerLoop) -> None:
        self._name, self._gets, self._loop = name, gets, loop
        self.open = self._calling(handler.open)
        self.process = self._calling(handler.process, self._of_changes)
        self.close = self._calling(handler.close)

    def _calling(
        self, method: Any, arguments: Callable[..., tuple[Any, ...]] = lambda *given: given
    ) -> Callable[..., Any]:
        if getattr(method, "__func__", None) in (Handler.open, Handler.close):
            return do_nothing  # without a thread
        if not is_async(method):
            return lambda *given: refuse_unrun(call_plainly(method, *arguments(*given)))

        async def call(*given: Any) -> None:
            async def made() -> None:
                refuse_unrun(await method(*arguments(*given)))

            await self._loop.run(self._name, made)

        return call

    def _of_changes(self, context: Context, table: pa.Table) -> tuple[Any, ...]:
        return changes_of(table, self._gets), context


def observers(
    handler: Any, *, name: str, gets: Gets, loop: HandlerLoop, seen: Seen, is_manual: bool = False
) -> Callable[[], Observer]:
    """What makes an observer for each lease. Raises SinkRejected if the handler has no permitted form."""
    make = _maker_of(handler, name, seen, is_manual=is_manual)
    return lambda: Observer(make(), name=name, gets=gets, loop=loop)


def _maker_of(
    handler: Any, name: str, seen: Seen, *, is_manual: bool = False, has_timeout: bool = False
) -> Callable[[], Handler]:
    """What makes a Handler of a function, a class or a factory. Raises SinkRejected for anything else."""
    needs = {"is_manual": is_manual, "has_timeout": has_timeout}
    makes: dict[Form, Callable[[], Handler]] = {
        "function": partial(OfFunction, handler),
        "class": handler,
        "factory": partial(_made_by, handler, name, seen, needs),
    }
    return makes[form_of(handler, name, **needs)]


def _made_by(factory: Callable[[], object], name: str, seen: Seen, needs: Mapping[str, bool]) -> Handler:
    handler = factory()
    if isinstance(handler, type):
        raise SinkRejected(f"'{name}' returned the class {handler.__name__}: let it return an object of it")
    if not isinstance(handler, Handler):
        raise SinkRejected(
            f"'{name}' returned {type(handler).__name__}, which does not derive from leasehold.Handler: {SHAPE}"
        )
    if seen.get(id(handler)) is handler:
        raise SinkRejected(
            f"'{name}' returned one object twice, and each lease needs its own: let it make another each time"
        )
    seen[id(handler)] = handler
    check_class(type(handler), type(handler).__name__, **needs)
    return handler


def for_lease(
    handler: Any,
    claim: Claim,
    report: Report,
    *,
    name: str,
    gets: Gets,
    loop: HandlerLoop,
    seen: Seen,
    limits: ParallelLimits,
) -> ForLease:
    """The handler for one lease, as the sink calls it. Raises SinkRejected if the handler has no permitted form."""
    made = _maker_of(handler, name, seen, is_manual=limits.manual_ack, has_timeout=limits.timeout_s is not None)()
    writer = PythonWriter(name, Observer(made, name=name, gets=gets, loop=loop), claim, report)

    async def close(reason: CloseReason, position: str | None) -> None:
        writer.position = position
        await writer.close(reason)

    called = _called(made.process, claim, name=name, gets=gets, loop=loop, is_manual=limits.manual_ack)
    return ForLease(call=called, open=writer.open, close=close)


def _called(
    function: Any, claim: Claim, *, name: str, gets: Gets, loop: HandlerLoop, is_manual: bool
) -> Callable[[Events], Answer]:
    host = HandlerLoop(asyncio.get_running_loop())

    def arguments(events: Events) -> tuple[Any, Context]:
        async def acknowledge(sequence: int) -> None:
            if events.is_stale:  # the host's loop may have ended, too
                raise LeaseLost(
                    f"partition '{claim.partition}' is no longer this host's: its next owner processes its events again"
                )
            try:
                await host.run(name, lambda: events.ack(sequence))
            except AckRefused as error:
                if events.is_stale:
                    raise LeaseLost(str(error)) from None
                raise

        lease = HandlerLease.of(
            claim, acknowledge=acknowledge if is_manual else None, is_released=lambda: events.is_stale
        )
        context = Context(
            lease=lease,
            position=events.position,
            trace=events.trace,
            receipt=events.receipt,
            key=events.key,
            attempt=events.attempt,
        )
        return changes_in(list(events), gets), context

    async def call(events: Events) -> None:
        async def made() -> None:
            refuse_unrun(await function(*arguments(events)))

        await loop.run(name, made)

    return (
        call
        if is_async(function)
        else cast(Callable[[Events], Answer], lambda events: call_plainly(function, *arguments(events)))
    )
