"""What receives notifications is checked before a host starts: it would miss events without a word."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime
from typing import Any

import pytest

from leasehold.service.notifications import (
    METHODS,
    LeaseAcquired,
    LeaseLoss,
    Notification,
    Notifications,
    PartitionNotification,
    require_notifications,
    wanted_by,
)

ALL: dict[str, Any] = {"host": "host-a", "at": datetime(2026, 1, 31, tzinfo=UTC)}
COMMON = {**ALL, "pipeline": "bank", "partition": "7"}


def made(**members: Any) -> Notifications:
    kind: type[Notifications] = type("Pager", (Notifications,), members)
    return kind()


def test_each_event_has_a_method_and_each_method_an_event() -> None:
    kinds = {
        each.__name__
        for base in (Notification, PartitionNotification)
        for each in base.__subclasses__()
        if each.__name__ != "PartitionNotification"  # slots make a class of it twice
    }
    assert {each.__name__ for each in METHODS} == kinds
    assert set(METHODS.values()) == {name for name in vars(Notifications) if name.startswith("on_")}


@pytest.mark.parametrize("kind", METHODS)
def test_each_method_does_nothing_until_it_is_overridden(kind: type[Notification]) -> None:
    event = kind(**ALL, **{each.name: None for each in fields(kind) if each.name not in ALL})
    assert getattr(Notifications(), METHODS[kind])(event) is None


def test_events_do_not_change() -> None:
    event = LeaseAcquired(**COMMON, epoch=3, continuation=None)
    with pytest.raises(FrozenInstanceError):
        event.epoch = 4  # type: ignore[misc]


def test_only_events_of_overridden_methods_are_wanted() -> None:
    assert wanted_by(Notifications()) == frozenset()
    assert wanted_by(made(on_lease_lost=lambda self, event: None)) == {LeaseLoss}
    pager = Notifications()
    pager.on_lease_acquired = lambda event: None  # type: ignore[method-assign]
    assert wanted_by(pager) == {LeaseAcquired}


def test_a_method_may_be_plain_or_a_coroutine_and_others_have_any_name() -> None:
    class Pager(Notifications):
        async def on_lease_lost(self, event: LeaseLoss) -> None: ...

        def on_lease_acquired(self, event: LeaseAcquired) -> None: ...

        def ring(self) -> None: ...

    pager = Pager()
    assert require_notifications(pager) is pager


def test_a_class_instead_of_an_object_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^Notifications is a class: pass an object of it, Notifications\(\)$"):
        require_notifications(Notifications)


def test_what_does_not_derive_from_the_base_class_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"^it is of type function, which does not derive from leasehold\.Notifications"
    ):
        require_notifications(lambda event: None)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("on_lease_aquired", "did you mean `on_lease_acquired`?"),
        ("lease_lost", "did you mean `on_lease_lost`?"),
        (
            "on_x",
            (
                "known are on_batch_delivered, on_host_joined, on_host_left, on_lease_acquired, on_lease_lost,"
                " on_lease_released, on_partition_failing, on_partition_recovered, on_trust_restored, on_trust_suspended"
            ),
        ),
    ],
)
def test_a_method_that_is_never_called_is_reported_with_the_nearest_one(name: str, hint: str) -> None:
    with pytest.raises(TypeError) as refused:
        require_notifications(made(**{name: lambda self, event: None}))
    assert str(refused.value) == f"`Pager.{name}` is never called: {hint}"


def test_a_generator_function_is_refused_because_a_call_of_it_runs_nothing() -> None:
    class Pager(Notifications):
        def on_lease_acquired(self, event: LeaseAcquired) -> Any:
            yield

        async def on_lease_lost(self, event: LeaseLoss) -> Any:
            yield

    with pytest.raises(TypeError) as refused:
        require_notifications(Pager())
    problem = "is a generator function, so calling it runs nothing: remove `yield` from it"
    where = Pager.__qualname__
    assert str(refused.value) == f"`{where}.on_lease_acquired` {problem}; `{where}.on_lease_lost` {problem}"


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(TypeError) as refused:
        require_notifications(made(on_lease_lost=None, on_lease_acquired=lambda self: None))
    assert str(refused.value) == (
        "`Pager.on_lease_acquired` does not take what it is called with: (event);"
        " `Pager.on_lease_lost` is of type NoneType, not a method: define it with `def` or `async def`"
    )
