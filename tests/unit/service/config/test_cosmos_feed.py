"""The settings of a Cosmos feed: what goes together, and no secret anywhere but where it is used."""

from __future__ import annotations

from pathlib import Path

import certifi
import pytest

from leasehold.service.config.cosmos import CosmosFeedSettings, CosmosLeases
from leasehold.service.config.load import ConfigurationError, load, parse
from leasehold.service.config.section import FeedContext

SECRET = "c2VjcmV0"
HERE = "endpoint: 'https://bank.documents.azure.com:443/'"
WHAT = "database: bank, container: tx"


def feed(fields: str, **env: str) -> CosmosFeedSettings:
    text = f"pipelines: [{{name: a, feed: {{type: cosmos, {fields}}}, sink: {{type: log, path: x}}}}]"
    found = parse(text, env, folder=Path("/etc/leasehold")).pipelines[0].feed
    assert isinstance(found, CosmosFeedSettings)
    return found


@pytest.mark.parametrize(
    "access",
    [
        f"{HERE}, key: '${{S}}'",
        "connection_string: 'AccountEndpoint=https://bank.documents.azure.com:443/;AccountKey=${S};'",
        f"{HERE}, identity: default",
        HERE,
    ],
)
async def test_the_same_container_is_the_same_feed_however_it_is_reached(access: str) -> None:
    found = feed(f"{access}, {WHAT}", S=SECRET)
    made = found.make(FeedContext())
    assert made.identity == "cosmos:bank.documents.azure.com/bank/tx"
    assert SECRET not in repr(found) + str(found) + found.model_dump_json() + repr(made)
    await made.close()


def test_leases_and_feeds_say_in_the_same_words_how_an_account_is_reached() -> None:
    both = {"endpoint": "https://bank.documents.azure.com", "database": "bank", "container": "tx", "type": "cosmos"}
    for access in ({}, {"identity": "default"}, {"identity": "1f"}, {"key": SECRET}, {"ca_file": certifi.where()}):
        of_feed = CosmosFeedSettings.model_validate({**both, **access})
        of_leases = CosmosLeases.model_validate({**both, **access})
        assert of_feed.account == of_leases.account
        assert (of_feed.account["identity"] is None) == ("key" in access)


@pytest.mark.parametrize(("content", "why"), [(None, "no such file or directory"), ("nothing", "it holds none")])
def test_certificates_that_are_none_are_told_with_all_else_that_is_wrong(
    tmp_path: Path, content: str | None, why: str
) -> None:
    """Of every part that takes them, and before anything is connected to."""
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)
    text = f"""
        leases: {{type: blob, account_url: "https://bank.blob.core.windows.net", ca_file: ca.pem}}
        pipelines:
          - name: a
            feed: {{type: cosmos, {HERE}, key: {SECRET}, ca_file: ca.pem, {WHAT}}}
            sink: {{type: http, url: "https://bank.example", ca_file: ca.pem}}
          - name: b
            feed: {{type: eventhubs, namespace: bank.servicebus.windows.net, event_hub: h, ca_file: ca.pem}}
            sink: {{type: cosmos, {HERE}, key: {SECRET}, ca_file: ca.pem, {WHAT}}}
        """
    with pytest.raises(ConfigurationError) as error:
        parse(text, {}, folder=tmp_path)
    assert len(error.value.problems) == 5
    for problem in error.value.problems:
        assert f"ca_file is 'ca.pem', and must be a PEM file with certificates ({why}):" in problem


def test_certificates_that_vanish_are_told_when_the_feed_is_made(tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.symlink_to(certifi.where())
    found = feed(f"{HERE}, key: {SECRET}, ca_file: '{ca_file}', {WHAT}")
    ca_file.unlink()
    with pytest.raises(ValueError, match=r"ca\.pem' holds no certificates"):
        found.make(FeedContext())


async def test_another_mode_is_another_feed() -> None:
    made = feed(f"{HERE}, key: {SECRET}, {WHAT}, mode: all_versions, start: latest").make(FeedContext())
    assert made.identity == "cosmos:bank.documents.azure.com/bank/tx:all_versions"
    await made.close()


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (f"{HERE}, key: {SECRET}, identity: default, {WHAT}", "needs either `key` or `identity`"),
        (f"key: {SECRET}, {WHAT}", "needs `endpoint`"),
        (f"{HERE}, connection_string: '{SECRET}', {WHAT}", "contains everything"),
        (f"connection_string: 'AccountKey={SECRET}', {WHAT}", "must look like AccountEndpoint"),
        (f"{HERE}, key: '{SECRET}!', {WHAT}", "must be one of the account's keys"),
        (f"{HERE}, key: {SECRET}, database: bank", "container is missing"),
        (f"{HERE}, key: {SECRET}, {WHAT}, mode: all_versions", "requires `start: latest`"),
        (f"{HERE}, key: {SECRET}, {WHAT}, mode: newest", "must be"),
        (f"{HERE}, key: {SECRET}, {WHAT}, page_items_max: 0", "page_items_max"),
    ],
)
def test_what_does_not_go_together_is_told_without_a_secret(fields: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        feed(fields)
    assert len(error.value.problems) == 1
    assert expected in str(error.value)
    assert SECRET not in str(error.value)


def test_the_example_of_the_docs_is_fine_as_it_stands() -> None:
    accounts = {
        name: f"AccountEndpoint=https://{name.lower()}.documents.azure.com:443/;AccountKey={SECRET};"
        for name in ("BANK_COSMOS", "LEASES_COSMOS")
    }
    path = Path(__file__).parents[4] / "docs" / "examples" / "bank-cosmos.yaml"
    found = load(path, {**accounts, "LEASEHOLD_POSTGRES_DSN": "postgresql://localhost/bank"})
    assert found.leases.type == found.pipelines[0].feed.type == "cosmos"
    assert "LEASES_COSMOS=" in path.read_text()


def executors_read(fields: str) -> CosmosFeedSettings:
    text = (
        f"pipelines: [{{name: a, feed: {{type: cosmos, {fields}, {WHAT}}}, sql: SELECT * FROM events, executors_read: true,"
        " sink: {type: log, path: x}}]"
    )
    found = parse(text, {}, folder=Path("/etc/leasehold")).pipelines[0].feed
    assert isinstance(found, CosmosFeedSettings)
    return found


@pytest.mark.parametrize(
    "access", [f"{HERE}, key: {SECRET}", f"connection_string: 'AccountEndpoint=https://a.b;AccountKey={SECRET};'"]
)
async def test_with_a_key_executors_need_a_variable(access: str) -> None:
    with pytest.raises(ConfigurationError, match="`executors_read` has no effect: set the feed's `executors_env`"):
        executors_read(access)
    made = executors_read(f"{access}, executors_env: ACCOUNT_KEY").make(FeedContext())
    assert made.range_reader() is not None
    await made.close()


async def test_with_an_identity_executors_need_no_variable() -> None:
    made = executors_read(f"{HERE}, identity: default").make(FeedContext())
    assert made.range_reader() is not None
    await made.close()
