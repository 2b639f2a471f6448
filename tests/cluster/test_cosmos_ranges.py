"""Spark's executors read a container, on the wire server."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from cluster.ranged_host import read_in_spark
from connectors.cosmos.bank import Bank, banked
from plugins_cosmos import Cosmos

pytestmark = pytest.mark.timeout(300)
SQL = "SELECT partition, properties['id'] AS id, get_json_object(string(body), '$.account') AS account FROM events"


async def test_executors_read_a_container_with_the_key_of_their_environment(cosmos: Cosmos) -> None:
    async with banked(cosmos) as bank:
        account = bank.account_in("0")
        for _ in range(60):
            await bank.create_together(account, 5)
        await bank.create(bank.account_in("1"))
        rows, ranges = await read_in_spark(
            *("cosmos", {"endpoint": cosmos.endpoint, "container": Bank.name}, SQL, 50, 10),
            secret=cosmos.key,
            key=cosmos.key,
            port=urlsplit(cosmos.endpoint).port or 0,
            hold=lambda: cosmos.control.fault("delay", "feed.*", delay_s=2.0, times=4),
        )
    assert ranges == 5
    assert rows == [{"partition": "0", "id": f"t{n}", "account": account} for n in range(1, 251)]
