"""Tokens of an identity, for another client of the account."""

from __future__ import annotations

import time

import pytest
from azure.core.credentials import AccessToken

from leasehold.common.azure import storage_account_of
from leasehold.pipeline.connectors.files.sink import blobs
from leasehold.pipeline.connectors.files.sink.blobs import TOKEN_LEFT_S, BlobContainer


class Identity:
    """Like the login of `az`: it caches nothing."""

    def __init__(self, valid_s: float) -> None:
        self.valid_s = valid_s
        self.tokens = 0

    def get_token(self, *scopes: str) -> AccessToken:
        self.tokens += 1
        return AccessToken(f"token-{self.tokens}", int(time.time() + self.valid_s))


@pytest.mark.parametrize(
    ("valid_s", "expected"),
    [(3600, ["token-1"] * 3), (TOKEN_LEFT_S - 1, ["token-1", "token-2", "token-3"])],
    ids=["long", "nearly expired"],
)
def test_a_token_is_kept_until_shortly_before_it_expires(
    monkeypatch: pytest.MonkeyPatch, valid_s: float, expected: list[str]
) -> None:
    identity = Identity(valid_s)
    monkeypatch.setattr(blobs, "blocking_credential_of", lambda client_id: identity)
    account = storage_account_of(account_url="https://bank.blob.core.windows.net", identity="client")
    place = BlobContainer(account, "lake")
    assert [place.token() for _ in range(3)] == expected
