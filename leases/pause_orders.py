"""Operators' orders for a whole pipeline: one document each, which every host reads with every scan and obeys.

No host processes a paused pipeline. Owners finish or drop the current batch, checkpoint and release, and no host takes
the leases until the pipeline is resumed. The documents are listed together with the hosts', so they cost no extra
request.

An unreadable control document counts as a pause: it exists because an operator once gave an order, and waiting loses
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from leasehold.leases.document import NAME_BYTES_MAX, Fields, to_json
from leasehold.leases.errors import InvalidDocument, StoreConflict, StoreMissing
from leasehold.leases.moves import Move, move_fields, move_in, refuse_moved
from leasehold.leases.store import LeaseStore, Stored

GROUP_PREFIX = "_"
"""Lists the documents of the whole group: the hosts' documents and these."""
CONTROL_PREFIX = "_control/"
VERSION = 1
CONFLICTS_MAX = 4

_FIELDS = frozenset(("version", "pipeline", "paused", "by", "at", "move"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """An operator's order. move: the mark of a copy to another lease store, which an operator's order does not lift."""

    pipeline: str
    paused: bool
    by: str = ""
    at: str = ""
    move: Move | None = None
    unknown: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """All orders of a group."""

    orders: Mapping[str, Control] = field(default_factory=lambda: MappingProxyType({}))
    unreadable: Mapping[str, InvalidDocument] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def paused(self) -> frozenset[str]:
        """The pipelines that no host may process."""
        return frozenset(
            (*(name for name, order in self.orders.items() if order.paused or order.move), *self.unreadable)
        )

    def why(self, pipeline: str) -> str:
        """Why a pipeline is paused, for people."""
        if (order := self.orders.get(pipeline)) is None:
            return str(self.unreadable[pipeline])
        if order.move is not None:
            return order.move.why(pipeline, order.at)
        details = "".join((f" by {order.by}" if order.by else "", f" at {order.at}" if order.at else ""))
        return f"the pipeline was paused{details}: POST /api/pipelines/{pipeline}/resume continues it"


NO_CONTROLS = Controls()


def control_id(pipeline: str) -> str:
    return CONTROL_PREFIX + pipeline


def encode_control(control: Control) -> str:
    return to_json(
        {
            **control.unknown,
            "version": VERSION,
            "pipeline": control.pipeline,
            "paused": control.paused,
            "by": control.by,
            "at": control.at,
            **({} if control.move is None else {"move": move_fields(control.move)}),
        }
    )


def decode_control(id: str, body: str) -> Control:
    """Raises InvalidDocument."""
    fields = Fields.parse(id, body)
    fields.version(VERSION)
    control = Control(
        pipeline=fields.text("pipeline", NAME_BYTES_MAX),
        paused=fields.boolean("paused"),
        by=fields.text("by", NAME_BYTES_MAX),
        at=fields.text("at", NAME_BYTES_MAX),
        move=move_in(fields.inner("move")) if fields.has("move") else None,
        unknown=fields.unknown(_FIELDS),
    )
    if id != control_id(control.pipeline):
        fields.refuse("pipeline", f"is {control.pipeline!r}, which belongs under another id")
    return control


def controls_in(documents: Iterable[Stored]) -> Controls:
    """The orders among all documents of the group."""
    orders: dict[str, Control] = {}
    unreadable: dict[str, InvalidDocument] = {}
    for stored in documents:
        if stored.id.startswith(CONTROL_PREFIX):
            pipeline = stored.id.removeprefix(CONTROL_PREFIX)
            try:
                orders[pipeline] = decode_control(stored.id, stored.body)
            except InvalidDocument as error:
                unreadable[pipeline] = _advised(error, pipeline)
    return Controls(orders=orders, unreadable=unreadable) if orders or unreadable else NO_CONTROLS


async def check_not_moved(store: LeaseStore, pipeline: str) -> None:
    """Raises GroupMoved if the pipeline's leases were copied to another lease store, or are being copied; StoreUnavailable."""
    with suppress(StoreMissing, InvalidDocument):  # an unreadable order counts as a pause
        stored = await store.read(control_id(pipeline))
        found = decode_control(stored.id, stored.body)
        refuse_moved(found.move, pipeline, found.at)


async def order(store: LeaseStore, wanted: Control) -> tuple[Control, bool]:
    """Write an order. Returns the order that holds now, and whether it is new; repeating an order changes nothing.

    Raises GroupMoved as `check_not_moved` does, StoreConflict or StoreMissing if other writers keep interfering,
    StoreUnavailable, StoreAmbiguous.
    """
    for _ in range(CONFLICTS_MAX):
        try:
            return await _give_order(store, wanted)
        except (StoreConflict, StoreMissing):  # another writer has just given an order
            continue
    return await _give_order(store, wanted)


async def _give_order(store: LeaseStore, wanted: Control) -> tuple[Control, bool]:
    document = control_id(wanted.pipeline)
    try:
        stored = await store.read(document)
    except StoreMissing:
        if not wanted.paused:
            return wanted, False
        await store.create(document, encode_control(wanted))
        return wanted, True
    try:
        before = decode_control(stored.id, stored.body)
    except InvalidDocument:
        before = None
    if before is not None:
        refuse_moved(before.move, before.pipeline, before.at)
    if before is not None and before.paused == wanted.paused:
        return before, False
    wanted = wanted if before is None else replace(wanted, unknown=before.unknown)
    await store.replace(document, encode_control(wanted), stored.etag)
    return wanted, True


def _advised(error: InvalidDocument, pipeline: str) -> InvalidDocument:
    return InvalidDocument(
        f"{error}: until then pipeline '{pipeline}' counts as paused. POST /api/pipelines/{pipeline}/resume (or pause) writes it"
        " again"
    )
