"""The control page of each emulator in a browser: it shows what there is, and its buttons send orders."""

from __future__ import annotations

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from browsers import PATIENCE_MS, blank_page, complaints
from playwright.async_api import expect
from plugins_servers import served

expect.set_options(timeout=PATIENCE_MS)


@pytest.mark.parametrize("kind", ["cosmos", "eventhubs", "blob"])
async def test_the_page_shows_what_there_is_and_sends_orders(kind: str) -> None:
    async with blank_page() as page:
        with served(f"leasehold_emulators.{kind}") as (said, _), complaints(page) as found:
            if kind == "cosmos":
                with CosmosClient(said["endpoint"], said["key"]) as client:
                    client.create_database("bank").create_container("tx", PartitionKey("/account"))
            await page.goto(said["control"])
            await page.get_by_role("button", name="Start the fault").click()
            await expect(page.get_by_role("status")).to_contain_text('fault: {"number":1}')
            await expect(page.get_by_role("button", name="End", exact=True)).to_have_count(1)
            await page.get_by_role("button", name="End all").click()
            await expect(page.get_by_role("button", name="End", exact=True)).to_have_count(0)
            times = page.get_by_label("How many requests, or empty for all")
            await times.fill("many")
            await page.get_by_role("button", name="Start the fault").click()
            await expect(page.get_by_role("status")).to_contain_text("times: 'many' must be a whole number")
            await times.fill("")
            seconds = page.get_by_label("Seconds of a delay")
            await expect(seconds).to_be_hidden()
            await page.get_by_label("Fault", exact=True).select_option("delay")
            await seconds.fill("2.5")
            await page.get_by_role("button", name="Start the fault").click()
            await expect(page.get_by_role("status")).to_contain_text('fault: {"number":2}')
            [fault] = (await (await page.request.get(f"{said['control']}state")).json())["faults"]
            assert (fault["do"], fault["delay_s"]) == ("delay", 2.5)
            await page.get_by_role("button", name="End all").click()
            if kind == "cosmos":
                await expect(page.get_by_role("heading", name="bank/tx, key /account")).to_be_visible()
                await page.get_by_role("button", name="Split").click()
                await expect(page.get_by_role("button", name="Split")).to_have_count(2)
                await page.get_by_role("button", name="Merge with 2").click()
                await expect(page.get_by_role("button", name="Split")).to_have_count(1)
            if kind == "eventhubs":
                await page.get_by_role("button", name="Add a partition").first.click()
                await expect(page.get_by_role("status")).to_contain_text('grow: {"partitions":5}')
        assert found == []
