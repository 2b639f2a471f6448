"""Leases in blobs, as settings say where they are: what is taken, what is refused, and that no secret is shown."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest
from pydantic import ValidationError

from leasehold.leases.stores.blob import BlobStore
from leasehold.service.config.leases import BlobLeases
from leasehold.service.config.settings import Settings
from leasehold.service.errors import StartFailed
from leasehold.service.wiring.build import store_of

KEY = "c2VjcmV0IGtleQ=="
URL = "https://bank.blob.core.windows.net"
WITH_KEY = f"DefaultEndpointsProtocol=https;AccountName=bank;AccountKey={KEY};EndpointSuffix=core.windows.net"
WITH_SIGNATURE = f"BlobEndpoint={URL}/;SharedAccessSignature=sv=2026&sig={KEY}"


def leases(**settings: object) -> BlobLeases:
    return BlobLeases.model_validate({"type": "blob", **settings})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"account_url": URL, "key": KEY}, {"account_url": URL, "key": KEY}),
        ({"account_url": URL}, {"account_url": URL, "identity": "default"}),
        ({"account_url": URL, "identity": "1f"}, {"account_url": URL, "identity": "1f"}),
        ({"connection_string": WITH_KEY}, {"connection_string": WITH_KEY}),
        ({"connection_string": WITH_SIGNATURE}, {"connection_string": WITH_SIGNATURE}),
    ],
)
def test_an_account_is_reached_by_key_connection_string_or_identity(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    assert {name: value for name, value in leases(**given).account.items() if value is not None} == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "needs `account_url`"),
        ({"account_url": "bank", "key": KEY}, "`account_url` must be an address"),
        ({"account_url": f"{URL}?sig={KEY}"}, "`account_url` must be an address"),
        ({"account_url": URL, "key": "secret!"}, "`key` must be one of the account's keys"),
        ({"account_url": URL, "key": KEY, "identity": "default"}, "give one of them"),
        ({"account_url": "http://bank.local"}, "must begin with https"),
        ({"connection_string": f"AccountKey={KEY}"}, "must look like"),
        ({"connection_string": "AccountName=bank;AccountKey=secret!"}, "must look like"),
        ({"connection_string": WITH_KEY, "key": KEY}, "contains everything"),
        ({"account_url": URL, "container": "Leases"}, "3 to 63 of a-z"),
        ({"account_url": URL, "container": "a--b"}, "3 to 63 of a-z"),
        ({"account_url": URL, "container": "ab"}, "3 to 63 of a-z"),
    ],
)
def test_settings_that_lead_nowhere_are_refused_and_no_secret_is_shown(given: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why) as caught:
        leases(**given)
    assert not any(secret in str(caught.value) for secret in (KEY, "secret!"))


def test_secrets_are_not_shown() -> None:
    for settings in (leases(account_url=URL, key=KEY), leases(connection_string=WITH_SIGNATURE)):
        assert KEY not in f"{settings!r} {settings.model_dump_json()}"


@pytest.mark.parametrize(
    ("given", "server"),
    [
        ({"account_url": URL, "key": KEY}, "bank.blob.core.windows.net"),
        ({"account_url": "https://BANK.blob.core.windows.net:443/"}, "bank.blob.core.windows.net"),
        ({"connection_string": WITH_KEY}, "bank.blob.core.windows.net"),
        ({"connection_string": WITH_SIGNATURE}, "bank.blob.core.windows.net"),
        ({"account_url": "http://127.0.0.1:10000/bank", "key": KEY}, "127.0.0.1:10000/bank"),
        ({"connection_string": f"BlobEndpoint=https://a:{KEY}@b/;SharedAccessSignature=sig={KEY}"}, "b"),
    ],
)
def test_the_place_of_leases_names_the_account_without_secrets(given: dict[str, str], server: str) -> None:
    assert leases(**given).place == f"blob container 'leases' at {server}"


def test_a_store_is_made_and_one_that_cannot_be_says_why(tmp_path: Path) -> None:
    pipeline = {"name": "copy", "feed": {"type": "log", "path": "in"}, "sink": {"type": "log", "path": "out"}}
    blob = {"type": "blob", "account_url": URL, "key": KEY}

    def settings(**more: object) -> Settings:
        return Settings.model_validate({"leases": blob | more, "pipelines": [pipeline]})

    assert isinstance(store_of(settings(), []), BlobStore)
    ca_file = tmp_path / "missing.pem"
    ca_file.symlink_to(certifi.where())
    read = settings(ca_file=str(ca_file))
    ca_file.unlink()
    with pytest.raises(StartFailed, match=r"missing\.pem"):
        store_of(read, [])
