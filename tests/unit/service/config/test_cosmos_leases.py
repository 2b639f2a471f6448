"""Leases in Cosmos DB, as settings say where they are: what is taken, what is refused, and that no secret is shown."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest
from pydantic import ValidationError

from leasehold.leases.stores.cosmos import CosmosStore
from leasehold.service.config.cosmos import CosmosLeases
from leasehold.service.config.settings import Settings
from leasehold.service.errors import StartFailed
from leasehold.service.wiring.build import store_of

KEY = "c2VjcmV0IGtleQ=="
ENDPOINT = "https://bank.documents.azure.com"


def leases(**settings: object) -> CosmosLeases:
    return CosmosLeases.model_validate({"type": "cosmos", "database": "bank", **settings})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"endpoint": ENDPOINT, "key": KEY}, {"endpoint": ENDPOINT, "key": KEY}),
        ({"endpoint": ENDPOINT}, {"endpoint": ENDPOINT, "identity": "default"}),
        ({"endpoint": ENDPOINT, "identity": "1f"}, {"endpoint": ENDPOINT, "identity": "1f"}),
        (
            {"connection_string": f"AccountEndpoint={ENDPOINT};AccountKey={KEY};"},
            {"connection_string": f"AccountEndpoint={ENDPOINT};AccountKey={KEY};"},
        ),
    ],
)
def test_an_account_is_reached_by_key_connection_string_or_identity(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    assert {name: value for name, value in leases(**given).account.items() if value is not None} == expected


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "needs `endpoint`"),
        ({"endpoint": "bank", "key": KEY}, "`endpoint` must be an address"),
        ({"endpoint": "http://localhost:8081", "identity": "default"}, "tokens are never sent unencrypted"),
        ({"endpoint": ENDPOINT, "key": "secret!"}, "`key` must be one of the account's keys"),
        ({"endpoint": ENDPOINT, "key": KEY, "identity": "default"}, "give one of them"),
        ({"connection_string": f"AccountKey={KEY}"}, "must look like AccountEndpoint"),
        ({"connection_string": f"AccountEndpoint={ENDPOINT};AccountKey={KEY};", "key": KEY}, "contains everything"),
        ({"endpoint": ENDPOINT, "database": ""}, "database"),
    ],
)
def test_settings_that_lead_nowhere_are_refused_and_no_secret_is_shown(given: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why) as caught:
        leases(**given)
    assert not any(secret in str(caught.value) for secret in (KEY, "secret!"))


@pytest.mark.parametrize(
    "given",
    [
        {"endpoint": ENDPOINT, "key": KEY},
        {"endpoint": f"{ENDPOINT}:443/"},
        {"connection_string": f"AccountEndpoint={ENDPOINT}:443/;AccountKey={KEY};"},
    ],
)
def test_the_place_of_leases_names_the_account_without_secrets(given: dict[str, str]) -> None:
    assert leases(**given).place == "Cosmos DB container 'bank/leases' at bank.documents.azure.com"


def test_secrets_are_not_shown() -> None:
    settings = leases(endpoint=ENDPOINT, key=KEY)
    assert KEY not in f"{settings!r} {settings.model_dump_json()}"


def test_a_store_is_made_and_one_that_cannot_be_says_why(tmp_path: Path) -> None:
    pipeline = {"name": "copy", "feed": {"type": "log", "path": "in"}, "sink": {"type": "log", "path": "out"}}
    cosmos = {"type": "cosmos", "database": "bank", "endpoint": ENDPOINT, "key": KEY}

    def settings(**more: object) -> Settings:
        return Settings.model_validate({"leases": cosmos | more, "pipelines": [pipeline]})

    assert isinstance(store_of(settings(), []), CosmosStore)
    ca_file = tmp_path / "missing.pem"
    ca_file.symlink_to(certifi.where())
    read = settings(ca_file=str(ca_file))
    ca_file.unlink()
    with pytest.raises(StartFailed, match=r"missing\.pem"):
        store_of(read, [])
