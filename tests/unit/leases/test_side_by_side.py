"""Many requests at once, but not all."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.leases.side_by_side import AT_ONCE_MAX, rounds_of, run_side_by_side


@pytest.mark.virtual
async def test_so_many_are_at_work_at_once_and_results_come_in_order() -> None:
    at_work, most, handled = 0, 0, list[int]()

    async def step(item: int) -> int:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        assert asyncio.current_task().get_name() == f"doubling {item}"  # type: ignore[union-attr]
        await asyncio.sleep(1.0 if item % 3 else 0.1)
        at_work -= 1
        return 2 * item

    items = range(3 * AT_ONCE_MAX)
    results = await run_side_by_side(items, step, doing="doubling", then=lambda item, result: handled.append(item))
    assert results == [2 * item for item in items]
    assert handled == list(items)
    assert most == AT_ONCE_MAX
    assert asyncio.get_running_loop().time() <= rounds_of(len(items))


@pytest.mark.virtual
async def test_what_fails_ends_the_others_and_is_raised() -> None:
    ended: list[int] = []

    async def step(item: int) -> None:
        if item == 1:
            raise ValueError("one")
        await asyncio.sleep(item)
        ended.append(item)

    with pytest.raises(ValueError, match="one"):
        await run_side_by_side(range(5), step, doing="failing")
    await asyncio.sleep(10)
    assert ended == [0]


@pytest.mark.parametrize(("items", "rounds"), [(0, 0), (1, 1), (AT_ONCE_MAX, 1), (AT_ONCE_MAX + 1, 2)])
def test_rounds(items: int, rounds: int) -> None:
    assert rounds_of(items) == rounds
