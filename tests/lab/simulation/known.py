"""Documents as values: what was written or read once is not parsed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from leasehold.leases.store import Stored

T = TypeVar("T")


class Known(Generic[T]):
    """What all hosts of one world have decoded and encoded."""

    def __init__(self, decode: Callable[[str, str], T], encode: Callable[[T], str], id_of: Callable[[T], str]) -> None:
        self._decode = decode
        self._encode = encode
        self._id_of = id_of
        self._values: dict[tuple[str, str], T] = {}

    def decoded(self, id: str, body: str) -> T:
        known = self._values.get((id, body))
        return self._kept(id, body, self._decode(id, body)) if known is None else known

    def encoded(self, value: T) -> str:
        body = self._encode(value)
        self._kept(self._id_of(value), body, value)
        return body

    def check(self, documents: Iterable[Stored]) -> None:
        """Whether documents say what was kept of them."""
        for stored in documents:
            known = self._values.get((stored.id, stored.body))
            assert known is None or known == self._decode(stored.id, stored.body), f"{known} became {stored}"

    def forget(self) -> None:
        """Another world begins."""
        self._values.clear()

    def _kept(self, id: str, body: str, value: T) -> T:
        self._values[id, body] = value
        return value
