"""What becomes a span: a lease that was taken, renewed, wanted or let go, and a batch with its stages. Pure.

Attributes say which lease and epoch, and from where to where; texts are cut, and what looks like a secret is masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from leases.lease import Lease
from pipeline.pump.runner import Delivered
from pipeline.sink import CloseReason
from service.redaction import redacted

TEXT_MAX = 200
"""Characters of an attribute. Positions of files are long, and errors are for the log."""

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that is over. took_s: how long it took; ended_s_ago: before it was told. error: why it failed, if it did.

    parts: what it consists of, in its own trace.
    """

    name: str
    took_s: float
    attributes: Mapping[str, Value]
    ended_s_ago: float = 0.0
    error: str | None = None
    parts: tuple[Span, ...] = ()


class Told(Protocol):
    """What a span is known by once it was told, for spans that belong to it."""


class Traces(Protocol):
    """Where spans go."""

    @property
    def made(self) -> int:
        """How many so far, without those that the sampler left out."""
        ...

    @property
    def exported(self) -> int:
        """Of those, how many a collector has taken."""
        ...

    def tell(self, span: Span, *, within: Told | None = None, after: Told | None = None) -> Told:
        """Returns at once, whatever becomes of it. within: a part of that one. after: a trace of its own that refers to it."""
        ...

    async def close(self) -> None:
        """Waits a moment for what is under way."""
        ...


def acquired(lease: Lease, before: Lease, took_s: float) -> Span:
    return Span(
        name="acquire", took_s=took_s, attributes=_about(lease, before=before.owner, position=lease.continuation)
    )


def asked(lease: Lease, took_s: float) -> Span:
    """From its request until the lease was acquired, on the host that asked."""
    return Span(name="handoff", took_s=took_s, attributes=_about(lease, side="taker"))


def given(lease: Lease, reason: CloseReason, took_s: float) -> Span:
    """From the request until the lease was let go, on the host that was asked."""
    return Span(
        name="handoff", took_s=took_s, attributes=_about(lease, side="owner", to=lease.handoff_to, reason=reason)
    )


def let_go(lease: Lease, reason: CloseReason) -> Span:
    return Span(name="release", took_s=0.0, attributes=_about(lease, reason=reason, position=lease.continuation))


def renewed(lease: Lease, took_s: float, error: Exception | None) -> Span:
    return Span(name="renew", took_s=took_s, attributes=_about(lease), error=_why(error))


def suspended(lease: Lease) -> Span:
    return Span(name="suspend", took_s=0.0, attributes=_about(lease), error="the lease could not be renewed in time")


def delivered_batch(lease: Lease, delivered: Delivered) -> Span:
    """read, transform, queue, deliver: one after the other, up to now."""
    output = delivered.output
    stages = {
        "read": delivered.waited_s,
        "transform": delivered.transform_s,
        "queue": delivered.queued_s,
        "deliver": delivered.deliver_s,
    }
    left, parts = sum(stages.values()), []
    for name, took_s in stages.items():
        left -= took_s
        parts.append(Span(name=name, took_s=took_s, ended_s_ago=max(0.0, left), attributes={}))
    numbers = {"leasehold.events": output.events, "leasehold.dead_letters": delivered.dead_letters}
    return Span(
        name="batch",
        took_s=sum(stages.values()),
        attributes=_about(lease, **{"from": output.start, "to": output.to}) | numbers,
        parts=tuple(parts),
    )


def failed_batch(lease: Lease, position: str | None, error: Exception) -> Span:
    return Span(name="batch", took_s=0.0, attributes=_about(lease, **{"from": position}), error=_why(error))


def checkpointed(lease: Lease, took_s: float) -> Span:
    return Span(name="checkpoint", took_s=took_s, attributes=_about(lease, to=lease.continuation))


def _about(lease: Lease, **more: str | None) -> dict[str, Value]:
    fields: dict[str, str | int | None] = {
        "pipeline": lease.pipeline,
        "partition": lease.partition,
        "epoch": lease.epoch,
        "generation": lease.generation,
        **more,
    }
    return {f"leasehold.{name}": _cut(value) for name, value in fields.items() if value is not None}


def _cut(value: str | int) -> str | int:
    if isinstance(value, int):
        return value
    text = redacted(value)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 3]}..."


def _why(error: Exception | None) -> str | None:
    return None if error is None else str(_cut(f"{type(error).__name__}: {error}"))
