"""Addresses of storage accounts: which have the account in their path, and which may have no path."""

from __future__ import annotations

import pytest

from leasehold.common.azure import storage_account_of

KEY = "c2VjcmV0"


@pytest.mark.parametrize("path", ["/lake", "/lake/", "/lake/below"])
@pytest.mark.parametrize(
    "server",
    [
        "bank.blob.core.windows.net",
        "bank.z1.blob.storage.azure.net",
        "bank.privatelink.blob.core.usgovcloudapi.net:443",
    ],
)
def test_an_address_of_azure_with_a_path_is_refused(server: str, path: str) -> None:
    alone = rf"must be the address of the account alone, https://{server}: name a container by `container`"
    with pytest.raises(ValueError, match=f"`account_url` {alone}"):
        storage_account_of(account_url=f"https://{server}{path}", key=KEY)
    signed = f"BlobEndpoint=https://{server}{path};SharedAccessSignature=sig=SECRET"
    with pytest.raises(ValueError, match=f"the BlobEndpoint of `connection_string` {alone}") as refused:
        storage_account_of(connection_string=signed)
    assert "SECRET" not in str(refused.value)


def test_an_emulator_s_address_with_more_than_the_account_is_refused() -> None:
    with pytest.raises(ValueError, match=r"alone, http://127\.0\.0\.1:10000/devstoreaccount1: name a container"):
        storage_account_of(account_url="http://127.0.0.1:10000/devstoreaccount1/lake", key=KEY)


@pytest.mark.parametrize(
    ("address", "is_emulator"),
    [
        ("https://bank.blob.core.windows.net", False),
        ("https://bank.blob.core.windows.net/", False),
        ("http://127.0.0.1:10000/devstoreaccount1", True),
        ("http://azurite.blob.svc.cluster.local:10000/devstoreaccount1/", True),
    ],
)
def test_only_an_emulator_has_the_account_in_its_path(address: str, is_emulator: bool) -> None:
    assert storage_account_of(account_url=address, key=KEY).is_emulator is is_emulator
    text = f"AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint={address}"
    assert storage_account_of(connection_string=text).is_emulator is is_emulator
