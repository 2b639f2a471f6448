"""The id of a message in chunks, as Pulsar's client gives it."""

from __future__ import annotations

from typing import Any


class ChunkedId:
    """Its serialized form has one more field."""

    def __init__(self, plain: Any) -> None:
        self._plain = plain

    def serialize(self) -> bytes:
        return bytes(self._plain.serialize()) + b":\x02\x08\x01"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)
