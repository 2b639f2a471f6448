"""A credential of azure-identity that a program has made: shared by all who need it, and never closed by them."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from typing import Any


def is_credential(value: object) -> bool:
    return callable(getattr(value, "get_token", None)) and not isinstance(value, type)


def is_async(credential: Any) -> bool:
    return inspect.iscoroutinefunction(credential.get_token)


class GivenCredential:
    """The credential as the SDKs for asyncio require it. A blocking one is called in a thread."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        call = partial(self._credential.get_token, *scopes, **options)
        return await (call() if is_async(self._credential) else asyncio.to_thread(call))

    async def close(self) -> None:
        """Nothing to close: the credential belongs to the program."""

    async def __aenter__(self) -> GivenCredential:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None


class BlockingCredential:
    """The credential as the blocking SDKs require it."""

    def __init__(self, credential: Any) -> None:
        self.get_token = credential.get_token

    def close(self) -> None:
        """Nothing to close: the credential belongs to the program."""
