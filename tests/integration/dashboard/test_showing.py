"""What the dashboard shows of a group: at 4 leases and at 4,000, wide and narrow, light and dark."""

from __future__ import annotations

import re

import pytest
from integration.dashboard.conftest import Opened, faults_of_access, live, picture
from integration.dashboard.scenes import FILES, activity, owners_of, scene
from playwright.async_api import Page, expect

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("dashboard")]

JUST_OPENED = """() => {
    leasehold.model.history.clear();
    document.querySelector("#colour input:checked").dispatchEvent(new Event("change"));
    return document.querySelector("#pipelines .measure .value").textContent;
}"""
"""The lag that a pipeline's card tells before its line has a point."""


async def figure(page: Page, name: str) -> str:
    return await page.locator(".figure", has_text=name).locator(".value").inner_text()


async def test_four_leases_are_shown_by_name_with_their_owners_and_troubles(opened: Opened) -> None:
    async with scene({"bank": FILES}) as group:
        await group.give({("bank", name): f"host-{'ab'[i % 2]}" for i, name in enumerate(FILES)})
        group.feeds["bank"].append(FILES[0], [b"{}"] * 17)
        await group.announce("host-a")
        await group.announce("host-b", activity("host-b", "bank", FILES[1::2], 12000, failing=FILES[1]))
        await group.look()
        page = await opened(group.url)
        await live(page)
        await expect(page.locator("#legend")).to_have_text(re.compile("host-a2host-b2"))
        await expect(page.locator("#problems")).to_contain_text("the field 'amount' is missing")
        await expect(page.locator("#batch-rows tr")).to_have_count(2)
        await expect(page.locator("#figures")).to_contain_text("17")
        assert await page.evaluate(JUST_OPENED) == "17"
        await expect(page.locator("#figures")).to_contain_text("events, oldest")
        await expect(page.locator("#pipelines")).to_contain_text("oldest")
        await expect(page.locator("#pipelines")).to_contain_text("half within 177 ms, 99% within 7.5 s")
        assert await figure(page, "Leases with an owner") == "4"
        assert await figure(page, "Dead letters") == "2"
        assert await faults_of_access(page) == []
        await picture(page, "four-light")
        await page.emulate_media(color_scheme="dark")
        assert await faults_of_access(page, rules=["color-contrast"]) == []
        await picture(page, "four-dark")


async def test_four_thousand_leases_are_drawn_at_once_and_move_as_they_change(opened: Opened) -> None:
    leases = {"generate": [f"{i}" for i in range(800)], "transform": [f"{i}" for i in range(3200)]}
    owners = owners_of(leases, 8)
    async with scene(leases, looks="pod-1", owners=owners) as group:
        for i, partition in enumerate(leases["transform"]):
            group.feeds["transform"].append(partition, [b""] * ((i % 7) * (i % 40)))
        for pod in range(1, 9):
            await group.announce(f"pod-{pod}", activity(f"pod-{pod}", "transform", map(str, range(pod)), 40000 * pod))
        await group.look()
        page = await opened(group.url)
        await live(page)
        await expect(page.locator("#legend button")).to_have_count(8)
        await expect(page.locator("#legend")).to_contain_text("500")
        await picture(page, "many-light")

        await group.announce("pod-9")
        await group.give(dict.fromkeys(list(owners)[::9], "pod-9"))
        await group.look()
        await expect(page.locator("#legend button")).to_have_count(9)
        await expect(page.locator("#moves li").first).to_contain_text("pod-9")
        await expect(page.locator("#say")).to_contain_text("leases of transform moved from")
        await page.emulate_media(color_scheme="dark")
        await picture(page, "many-dark")

        await page.locator("#colour label", has_text="Lag").click()
        await expect(page.locator("#heat")).to_be_visible()
        await picture(page, "many-lag", is_extra=True)
        await page.locator("#view label", has_text="Table").click()
        await expect(page.locator("#page-text")).to_have_text("4,000 leases, page 1 of 80")
        await page.locator("#filters input").fill("319")
        await page.locator("#filters select[name=pipeline]").select_option(label="transform")
        await expect(page.locator("#page-text")).to_have_text("13 leases, page 1 of 1")
        await picture(page, "many-table", is_extra=True)


async def test_a_narrow_window_shows_the_same_without_scrolling_sideways(opened: Opened) -> None:
    async with scene({"bank": FILES, "balances": [f"{i}" for i in range(300)]}) as group:
        await group.give({("balances", f"{i}"): f"host-{i % 3}" for i in range(290)})
        for host in range(3):
            await group.announce(f"host-{host}", activity(f"host-{host}", "balances", "123", 100))
        await group.look()
        page = await opened(group.url, width=360)
        await live(page)
        await expect(page.locator("#legend button")).to_have_count(3)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        await picture(page, "narrow")


async def test_a_group_without_leases_says_so(opened: Opened) -> None:
    async with scene({"bank": []}) as group:
        page = await opened(group.url)
        await live(page)
        await expect(page.locator("#map-empty")).to_be_visible()
        await expect(page.locator("#host-none")).to_be_visible()
        await picture(page, "empty", is_extra=True)
