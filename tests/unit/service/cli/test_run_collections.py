"""How long a host stands still while Python collects garbage."""

from __future__ import annotations

import gc
import weakref

import pytest

from leasehold.service.cli.run import COLLECTION_S_MAX, THAW_S, short_collections


class Cycle:
    def __init__(self) -> None:
        self.me = self


class Clock:
    """Passes `step_s` with each look at it."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now += self.step_s
        return self.now


def test_what_survives_a_long_collection_is_not_looked_at_again() -> None:
    kept = Cycle()
    with short_collections(Clock(2 * COLLECTION_S_MAX)):
        gc.collect()
        frozen = gc.get_freeze_count()
        died = weakref.ref(kept)
        del kept
        gc.collect()
        assert died() is not None
    assert frozen > 10_000


def test_frozen_garbage_is_collected_once_an_hour() -> None:
    clock, kept = Clock(2 * COLLECTION_S_MAX), Cycle()
    with short_collections(clock):
        gc.collect()
        died = weakref.ref(kept)
        del kept
        clock.now += THAW_S
        gc.collect()
        assert died() is None
        assert gc.get_freeze_count() > 10_000  # what survived is frozen again


@pytest.mark.parametrize("generation", [0, 1, 2])
def test_short_collections_freeze_nothing(generation: int) -> None:
    before = gc.get_freeze_count()
    with short_collections(Clock(COLLECTION_S_MAX / 10 if generation == 2 else 1.0)):
        gc.collect(generation)
        assert gc.get_freeze_count() == before


def test_nothing_stays_frozen_behind_a_host() -> None:
    with short_collections(Clock(2 * COLLECTION_S_MAX)):
        gc.collect()
    assert gc.get_freeze_count() == 0
    assert not [each for each in gc.callbacks if each.__module__ == "leasehold.service.cli.run"]
