"""Records of positions: what follows what, and that a damaged one is an error and never a position."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from unit.pipeline.connectors.files.sink.places import claim, output

from leasehold.pipeline.connectors.files.delta.record import (
    ROOM,
    CommitRecord,
    app_id_of,
    app_ids_in,
    claimed,
    encoded,
    ended,
    folder_for,
    moved,
    name_of,
    name_under,
    numbers_in,
    record_in,
)
from leasehold.pipeline.connectors.files.sink.storage import FilesDamaged
from leasehold.pipeline.errors import Fenced, SinkRejected

HEAD = claimed(None, claim(3, continuation="7"))


def test_a_first_claim_starts_where_the_lease_stands_and_a_later_one_where_the_table_does() -> None:
    assert (HEAD.number, HEAD.kind, HEAD.position) == (1, "claim", "7")
    batch = moved(HEAD, output(7, 9))
    assert (batch.number, batch.kind, batch.position) == (2, "batch", "9")
    again = claimed(batch, claim(4, continuation="8"))
    assert (again.number, again.kind, again.position, again.epoch) == (3, "claim", "9", 4)


def test_a_new_generation_starts_from_the_lease_and_reopens_what_has_ended() -> None:
    over = ended(moved(HEAD, output(7, 9)))
    assert claimed(over, claim(4)).ended
    with pytest.raises(SinkRejected, match="has ended at '9'"):
        moved(over, output(9, 10))
    reset = claimed(over, claim(4, generation=1, continuation="2"))
    assert (reset.position, reset.ended, reset.number) == ("2", False, over.number + 1)


def test_older_epochs_and_generations_are_refused() -> None:
    with pytest.raises(Fenced, match="belongs to 'host-3' since epoch 3") as fenced:
        claimed(HEAD, claim(2))
    assert fenced.value.epoch == 3
    with pytest.raises(SinkRejected, match="generation 0, and the table is at generation 5"):
        claimed(replace(HEAD, generation=5), claim(4))


def test_the_record_of_another_partition_is_refused() -> None:
    with pytest.raises(SinkRejected, match="case-insensitive"):
        claimed(replace(HEAD, partition="P"), claim(4))


def test_names_keep_leases_apart_and_are_found_again() -> None:
    assert app_id_of("bank", "a/b") != app_id_of("bank/a", "b")
    names = [name_of("bank", "a/b", number) for number in (3, 12, 2)]
    assert all(name.startswith(f"{folder_for('bank', 'a/b')}/") for name in names)
    assert numbers_in([*names, f"{folder_for('bank', 'a/b')}/notes.txt"]) == [12, 3, 2]
    with pytest.raises(ValueError, match="cannot be a folder"):
        app_id_of("bank", "\ud800")


def test_a_record_is_read_as_it_was_written() -> None:
    record = replace(HEAD, partition="b/ü c", position=None)
    assert record_in(encoded(record), "x") == record


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"number": -1},
        {"number": True},
        {"epoch": 2**63},
        {"epoch": "3"},
        {"ended": 0},
        {"owner": None},
        {"position": 7},
        {"more": 1},
    ],
    ids=str,
)
def test_a_record_that_was_changed_is_damaged(change: dict[str, object]) -> None:
    content = json.dumps(json.loads(encoded(HEAD)) | change).encode()
    with pytest.raises(FilesDamaged, match="'x' is"):
        record_in(content, "x")


@pytest.mark.parametrize("content", [b"", b"{half", b"[]", b"null", b"{}", b"\xff", b"[" * 5000])
def test_what_is_no_record_is_damaged(content: bytes) -> None:
    with pytest.raises(FilesDamaged):
        record_in(content, "x")


def test_all_fields_are_checked() -> None:
    """A field that was left out would be taken as it comes."""
    for name in json.loads(encoded(HEAD)):
        if name != "format":
            with pytest.raises(FilesDamaged):
                record_in(json.dumps(json.loads(encoded(HEAD)) | {name: [1]}).encode(), "x")
    assert isinstance(HEAD, CommitRecord)


def test_leases_are_known_by_the_names_of_their_records() -> None:
    names = [name_of("pipeline", "p/ü", 3), name_of("pipeline", "p/ü", 4), f"{ROOM}/stray.json"]
    assert app_ids_in(names) == {app_id_of("pipeline", "p/ü")}
    assert name_under(app_id_of("pipeline", "p/ü"), 3) == names[0]
