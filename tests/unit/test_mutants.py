"""Planted faults are code, too: a change of the product must not leave them behind."""

from __future__ import annotations

from lab.simulation.mutants import MUTANTS, is_sound


def test_each_mutant_has_a_name_of_its_own_and_still_changes_the_code() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(is_sound(mutant) for mutant in MUTANTS)
