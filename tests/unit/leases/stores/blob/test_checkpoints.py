"""Checkpoint blobs move forwards, or back after a reset, also between writes of other processes."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreMissing
from leasehold.leases.import_.checkpoint_blobs import CheckpointBlob, deployments
from leasehold.leases.stores.blob.checkpoints import Checkpoint, CheckpointBlobs, checkpoint_of, compared
from leasehold.leases.stores.blob.codec import Packed
from leasehold.leases.stores.blob.container import StoredBlob

NAME = "bank.servicebus.windows.net/raw-event/$default/checkpoint/0"


class Container:
    """One container in memory. before_write: called once, before the next write. failing: raised after the next write."""

    def __init__(self) -> None:
        self.blobs: dict[str, StoredBlob] = {}
        self.writes: list[tuple[str, bool]] = []
        self.reads = 0
        self.before_write: Any = None
        self.failing: Exception | None = None
        self._etags = map(str, count())

    def put(self, name: str, metadata: dict[str, str], content: bytes = b"") -> str:
        self.blobs[name] = StoredBlob(name=name, etag=next(self._etags), metadata=metadata, content=content)
        return self.blobs[name].etag

    async def read(self, name: str, bytes_max: int) -> StoredBlob:
        self.reads += 1
        if name not in self.blobs:
            raise StoreMissing(name)
        return self.blobs[name]

    async def list_blobs(self, prefix: str) -> list[StoredBlob]:
        return [blob for name, blob in self.blobs.items() if name.startswith(prefix)]

    async def create(self, name: str, packed: Packed) -> str:
        self._interrupt()
        if name in self.blobs:
            raise StoreConflict(name)
        return self._write(name, packed)

    async def replace(self, name: str, packed: Packed, etag: str) -> str:
        self._interrupt()
        if name not in self.blobs:
            raise StoreMissing(name)
        if self.blobs[name].etag != etag:
            raise StoreConflict(name)
        return self._write(name, packed)

    def _interrupt(self) -> None:
        interrupt, self.before_write = self.before_write, None
        if interrupt is not None:
            interrupt()

    def _write(self, name: str, packed: Packed) -> str:
        self.writes.append((packed.metadata["sequencenumber"], packed.content is not None))
        kept = self.blobs[name].content if packed.content is None else packed.content
        etag = self.put(name, dict(packed.metadata), kept)
        failing, self.failing = self.failing, None
        if failing is not None:
            raise failing
        return etag

    @property
    def metadata(self) -> Any:
        return self.blobs[NAME].metadata


@pytest.fixture
def container() -> Container:
    return Container()


def blobs_in(container: Any, folder: str = "Bank.servicebus.windows.net/Raw-Event/$Default") -> CheckpointBlobs:
    return CheckpointBlobs(container, folder, interval_s=1.0)


async def test_a_blob_has_the_name_and_the_metadata_of_the_sdks(container: Container) -> None:
    assert await blobs_in(container).write("0", "41@4294967296", 0) == "written"
    stored = container.blobs[NAME]
    assert (stored.metadata, stored.content) == ({"offset": "4294967296", "sequencenumber": "41"}, b"")


async def test_checkpoints_of_other_hubs_and_groups_do_not_count(container: Container) -> None:
    blobs, others = blobs_in(container), blobs_in(container, "bank.servicebus.windows.net/raw-event/$default-2")
    for partition in "012":
        await blobs.write(partition, "1@100", 0)
    await others.write("0", "1@100", 0)
    assert (await blobs.count(), await others.count()) == (3, 1)


async def test_what_is_written_can_be_imported_again(container: Container) -> None:
    await blobs_in(container).write("0", "41@4294967296", 3)
    blob = CheckpointBlob(name=NAME, metadata=container.metadata)
    ((_, deployment),) = deployments("checkpointstore", [blob], pipeline="bank").items()
    (found,) = deployment.candidates
    assert found.lease is not None
    assert (found.partition, found.lease.continuation) == ("0", "41@4294967296")


async def test_a_checkpoint_moves_forwards_with_one_request_each(container: Container) -> None:
    blobs = blobs_in(container)
    for number in (1, 5, 5, 9):
        await blobs.write("0", f"{number}@{number}00", 0)
    assert container.writes == [("1", True), ("5", False), ("9", False)]
    assert container.reads == 1


async def test_it_never_moves_back(container: Container) -> None:
    container.put(NAME, {"offset": "900", "sequencenumber": "9"})
    assert await blobs_in(container).write("0", "8@800", 0) == "unchanged"
    assert container.metadata["sequencenumber"] == "9"


async def test_a_former_owner_does_not_overwrite_a_newer_checkpoint(container: Container) -> None:
    former, newer = blobs_in(container), blobs_in(container)
    await former.write("0", "5@500", 0)
    await newer.write("0", "9@900", 0)
    assert await former.write("0", "7@700", 0) == "unchanged"
    container.before_write = lambda: container.put(NAME, {"offset": "1200", "sequencenumber": "12"})
    assert await former.write("0", "10@1000", 0) == "unchanged"
    assert container.metadata["sequencenumber"] == "12"


async def test_a_reset_moves_it_back_and_outranks_owners_from_before(container: Container) -> None:
    former, newer = blobs_in(container), blobs_in(container)
    await former.write("0", "500@5000", 0)
    assert await newer.write("0", "100@1000", 1) == "written"
    assert await former.write("0", "501@5010", 0) == "outdated"
    assert container.metadata == {"offset": "1000", "sequencenumber": "100"}


async def test_resets_are_still_counted_after_a_checkpoint_of_an_sdk(container: Container) -> None:
    blobs = blobs_in(container)
    await blobs.write("0", "100@1000", 2)
    container.put(NAME, {"offset": "9000", "sequencenumber": "900"}, container.blobs[NAME].content)
    assert await blobs_in(container).write("0", "200@2000", 2) == "unchanged"
    assert await blobs_in(container).write("0", "300@3000", 3) == "written"


async def test_a_reset_to_the_beginning_is_the_offset_before_all(container: Container) -> None:
    blobs = blobs_in(container)
    assert await blobs.write("0", None, 0) == "unchanged"
    assert container.blobs == {}
    await blobs.write("0", "5@500", 0)
    assert await blobs.write("0", None, 1) == "written"
    assert container.metadata == {"offset": "-1", "sequencenumber": "-1"}
    assert await blobs.write("0", "0@0", 1) == "written"


async def test_a_position_that_clients_of_the_sdks_fail_on_is_not_written(container: Container) -> None:
    for position in ("41", "@4294967296"):
        assert await blobs_in(container).write("0", position, 0) == "unchanged"
    assert container.blobs == {}


async def test_after_a_lost_answer_the_blob_is_read_again(container: Container) -> None:
    blobs = blobs_in(container)
    await blobs.write("0", "1@100", 0)
    container.failing = StoreAmbiguous("lost")
    with pytest.raises(StoreAmbiguous):
        await blobs.write("0", "2@200", 0)
    assert await blobs.write("0", "2@200", 0) == "unchanged"
    assert await blobs.write("0", "3@300", 0) == "written"


async def test_a_blob_that_was_deleted_is_created_again(container: Container) -> None:
    blobs = blobs_in(container)
    await blobs.write("0", "1@100", 4)
    assert await blobs.write("0", "2@200", 3) == "outdated"
    container.blobs.clear()
    assert await blobs.write("0", "2@200", 3) == "written"
    container.blobs.clear()
    assert await blobs.write("0", "3@300", 3) == "written"
    assert container.blobs[NAME].content == b"3"


async def test_a_program_that_writes_in_a_loop_is_reported(container: Container) -> None:
    def interrupt() -> None:
        container.put(NAME, {"offset": "1", "sequencenumber": "1"})
        container.before_write = interrupt

    container.before_write = interrupt
    with pytest.raises(StoreConflict, match="look for another program that writes it"):
        await blobs_in(container).write("0", "2@200", 0)


@pytest.mark.parametrize("metadata", [{}, {"sequencenumber": "many"}, {"sequencenumber": "", "offset": "7"}])
async def test_unreadable_checkpoints_are_overwritten(container: Container, metadata: dict[str, str]) -> None:
    container.put(NAME, metadata, b"not a number")
    assert await blobs_in(container).write("0", "1@100", 0) == "written"


def test_nothing_and_the_beginning_are_the_same_for_readers() -> None:
    beginning = checkpoint_of(None, 5)
    assert beginning is not None
    assert compared(None, beginning) == "unchanged"
    assert compared(Checkpoint(generation=4, sequence=-1), beginning) == "written"
