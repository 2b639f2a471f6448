"""Questions about single partitions that may take minutes: asked in the background, and repeated if they fail.

A sink may have to read a whole partition to find out where it stands. Nothing else waits for that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from leases.backoff import retry_after_s
from leases.balance import Key
from leases.clock import Clock
from leases.errors import Undecided
from leases.side_by_side import AT_ONCE_MAX
from leases.timing import Timing
from pipeline.cancellation import is_cancelled

T = TypeVar("T")
ANSWERED_SOON_S = 1.0
"""How long an asker waits for a new question's answer before it does something else."""
ANSWER_MAX_S = 3600.0
"""A question that takes longer is asked again."""


@dataclass(slots=True)
class _Question:
    """task: never raises; what it returns is in `answer` or `error`. failures: in a row. due_at: when it is asked again."""

    key: Key
    began: float
    failures: int = 0
    due_at: float = inf
    answer: Any = None
    error: BaseException | None = None
    task: asyncio.Task[None] | None = None


class Asks:
    """Of one pipeline. answered: called when an answer has come for which nobody waited."""

    def __init__(self, clock: Clock, timing: Timing, rng: random.Random, answered: Callable[[], None]) -> None:
        self._clock = clock
        self._timing = timing
        self._rng = rng
        self._answered = answered
        self._questions: dict[tuple[str, Key], _Question] = {}
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)

    async def get(self, kind: str, key: Key, call: Callable[[], Awaitable[T]], what: str) -> T:
        """The answer, if it is there or comes soon; the same one until `forget`. Raises Undecided.

        kind, key: name the question. what: the system that answers, for people.
        """
        question = self._questions.get((kind, key))
        if question is None or self._clock.monotonic() >= question.due_at:
            failures = 0 if question is None else question.failures
            question = self._questions[kind, key] = _Question(key, self._clock.monotonic(), failures)
            question.task = asyncio.create_task(self._ask(question, call), name=f"{kind} of {key[0]}/{key[1]}")
        left_s = ANSWERED_SOON_S - (self._clock.monotonic() - question.began)
        if left_s > 0 and question.task is not None:
            await asyncio.wait({question.task}, timeout=left_s)
        if question.error is not None:
            raise Undecided(f"{what} does not say where it begins ({_told(question.error)})", is_slow=True)
        if question.task is None or not question.task.done():
            waited_s = self._clock.monotonic() - question.began
            raise Undecided(
                f"{what} is still finding out where it begins", is_slow=waited_s > self._timing.call_timeout_s
            )
        answer: T = question.answer
        return answer

    def forget(self, having: Collection[Key] | None = None) -> None:
        """Drop the answers about partitions that have a lease now; without an argument, all of them."""
        for name, question in list(self._questions.items()):
            is_over = question.task is not None and question.task.done()
            if is_over and (having is None or question.key in having):
                del self._questions[name]

    async def close(self) -> None:
        tasks = [each.task for each in self._questions.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, question: _Question, call: Callable[[], Awaitable[object]]) -> None:
        try:
            async with self._gate, asyncio.timeout(ANSWER_MAX_S):
                question.answer = await call()
        except TimeoutError:
            question.error = TimeoutError(f"no answer within {ANSWER_MAX_S:g} s")
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error):
                raise
            question.error = error
        if question.error is not None:
            question.failures += 1
            pause_s = self._timing.backoff.pause_s(question.failures, self._rng.random(), retry_after_s(question.error))
            question.due_at = self._clock.monotonic() + pause_s
        elif self._clock.monotonic() - question.began >= ANSWERED_SOON_S:
            self._answered()


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
