"""What the reply to an attach means for what was sent before it. Pure.

A link is made again with the numbers that we believe in. Where the broker knows better, its reply counts; where the outcome of
a batch is unknown, the reply may tell that it was stored. It cannot tell that it was not: the batch may still be on its way,
and some brokers reply with what they were asked. Only the same batch under the same numbers settles that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.producer.numbers import Asked, Numbers


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unsettled:
    """A batch whose outcome is unknown. after: as the numbers stood before it."""

    payloads: Sequence[Any]
    key: str | None
    after: Numbers

    @property
    def last(self) -> Numbers:
        return self.after.after(len(self.payloads))


Verdict = Literal["go on", "stored", "unsettled", "strange"]


def judged(reply: Numbers, asked: Asked | None, unsettled: Unsettled | None, *, strict: bool) -> Verdict:
    """strict: whether a reply that differs from it is strange, even where nothing is unsettled.

    go on: with the numbers of the reply. stored: the unsettled batch is published. unsettled: send it again. strange: somebody
    else publishes under our numbers, or the broker has lost them.
    """
    if unsettled is not None:
        return "stored" if reply == unsettled.last else "unsettled" if reply == unsettled.after else "strange"
    return "go on" if not strict or _fits(reply, asked) else "strange"


def _fits(reply: Numbers, asked: Asked | None) -> bool:
    return all(getattr(asked, name, None) in (None, getattr(reply, name)) for name in ("group", "level", "number"))
