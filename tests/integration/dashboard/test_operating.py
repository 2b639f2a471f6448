"""What operators do on the dashboard: with which token, after which question, and what they are told came of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from integration.dashboard.conftest import Opened, picture
from integration.dashboard.scenes import Group, scene
from playwright.async_api import Page, expect

from leasehold.service.api.auth import Access, Tokens

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("dashboard")]
LEASE = ("bank", "a/1")
READER, OPERATOR = "a-token-for-readers", "a-token-for-operators"


async def opened_lease(opened: Opened, group: Group) -> Page:
    page = await opened(group.url)
    await page.locator("#map").press("Home")  # before there are leases: nothing to go to
    await expect(page.locator("#status-text")).to_contain_text("Live")
    await page.locator("#map").press("Home")
    await page.locator("#map").press("Enter")
    await expect(page.locator("#lease .facts")).to_contain_text("Generation")
    return page


async def fact(page: Page, name: str) -> str:
    return await page.locator(f"#lease .facts dt:text-is('{name}') + dd").inner_text()


async def test_a_reset_is_asked_for_twice_and_begins_a_new_generation(opened: Opened) -> None:
    async with scene({"bank": [LEASE[1]]}) as group:
        group.feeds["bank"].append(LEASE[1], [b"{}"] * 5)
        await group.look()
        page = await opened_lease(opened, group)
        await page.get_by_role("button", name="Reset position").click()
        await page.get_by_label("New position").fill("latest")
        await page.get_by_role("button", name="Reset", exact=True).click()
        await expect(page.locator("#confirm"), "the box has to be ticked").to_be_visible()
        await picture(page, "reset", is_extra=True)
        assert (await group.looks.keeper.read(*LEASE)).lease.generation == 0
        await page.get_by_role("checkbox").check()
        await page.get_by_role("button", name="Reset", exact=True).click()
        await expect(page.locator("#lease .outcome")).to_have_text("Reset to latest: done.")
        assert await fact(page, "Generation") == "1"
        lease = (await group.looks.keeper.read(*LEASE)).lease
        assert (lease.generation, lease.continuation) == (1, "5")


async def test_a_lease_is_closed_and_a_reset_opens_it(opened: Opened) -> None:
    async with scene({"bank": [LEASE[1]]}) as group:
        group.feeds["bank"].partitions_finish = True
        await group.look()
        page = await opened_lease(opened, group)
        await page.get_by_role("button", name="Close lease").click()
        await page.get_by_role("button", name="Close the lease", exact=True).click()
        await expect(page.locator("#lease .outcome")).to_have_text("Close the lease: done.")
        await expect(page.locator("#lease .actions")).to_contain_text("An operator closed it")
        assert (await group.looks.keeper.read(*LEASE)).lease.tombstone
        await page.get_by_role("button", name="Reset position").click()
        await page.get_by_label("New position").fill("earliest")
        await page.get_by_role("checkbox").check()
        await page.get_by_role("button", name="Reset", exact=True).click()
        await expect(page.locator("#lease .outcome")).to_have_text("Reset to earliest: done.")
        assert not (await group.looks.keeper.read(*LEASE)).lease.closed


async def test_a_lease_that_has_changed_since_it_was_shown_is_not_reset(opened: Opened) -> None:
    async with scene({"bank": [LEASE[1]]}) as group:
        await group.look()
        page = await opened_lease(opened, group)
        await page.get_by_role("button", name="Reset position").click()
        await page.get_by_label("New position").fill("earliest")
        await page.get_by_role("checkbox").check()
        await group.give({LEASE: "host-b"})
        await page.get_by_role("button", name="Reset", exact=True).click()
        await expect(page.locator("#lease .outcome")).to_contain_text("Reset to earliest:")
        await expect(page.locator("#lease .outcome")).to_have_class("outcome failed")
        assert (await group.looks.keeper.read(*LEASE)).lease.generation == 0


async def test_who_only_reads_is_asked_for_an_operators_token_and_goes_on_with_it(
    opened: Opened, tmp_path: Path
) -> None:
    (tmp_path / "readers").write_text(READER)
    (tmp_path / "operators").write_text(f"alice {OPERATOR}")
    access = Access(readers=Tokens(tmp_path / "readers"), operators=Tokens(tmp_path / "operators"))
    async with scene({"bank": [LEASE[1]]}, access=access) as group:
        await group.give({LEASE: "host-b"})
        await group.look()
        page = await opened(group.url)
        await page.locator("#token-input").fill(READER)
        await page.locator("#token-input").press("Enter")
        await page.get_by_role("button", name="Pause bank").click()
        await page.get_by_role("button", name="Pause", exact=True).last.click()
        await expect(page.locator("#token-why")).to_contain_text("This is for operators")
        await page.locator("#token-input").fill(OPERATOR)
        await page.locator("#token-input").press("Enter")
        await expect(page.locator(".card")).to_contain_text("paused by alice")
        await page.get_by_role("button", name="Resume bank").click()
        await expect(page.locator(".card")).not_to_contain_text("paused by alice")


async def test_a_lease_is_handed_over_and_released(opened: Opened) -> None:
    async with scene({"bank": [LEASE[1]]}) as group:
        await group.give({LEASE: "host-a"})
        for host in ("host-a", "host-b"):
            await group.announce(host)
        await group.look()
        page = await opened_lease(opened, group)
        await page.get_by_role("button", name="Hand over").click()
        await expect(page.locator("#lease .outcome")).to_have_text("Hand over to host-b: done.")
        assert (await group.looks.keeper.read(*LEASE)).lease.handoff_to == "host-b"
        await page.get_by_role("button", name="Release").click()
        await page.get_by_role("button", name="Release", exact=True).click()
        await expect(page.locator("#lease .outcome")).to_have_text("Release: done.")
        assert await fact(page, "Owner") == "no owner"
