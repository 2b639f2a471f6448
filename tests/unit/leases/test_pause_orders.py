"""What operators order: the document, and what is read out of a group's documents, whatever stands in them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from leasehold.leases.errors import GroupMoved, InvalidDocument, StoreConflict
from leasehold.leases.host_record import host_id
from leasehold.leases.moves import Move, PausedBefore
from leasehold.leases.pause_orders import (
    GROUP_PREFIX,
    NO_CONTROLS,
    Control,
    check_not_moved,
    control_id,
    controls_in,
    decode_control,
    encode_control,
    order,
)
from leasehold.leases.store import Stored
from leasehold.leases.stores.memory import MemoryStore

PAUSE = Control(pipeline="bank", paused=True, by="alice", at="2026-01-31T12:00:00Z")


def documents(**bodies: str) -> list[Stored]:
    return [Stored(control_id(name), body, "1") for name, body in bodies.items()]


def test_an_order_comes_back_as_it_was_given_with_fields_of_later_versions() -> None:
    body = json.loads(encode_control(PAUSE)) | {"until": ["noon"]}
    found = decode_control("_control/bank", json.dumps(body))
    assert found == replace(PAUSE, unknown={"until": ["noon"]})
    assert json.loads(encode_control(found)) == body


@pytest.mark.parametrize(
    "change",
    [{"paused": "yes"}, {"paused": None}, {"version": 2}, {"pipeline": "view"}, {"by": 7}, {"at": "x" * 1000}],
)
def test_an_order_that_cannot_be_read_counts_as_a_pause_and_is_told_with_its_remedy(change: dict[str, object]) -> None:
    body = json.loads(encode_control(replace(PAUSE, paused=False))) | change
    found = controls_in(documents(bank=json.dumps(body)))
    assert found.paused == {"bank"}
    assert "POST /api/pipelines/bank/resume" in found.why("bank")
    assert "document '_control/bank'" in found.why("bank")


def test_garbage_among_orders_pauses_its_pipeline_alone() -> None:
    found = controls_in(documents(bank="{", view=encode_control(Control(pipeline="view", paused=False))))
    assert found.paused == {"bank"}


def test_documents_of_hosts_and_of_whoever_comes_later_are_no_orders() -> None:
    assert controls_in([Stored(host_id("a"), "{", "1"), Stored("_later/bank", "{", "1")]) is NO_CONTROLS


def test_why_a_pipeline_rests_names_who_said_so_and_when() -> None:
    why = controls_in(documents(bank=encode_control(PAUSE))).why("bank")
    assert why.startswith("the pipeline was paused by alice at 2026-01-31T12:00:00Z: POST /api/pipelines/bank/resume")


async def test_orders_are_listed_with_the_group_and_with_no_pipelines_leases() -> None:
    store = MemoryStore()
    assert await order(store, PAUSE) == (PAUSE, True)
    assert [stored.id for stored in await store.list(GROUP_PREFIX)] == ["_control/bank"]
    assert await store.list("bank/") == []


async def test_to_order_what_holds_already_changes_nothing() -> None:
    store = MemoryStore()
    resume = replace(PAUSE, paused=False)
    assert await order(store, resume) == (resume, False)
    assert await store.list(GROUP_PREFIX) == []
    await order(store, PAUSE)
    assert await order(store, replace(PAUSE, by="bob")) == (PAUSE, False)
    assert await order(store, resume) == (resume, True)
    assert controls_in(await store.list(GROUP_PREFIX)).paused == frozenset()


async def test_an_order_is_written_over_what_nobody_can_read() -> None:
    store = MemoryStore()
    await store.create(control_id("bank"), "{")
    assert await order(store, replace(PAUSE, paused=False)) == (replace(PAUSE, paused=False), True)
    assert controls_in(await store.list(GROUP_PREFIX)) == controls_in(
        documents(bank=encode_control(replace(PAUSE, paused=False)))
    )


async def test_of_orders_at_one_time_each_is_carried_out_or_finds_it_so_already() -> None:
    store = MemoryStore()
    given = [replace(PAUSE, by=str(n)) for n in range(4)]
    answers = await asyncio.gather(*(order(store, each) for each in given))
    assert [is_new for _, is_new in answers].count(True) == 1
    assert len({found.by for found, _ in answers}) == 1


async def test_whoever_orders_against_an_endless_loop_of_others_is_told() -> None:
    class Contested(MemoryStore):
        async def create(self, id: str, body: str) -> str:
            raise StoreConflict("somebody was quicker")

    with pytest.raises(StoreConflict):
        await order(Contested(), PAUSE)


def test_an_order_under_another_pipelines_id_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="belongs under another id"):
        decode_control(control_id("view"), encode_control(PAUSE))


MOVE = Move(
    copy="c", side="source", other="new.db", state="done", before=PausedBefore(paused=True, by="ada", at="2026-01-31")
)


@pytest.mark.parametrize("move", [MOVE, replace(MOVE, before=None), replace(MOVE, side="target", state="begun")])
def test_the_mark_of_a_copy_is_kept(move: Move) -> None:
    marked = Control(pipeline="bank", paused=True, by="x", at="now", move=move)
    assert decode_control(control_id("bank"), encode_control(marked)) == marked


@pytest.mark.parametrize("field", ["side", "state"])
def test_a_mark_with_an_unknown_word_is_unreadable_and_so_a_pause(field: str) -> None:
    body = encode_control(Control(pipeline="bank", paused=False, move=MOVE)).replace(
        f'"{field}":"{getattr(MOVE, field)}"', f'"{field}":"later"'
    )
    with pytest.raises(InvalidDocument, match=f"field '{field}' is 'later', and must be one of"):
        decode_control(control_id("bank"), body)
    assert controls_in([Stored(control_id("bank"), body, "1")]).paused == {"bank"}


def test_a_marked_pipeline_is_paused_whatever_an_earlier_release_has_ordered() -> None:
    lifted = encode_control(Control(pipeline="bank", paused=False, move=MOVE))
    controls = controls_in([Stored(control_id("bank"), lifted, "1")])
    assert controls.paused == {"bank"}
    assert "were moved to new.db" in controls.why("bank")


async def test_no_operator_lifts_the_mark_of_a_copy() -> None:
    store = MemoryStore()
    await store.create(control_id("bank"), encode_control(Control(pipeline="bank", paused=True, move=MOVE)))
    for paused in (True, False):
        with pytest.raises(GroupMoved, match=r"were moved to new\.db"):
            await order(store, Control(pipeline="bank", paused=paused))
    with pytest.raises(GroupMoved):
        await check_not_moved(store, "bank")
    await check_not_moved(store, "shop")
