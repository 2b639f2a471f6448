"""What deltalake gets of a storage account, and what its errors become."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import DeltaError
from unit.pipeline.connectors.files.delta.blob_server import BlobServer, Request, serving
from unit.pipeline.connectors.files.delta.tables import Permit, claim, output

from leasehold.common.azure import StorageAccount, storage_account_of
from leasehold.pipeline.connectors.files.delta import (
    DeltaSink,
    Location,
    Table,
    check_prefix,
    container_location,
    table,
)
from leasehold.pipeline.connectors.files.delta.container import options_of, unavailable
from leasehold.pipeline.connectors.files.delta.table import location_of
from leasehold.pipeline.connectors.files.sink.blobs import BlobContainer
from leasehold.pipeline.connectors.files.sink.storage import FilesRefused, FilesUnavailable
from leasehold.pipeline.errors import SinkRejected

KEY = "c2VjcmV0"
IN_CLOUD = f"DefaultEndpointsProtocol=https;AccountName=bank;AccountKey={KEY};EndpointSuffix=core.windows.net"
SIGNED = "BlobEndpoint=https://bank.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=abc%3D"
AZURITE = f"AccountName=devstoreaccount1;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:10000/devstoreaccount1;"
ENDPOINT = "https://bank.blob.core.windows.net"


@pytest.mark.parametrize(
    ("account", "expected"),
    [
        (
            {"connection_string": IN_CLOUD},
            {"azure_storage_endpoint": ENDPOINT, "azure_storage_account_key": KEY, "allow_http": "false"},
        ),
        (
            {"connection_string": SIGNED},
            {"azure_storage_endpoint": ENDPOINT, "azure_storage_sas_token": "sv=1&sig=abc%3D", "allow_http": "false"},
        ),
        ({"account_url": ENDPOINT, "identity": "default"}, {"azure_storage_endpoint": ENDPOINT, "allow_http": "false"}),
        (
            {"account_url": "http://bank.example", "key": KEY},
            {"azure_storage_endpoint": "http://bank.example", "azure_storage_account_key": KEY, "allow_http": "true"},
        ),
    ],
)
def test_an_account_in_the_cloud(account: dict[str, Any], expected: dict[str, str]) -> None:
    options = options_of(storage_account_of(**account), 1.5)
    credentials = {name for name in options if name.endswith(("_key", "_token"))}
    assert credentials == {name for name in expected if name.endswith(("_key", "_token"))}
    assert options.items() >= expected.items()
    assert (options["azure_storage_account_name"], options["azure_storage_use_emulator"]) == ("bank", "false")
    assert (options["timeout"], options["azure_skip_signature"]) == ("1500ms", "false")


def test_an_emulator_is_known_by_its_account_in_the_path() -> None:
    account = storage_account_of(connection_string=AZURITE)
    location = container_location(account, "lake", prefix="/a/b/")
    assert (location.uri, location.emulator) == ("az://lake/a/b", "http://127.0.0.1:10000")
    assert location.address == "http://127.0.0.1:10000/devstoreaccount1/lake/a/b"
    options = location.options()
    assert (options["azure_storage_account_name"], options["azure_storage_use_emulator"]) == (
        "devstoreaccount1",
        "true",
    )
    assert "azure_storage_endpoint" not in options
    assert container_location(storage_account_of(connection_string=IN_CLOUD), "lake").emulator is None


def test_a_token_is_asked_for_again_each_time() -> None:
    tokens = iter(("one", "two"))
    account = storage_account_of(account_url=ENDPOINT, identity="default")
    location = container_location(account, "lake", token=lambda: next(tokens))
    assert [location.options()["azure_storage_token"] for _ in range(2)] == ["one", "two"]


@pytest.fixture
def server() -> Iterator[BlobServer]:
    with serving() as server:
        yield server


def location_with(server: BlobServer, kind: str) -> Location:
    """Under an address like the cloud's, which bears no account in its path."""
    signed = f"BlobEndpoint={server.url};AccountName=bank;SharedAccessSignature=sv=1&sig=SETTINGS"
    accounts = {
        "key": StorageAccount(url=server.url, key=KEY),
        "signature": StorageAccount(connection_string=signed),
        "token": StorageAccount(url=server.url, identity="client"),
    }
    token = (lambda: "SETTINGS") if kind == "token" else None
    return container_location(accounts[kind], "lake", prefix="t", timeout_s=3, token=token)


def is_of_settings(request: Request, kind: str) -> bool:
    signature, authorization = request.query.get("sig"), request.headers.get("authorization", "")
    if kind == "signature":
        return signature == "SETTINGS" and not authorization
    if signature is not None:
        return False
    return authorization == "Bearer SETTINGS" if kind == "token" else authorization.startswith("SharedKey ")


FABRIC = ("TOKEN_SERVICE_URL", "WORKLOAD_HOST", "SESSION_TOKEN", "CLUSTER_IDENTIFIER")
VARIABLES: dict[str, Mapping[str, str]] = {
    "a token": {"AZURE_STORAGE_TOKEN": "VARIABLE"},
    "a signature": {"AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=VARIABLE"},
    "a client's secret": {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_CLIENT_SECRET": "s"},
    "a workload's token": {"AZURE_CLIENT_ID": "c", "AZURE_TENANT_ID": "t", "AZURE_FEDERATED_TOKEN_FILE": "missing"},
    "the login of az": {"AZURE_USE_AZURE_CLI": "true"},
    "a managed identity": {"AZURE_MSI_ENDPOINT": "http://127.0.0.1:9/msi"},
    "no signature": {"AZURE_SKIP_SIGNATURE": "true"},
    "another account": {"AZURE_STORAGE_ACCOUNT_NAME": "other", "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:9"},
    "another container": {"AZURE_CONTAINER_NAME": "other"},
    "a part of Fabric's": {f"AZURE_FABRIC_{name}": "x" for name in FABRIC[:3]},
}


@pytest.mark.parametrize("variables", VARIABLES)
@pytest.mark.parametrize("kind", ["key", "signature", "token"])
def test_the_settings_win_over_variables(
    server: BlobServer, monkeypatch: pytest.MonkeyPatch, kind: str, variables: str
) -> None:
    for name, value in VARIABLES[variables].items():
        monkeypatch.setenv(name, value)
    assert not Table(location_with(server, kind)).exists()
    assert server.requests
    assert [each for each in server.requests if not is_of_settings(each, kind)] == []


@pytest.mark.parametrize("kind", ["key", "token"])
def test_the_settings_win_over_a_variable_with_a_key(
    server: BlobServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "no key at all!")  # a request signed with it fails
    assert not Table(location_with(server, kind)).exists()
    assert [each for each in server.requests if not is_of_settings(each, kind)] == []


@pytest.mark.parametrize("name", ["ACCOUNT_KEY", "ACCESS_KEY", "MASTER_KEY", "account_key"])
def test_a_variable_that_would_win_over_a_signature_is_refused_by_its_name(
    server: BlobServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    location = location_with(server, "signature")
    monkeypatch.setenv(f"AZURE_STORAGE_{name}", "U0VDUkVU")
    with pytest.raises(FilesRefused, match=rf"variable AZURE_STORAGE_{name}.*unset it") as refused:
        Table(location).exists()
    assert "U0VDUkVU" not in str(refused.value)
    assert server.requests == []


@pytest.mark.parametrize("kind", ["key", "signature", "token"])
def test_variables_of_fabric_that_would_win_over_all_settings_are_refused(
    server: BlobServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name in FABRIC:
        monkeypatch.setenv(f"AZURE_FABRIC_{name}", f"{server.url}/fabric")
    with pytest.raises(FilesRefused, match=r"variables AZURE_FABRIC_CLUSTER_IDENTIFIER, .*unset one of them"):
        Table(location_with(server, kind)).exists()
    assert server.requests == []


def test_an_emulator_takes_a_variable_s_key_first_so_a_signature_and_it_are_refused(
    server: BlobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = f"BlobEndpoint={server.url}/bank;AccountName=bank;SharedAccessSignature=sv=1&sig=SETTINGS"
    location = container_location(StorageAccount(connection_string=signed), "lake")
    monkeypatch.setenv("AZURE_STORAGE_ACCESS_KEY", "U0VDUkVU")
    with pytest.raises(FilesRefused, match="variable AZURE_STORAGE_ACCESS_KEY"):
        Table(location).exists()


def test_with_an_emulator_variables_of_fabric_do_nothing(server: BlobServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FABRIC:
        monkeypatch.setenv(f"AZURE_FABRIC_{name}", f"{server.url}/fabric")
    assert not Table(server.location()).exists()
    assert {each.headers["authorization"].partition(" ")[0] for each in server.requests} == {"SharedKey"}


async def test_a_sink_whose_settings_a_variable_would_replace_is_refused_at_the_start(
    server: BlobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FABRIC:
        monkeypatch.setenv(f"AZURE_FABRIC_{name}", "x")
    account = StorageAccount(url=server.url, key=KEY)
    sink = DeltaSink(BlobContainer(server.account, "lake"), container_location(account, "lake"))
    with pytest.raises(SinkRejected, match="AZURE_FABRIC_SESSION_TOKEN"):
        await sink.prepare()
    await sink.close()


async def test_a_vacuum_deletes_blobs_of_failed_attempts_and_nothing_below(server: BlobServer) -> None:
    sink = server.sink()
    writer = await sink.open(claim(1))
    await writer.write(output(0, 3), Permit())
    await sink.close()
    name = f"part-{'a' * 32}.zstd.parquet"
    others = {**server.blobs, f"transactions/below/{name}": b"x", f"another/{name}": b"x"}
    server.blobs.update({**others, f"transactions/{name}": b"x"})
    lake = Table(server.location())
    lake.refresh()
    assert lake.vacuum(retention_hours=None, dry_run=True) == [name]
    assert f"transactions/{name}" in server.blobs
    assert lake.vacuum(retention_hours=None, dry_run=False) == [name]
    assert server.blobs == others


@pytest.mark.parametrize("prefix", ["", "/", "a", "/a/b/", "a-b_c.d=1/2"])
def test_prefixes_that_are_fine(prefix: str) -> None:
    check_prefix(prefix)


@pytest.mark.parametrize("prefix", ["a//b", "a/../b", ".", "a b", "\u00fc", "a%b", "a?b", "a#b"])
def test_prefixes_that_are_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="`prefix` of a Delta table must consist of"):
        check_prefix(prefix)


@pytest.mark.parametrize(
    ("error", "kind", "expected"),
    [
        (
            "Server returned non-2xx status code 403 Forbidden <Code>Denied</Code>",
            FilesRefused,
            r"403 \(Denied\): look at the key",
        ),
        ("Server returned non-2xx status code 404 Not Found", FilesRefused, "404: create the container"),
        (
            "Server returned non-2xx status code 503 Busy <Code>ServerBusy</Code>",
            FilesUnavailable,
            "is throttled: wait",
        ),
        ("Server returned non-2xx status code 500 Internal", FilesUnavailable, "500: try again later"),
        ("tcp connect error Connection refused", FilesUnavailable, "lake: tcp connect error Connection refused"),
    ],
)
def test_the_service_s_answer_is_explained(error: str, kind: type[FilesUnavailable], expected: str) -> None:
    found = unavailable("lake", error)
    assert type(found) is kind
    with pytest.raises(FilesUnavailable, match=expected):
        raise found


def test_a_signature_in_an_error_of_deltalake_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise DeltaError(
            "Error performing \x1b[31mGET https://bank.example/lake/x?sv=1&sig=abc in 2ms\n \u21b3 timed out"
        )

    monkeypatch.setattr(table, "DeltaTable", refuse)
    with pytest.raises(FilesUnavailable, match=r"GET https://bank\.example/lake/x in 2ms timed out$"):
        Table(location_of(tmp_path)).refresh()
