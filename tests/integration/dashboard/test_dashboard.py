"""The dashboard in a browser: as the group changes, where the API is away, to whom, and by keyboard."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
from integration.dashboard.conftest import Opened, faults_of_access, live, picture
from integration.dashboard.scenes import FILES, activity, lively, processor, scene, served
from playwright.async_api import Page, expect

from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.service.api.auth import Access, Tokens

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.xdist_group("dashboard")]


# Live


async def test_a_rebalance_is_seen_as_it_happens(opened: Opened) -> None:
    """Hosts at work: a third joins two, takes its share by handoffs, and the page shows it without being loaded again."""
    store, feeds = MemoryStore(), {"bank": MemoryChangeFeed([f"{i}" for i in range(12)])}
    async with AsyncExitStack() as stack:
        hosts = [processor(f"host-{name}", store, feeds) for name in "abc"]
        for host in hosts[:2]:
            stack.push_async_callback(host.stop)
            await host.start()
        await stack.enter_async_context(lively(feeds["bank"]))
        page = await opened(await stack.enter_async_context(served(hosts[0])))
        await expect(page.locator("#legend")).to_have_text(re.compile("host-a6host-b6"))
        await expect(page.locator("#host-rows")).to_contain_text("answers here")
        await page.evaluate("window.isTheSamePage = true")
        await picture(page, "rebalance-before")
        stack.push_async_callback(hosts[2].stop)
        await hosts[2].start()
        await expect(page.locator("#legend")).to_have_text(re.compile("host-a4host-b4host-c4"))
        await expect(page.locator("#moves")).to_contain_text("host-c")
        await expect(page.locator("#say")).to_contain_text("to host-c")
        await expect(page.locator("#host-rows tr", has_text="host-b")).to_contain_text(re.compile("now|s ago"))
        await expect(page.locator(".figure", has_text="Throughput").locator(".value")).to_have_text(re.compile(r"\d"))
        await expect(page.locator(".rate .line")).to_have_attribute("d", re.compile("L"))
        line = await page.locator(".rate .line").get_attribute("d")
        assert all(0 <= float(x) <= 1000 for x in re.findall(r"[ML]([-\d.]+)", line or "")), line
        await picture(page, "rebalance-after")
        assert await page.evaluate("window.isTheSamePage")


async def test_an_api_that_is_away_is_told_and_found_again(opened: Opened) -> None:
    async with scene({"bank": FILES}) as group:
        await group.look()
        async with served(group.looks) as url:
            page = await opened(url)
            await live(page)
        await expect(page.locator("#away")).to_contain_text("The API has been away")
        await expect(page.locator("#status-text")).to_have_text("Not up to date")
        await picture(page, "away", is_extra=True)
        async with served(group.looks, port=int(url.rpartition(":")[2])):
            await live(page)
            await expect(page.locator("#away")).to_be_hidden()


async def test_a_stream_that_breaks_after_minutes_is_soon_followed_again(page: Page) -> None:
    """On a clock of the page's own: the host seems silent for ten minutes."""
    assert page.context.browser is not None
    async with scene({"bank": FILES}) as group, await page.context.browser.new_page() as own:
        await group.look()
        await own.clock.install()
        await own.goto(group.url)
        await live(own)
        await own.clock.fast_forward("10:00")
        await group.give({("bank", FILES[0]): "host-z"})
        await expect(own.locator("#legend")).to_contain_text("host-z")


ANSWERS = """async () => {
    const model = await import("/dashboard/model.js");
    const group = model.emptyModel();
    const lease = (owner, epoch) => [{pipeline: "bank", partition: "a", state: "owned", owner, epoch}];
    const host = (tick, events, at, live = true) => model.takeHosts(group, [{name: "host-a", this: false, live, started_at: "",
        tick, totals: [{pipeline: "bank", events, batches: 1, dead_letters: 0}]}], at);
    const moves = [["host-a", 1], ["host-b", 2], ["host-a", 1], ["host-b", 2]].map(
        ([owner, epoch]) => model.takeLeases(group, lease(owner, epoch), 0).map(({from, to}) => `${from} ${to}`));
    const rates = [[1, 0, 0], [1, 0, 5000], [2, 1000, 10000], [1, 0, 11000], [3, 3000, 20000], [3, 3000, 21000, false]].map(
        (told) => (host(...told), model.rateOf(group, "bank")));
    return {moves, rates, heard: group.heard.get("host-a").at};
}"""


async def test_answers_that_are_older_than_the_last_one_are_neither_moves_nor_heartbeats(opened: Opened) -> None:
    """Behind one address answer many hosts, and each has its own moment."""
    async with scene({"bank": []}) as group:
        page = await opened(group.url)
        told = await page.evaluate(ANSWERS)
    assert told["moves"] == [[], ["host-a host-b"], [], []]
    assert told["rates"] == [None, None, 100, 100, 150, None], "of the last heartbeats, and of hosts that live"
    assert told["heard"] == 20000


REPORTS = """async () => {
    const model = await import("/dashboard/model.js");
    const group = model.emptyModel();
    return Array.from({length: 40}, (_, tick) => {
        const reported = Math.min(Math.floor(tick / 4), 5) * 4;
        const totals = [{pipeline: "bank", events: reported * 300, batches: reported, dead_letters: 0}];
        model.takeHosts(group, [{name: "host-a", this: false, live: true, started_at: "", tick, totals}], tick * 3000);
        return model.rateOf(group, "bank");
    });
}"""


async def test_a_rate_is_that_between_reports_which_are_rarer_than_heartbeats(opened: Opened) -> None:
    """A heartbeat each 3 s, and 100 events/s that are reported each 12 s. After a minute, there are no more."""
    async with scene({"bank": []}) as group:
        page = await opened(group.url)
        rates = await page.evaluate(REPORTS)
    assert rates[:4] == [None] * 4
    assert set(rates[4:25]) == {100}
    assert rates[-1] == 0


# To whom


async def test_who_has_no_token_is_asked_for_one_that_stays_in_the_tab(opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "readers").write_text("a-token-for-readers\n")
    async with scene({"bank": FILES}, access=Access(readers=Tokens(tmp_path / "readers"))) as group:
        await group.look()
        async with httpx.AsyncClient(base_url=group.url) as client:
            assert (await client.get("/")).status_code == 200
            assert (await client.get("/api/leases")).status_code == 401
        page = await opened(group.url)
        field = page.locator("#token-input")
        await expect(field).to_be_visible()
        await picture(page, "token", is_extra=True)
        assert await page.locator("#legend button").count() == 0
        for given in ("a-token-of-nobody", "a-token-for-readers"):
            await expect(field).to_have_value("")
            await field.fill(given)
            await field.press("Enter")
        await live(page)
        kept = await page.evaluate(
            "[Object.values(sessionStorage), Object.values(localStorage), document.cookie, location.href]"
        )
        assert kept == [["a-token-for-readers"], [], "", f"{group.url}/"]


HOSTILE = [
    "<img src=x onerror=\"document.title='taken'\">",
    "\"><script>document.title='taken'</script>",
    "</title></textarea></script><svg onload=document.title='taken'>",
    "javascript:alert(1)",
    "{{7*7}}${7*7}",
    "\u202egnp.exe",
    "a\x00b\r\nc",
    "x" * 500,
    "__proto__",
]


async def test_names_are_text_whatever_they_hold(opened: Opened) -> None:
    """Lease documents are written by whoever reaches the container."""
    async with scene({"bank": HOSTILE, "__proto__": ["constructor"]}) as group:
        await group.give({("bank", name): name for name in HOSTILE})
        for name in HOSTILE:
            await group.announce(name, activity(name, "bank", HOSTILE[:3], 7, failing=name), started_at=name[:60])
        await group.look()
        page = await opened(group.url)
        await live(page)
        await expect(page.locator("#host-rows tr")).to_have_count(len(HOSTILE))
        await page.locator("#view label", has_text="Table").click()
        await expect(page.locator("#lease-rows tr")).to_have_count(len(HOSTILE) + 1)
        assert await faults_of_access(page, "#leases") == []
        await page.locator("#lease-rows button", has_text="onerror").click()
        await expect(page.locator("#lease .facts")).to_contain_text("Epoch")
        await picture(page, "hostile", is_extra=True)
        assert await page.locator("img, script, iframe").count() == 2, "the page's own icon and script"
        assert "taken" not in await page.title()
        assert HOSTILE[0] in await page.locator("#host-rows").inner_text()
        assert "\u202e" not in await page.locator("body").inner_text()


# By keyboard


async def test_the_map_is_walked_by_keys_and_said(opened: Opened) -> None:
    async with scene({"bank": FILES}) as group:
        await group.give({("bank", name): "host-a" for name in FILES[:3]})
        await group.look()
        page = await opened(group.url)
        await live(page)
        await page.keyboard.press("Tab")
        await expect(page.get_by_text("Skip to the leases")).to_be_focused()
        await page.locator("#map").focus()
        for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
            await page.keyboard.press(key)
        await expect(page.locator("#say")).to_have_text("transactions-2.csv of bank, host-a, 0 events behind")
        await page.keyboard.press("End")
        await expect(page.locator("#say")).to_have_text("transactions-4.csv of bank, available, 0 events behind")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_contain_text("transactions-4.csv")
        await expect(page.get_by_role("dialog")).to_contain_text("Generation")
        assert await faults_of_access(page, "#lease") == []
        await picture(page, "lease", is_extra=True)
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_be_hidden()
        await expect(page.locator("#map")).to_be_focused()
