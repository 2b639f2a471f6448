"""A token may take longer than any one caller waits: the next callers get it."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest

from leasehold.common.entra_token import NoToken, TokenSource

HOUR_S = 3600


class Token(NamedTuple):
    token: str
    expires_on: int


class Issuer:
    """Answers each request when the test does. `answers`: one future for each request."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[Token]] = []
        self.is_asked = asyncio.Event()

    async def get_token(self, *scopes: str) -> Token:
        answer: asyncio.Future[Token] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        self.is_asked.set()
        return await answer


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def source(issuer: Issuer) -> TokenSource:
    return TokenSource("default", credential=issuer, now=lambda: 0.0)


async def leave(source: TokenSource, issuer: Issuer) -> None:
    """Call, and be cancelled while the issuer is at work."""
    issuer.is_asked.clear()
    call = asyncio.create_task(source.fetch())
    await issuer.is_asked.wait()
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()


async def answered(source: TokenSource, issuer: Issuer, outcome: Token | Exception) -> str:
    """What a caller gets that needs a renewal. Raises NoToken."""
    issuer.is_asked.clear()
    call = asyncio.create_task(source.fetch())
    await issuer.is_asked.wait()
    if isinstance(outcome, Exception):
        issuer.answers[-1].set_exception(outcome)
    else:
        issuer.answers[-1].set_result(outcome)
    return await call


async def test_a_token_that_takes_longer_than_its_caller_waits_is_for_the_next(
    source: TokenSource, issuer: Issuer
) -> None:
    await leave(source, issuer)
    assert source.is_renewing
    issuer.answers[0].set_result(Token("first", HOUR_S))
    assert await source.fetch() == "first"
    assert len(issuer.answers) == 1
    assert not source.is_renewing


async def test_callers_share_one_request(source: TokenSource, issuer: Issuer) -> None:
    calls = [asyncio.create_task(source.fetch()) for _ in range(3)]
    await issuer.is_asked.wait()
    calls[0].cancel()
    await asyncio.wait({calls[0]})
    issuer.answers[0].set_result(Token("first", HOUR_S))
    assert await asyncio.gather(*calls[1:]) == ["first"] * 2
    assert len(issuer.answers) == 1


async def test_a_failure_that_no_caller_waited_for_is_not_reported_to_the_loop(
    source: TokenSource, issuer: Issuer
) -> None:
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reports.append(context))
    await leave(source, issuer)
    issuer.answers[0].set_exception(RuntimeError("log in again"))
    while source.is_renewing:  # noqa: ASYNC110 -- it ends in the next rounds of the loop
        await asyncio.sleep(0)
    assert reports == []
    with pytest.raises(NoToken, match=r"^log in again$"):
        await answered(source, issuer, RuntimeError("log in again\nand more"))


async def test_the_present_token_is_used_until_it_ends(issuer: Issuer) -> None:
    now = 0.0
    source = TokenSource("default", credential=issuer, now=lambda: now)
    assert await answered(source, issuer, Token("first", HOUR_S)) == "first"
    now = HOUR_S - 100.0
    assert await answered(source, issuer, RuntimeError("busy")) == "first"
    now = HOUR_S + 1.0
    with pytest.raises(NoToken, match="busy"):
        await answered(source, issuer, RuntimeError("busy"))


async def test_closing_ends_a_request_and_the_callers_know(source: TokenSource, issuer: Issuer) -> None:
    call = asyncio.create_task(source.fetch())
    await issuer.is_asked.wait()
    await source.close()
    assert issuer.answers[0].cancelled()
    with pytest.raises(NoToken, match="cancelled"):
        await call
