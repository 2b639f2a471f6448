"""Dead letters in a box next to a sink: a batch's letters are put into the box before its output is sent.

The box has its own fence and position, under the same lease. If a host dies between the letters and the output, the box is
ahead: the next owner reads which events of the next batch are buried already, and leaves them out. So every event is in the
output or in a letter, and exactly once in one of the two, if the sink itself is exact.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from hashlib import sha256
from typing import NoReturn

import pyarrow as pa

from leasehold.common.nesting import parsed_json
from leasehold.common.standing import Standing
from leasehold.pipeline.async_sink.stats import RequestStats
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.dead_letters.box import LetterBox, find_buried
from leasehold.pipeline.dead_letters.dead_letter_transform import DeadLetters
from leasehold.pipeline.dead_letters.guards import too_many
from leasehold.pipeline.dead_letters.record import LEASE, Letter, dead_events, letters_of
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import FeedError, Fenced, OutputRefused, Poison, SinkRejected, SinkUnavailable
from leasehold.pipeline.handlers.stats import HandlerStats
from leasehold.pipeline.limits import JSON_LEVELS_MAX, REPLAY
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter
from leasehold.pipeline.staging import Stager

LATE_CLOSE_S = 1.0
"""How long the box's writer may take to close after the sink's writer took too long."""


def beside(sink: Sink, box: LetterBox, policy: DeadLetters | None = None) -> Sink:
    """A sink that puts dead letters into `box`. It owns both. policy: for events that the sink parks; None: it parks none."""
    return SinkBesideBox(sink, box, policy)


class SinkBesideBox(Sink):
    def __init__(self, sink: Sink, box: LetterBox, policy: DeadLetters | None = None) -> None:
        assert box.sink is not None, "the letters of a box without a sink are kept by the pipeline's sink"
        self.holds_position = sink.holds_position
        self._sink = sink
        self._letters = box.sink
        self._box = box
        self._policy = policy
        self._id = box_id(box.sink.identity)

    @property
    def identity(self) -> str:
        return self._sink.identity

    @property
    def endpoint(self) -> Endpoint:
        return self._sink.endpoint

    @property
    def handler_stats(self) -> HandlerStats | None:
        return self._sink.handler_stats

    @property
    def request_stats(self) -> RequestStats | None:
        return self._sink.request_stats

    def claimed(self, state: str) -> str:
        states = states_in(state, self._id)
        sink, letters = self._sink.claimed(states.sink), self._letters.claimed(states.letters)
        return replace(states, sink=sink, letters=letters).encoded()

    async def prepare(self) -> None:
        await self._sink.prepare()
        await self._letters.prepare()

    async def check_columns(self, columns: pa.Schema) -> None:
        await self._sink.check_columns(columns)

    async def open(self, claim: Claim) -> SinkWriter:
        """Both are fenced before the box is read, so no earlier epoch can add to it."""
        states = states_in(claim.state, self._id)
        writer, letters = await self._open(claim, states)
        place = letters.place or claim.partition
        try:
            is_ahead = claim.compare(letters.position, writer.position) > 0
            buried = await self._find_buried(claim, place, states.since, writer.position) if is_ahead else frozenset()
            since = states.since if is_ahead else await self._box.feed.latest(place)
        except BaseException as error:  # a cancellation too: the caller has neither writer yet
            await writer.close("failed")
            await letters.close("failed")
            if isinstance(error, FeedError):
                raise _unreadable(error) from error
            raise
        return WriterBesideBox(claim, writer, letters, self._box, buried, replace(states, since=since), self._policy)

    async def close(self) -> None:
        await self._sink.close()
        await self._box.close()

    async def probe(self, pipeline: str, partition: str) -> None:
        await self._sink.probe(pipeline, partition)

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        return await self._sink.standing(pipeline, partition)

    @property
    def reports_standing(self) -> bool:
        return self._sink.reports_standing

    async def _open(self, claim: Claim, states: States) -> tuple[SinkWriter, SinkWriter]:
        try:
            writer = await self._sink.open(replace(claim, state=states.sink))
        except Fenced as fenced:
            raise await self._outrank(claim, states, fenced) from fenced
        try:
            return writer, await self._letters.open(_of_letters(claim, states))
        except BaseException as error:
            await writer.close("failed")
            if isinstance(error, Fenced):
                _refence(error, lambda state: replace(states, sink=writer.state, letters=state))
            raise

    async def _outrank(self, claim: Claim, states: States, fenced: Fenced) -> Fenced:
        """The state from which the next claim outranks both the sink's and the box's epoch."""
        epoch, outranking = fenced.epoch, states
        try:
            opened = await self._letters.open(_of_letters(claim, states))
            outranking = replace(states, letters=opened.state, at=opened.position)
            await opened.close("failed")
        except Fenced as other:
            epoch = max(epoch, other.epoch)
            outranking = states if other.state is None else replace(states, letters=other.state)
        if fenced.state is not None:
            outranking = replace(outranking, sink=fenced.state)
        return Fenced(str(fenced), epoch=epoch, state=outranking.encoded())

    async def _find_buried(self, claim: Claim, place: str, since: str | None, position: str | None) -> Collection[int]:
        of_lease = (claim.pipeline, claim.partition, claim.generation)

        def is_ahead(letter: Letter) -> bool:
            is_ours = (letter.by, letter.partition, letter.generation) == of_lease
            return is_ours and claim.compare(letter.to, position) > 0

        return await find_buried(self._box, place, since, is_ahead)


class WriterBesideBox(SinkWriter):
    """One claim's way into the sink and the box. The letters are safe before the sink's writer takes the output."""

    def __init__(
        self,
        claim: Claim,
        writer: SinkWriter,
        letters: SinkWriter,
        box: LetterBox,
        buried: Collection[int],
        states: States,
        policy: DeadLetters | None = None,
    ) -> None:
        self.buried = buried
        self._claim = claim
        self._writer = writer
        self._letters = letters
        self._box = box
        self._box_id = states.box
        self._ends = deque([(letters.position, states.since)])
        """For each batch with letters: its end, and the box's end before its letters were added."""
        self._put: Output | None = None
        self._policy = policy
        self._guard = None if policy is None else policy.park_guard_of(claim.partition)
        self._settled_before = 0
        if self._guard is not None:
            self._guard.begin(buried)
            self._settled_before = self._guard.settled
        self._written: deque[tuple[str, int]] = deque()
        """The ends of the batches that are not settled, and how many rows were written up to there."""
        self._rows = 0
        self._writing_letters = asyncio.Lock()
        self.parks = writer.parks and policy is not None
        if self.parks:
            writer.park_with(self._park)

    @property
    def position(self) -> str | None:
        return self._writer.position

    @property
    def state(self) -> str:
        return self._states(self._writer.state, self._letters.state).encoded()

    async def make_stager(self, start: str | None, columns: pa.Schema) -> Stager | None:
        return await self._writer.make_stager(start, columns)

    def parts(self, output: Output) -> int:
        of_letters = 1 if output.dead is None else self._letters.parts(self._letters_in(output))
        return max(self._writer.parts(output), of_letters)

    async def follow(self) -> None:
        await self._writer.follow()
        await self._letters.follow()

    async def write(self, output: Output, permit: Permit) -> None:
        if output.dead is not None and self._put is not output:
            await self._write_letters(output, permit)
            crash_point("letters put")
            self._put = output  # if the output has to wait for trust, `write` is called again
        try:
            await self._writer.write(replace(output, dead=None), permit)
        except Fenced as fenced:
            _refence(fenced, lambda state: self._states(state, self._letters.state))
        if self.parks:
            self._rows += output.table.num_rows
            self._written.append((output.to, self._rows))
            self._note_settled()

    async def end(self, permit: Permit) -> None:
        await self._writer.end(permit)

    async def close(self, reason: CloseReason) -> None:
        self._note_settled()
        try:
            await self._writer.close(reason)
        except BaseException:  # the worker cancels a close that takes too long, and waits no longer
            with suppress(TimeoutError):
                async with asyncio.timeout(LATE_CLOSE_S):
                    await self._letters.close(reason)
            raise
        await self._letters.close(reason)

    async def _park(self, output: Output, found: Sequence[Poison], permit: Permit) -> None:
        assert self._policy is not None, "events are parked by a policy"
        assert output.source is not None, "the runner keeps the events for a writer that parks them"
        sequences = [output.source["sequence"][each.index].as_py() for each in found]
        self._refuse_too_many(sequences, found[0].reason)
        dead = dead_events(output.source, found, self._policy.now())
        await self._write_letters(replace(output, table=output.table.slice(0, 0), dead=dead, source=None), permit)
        crash_point("event parked")
        if self._guard is not None:
            self._guard.confirm(sequences)
        self.parked += len(found)

    def _refuse_too_many(self, sequences: Sequence[int], reason: str) -> None:
        """Raises SinkRejected. Events count before their letters are written, because several calls park events at the same time.

        A replay has no limit: its events are dead already, and may well become dead again.
        """
        if self._guard is None or self._claim.pipeline.endswith(REPLAY):
            return
        self._note_settled()
        if not self._guard.admit(sequences, self._settled_before + self._writer.acknowledged):
            raise SinkRejected(f"{reason}: {too_many(self._guard.most, self._guard.events)}")

    def _note_settled(self) -> None:
        """Count what the position has passed, which the next claim does not repeat."""
        while self._written and self._claim.compare(self._written[0][0], self._writer.position) <= 0:
            _, rows = self._written.popleft()
            if self._guard is not None:
                self._guard.settled = self._settled_before + rows

    async def _write_letters(self, output: Output, permit: Permit) -> None:
        async with self._writing_letters:
            await self._write_letters_alone(output, permit)

    async def _write_letters_alone(self, output: Output, permit: Permit) -> None:
        self._ends.append((output.to, await self._end()))
        try:
            await self._letters.write(self._letters_in(output), permit)
        except OutputRefused as refused:  # no event of the output is to blame
            raise SinkRejected(f"the dead letters cannot be kept: {refused}") from refused
        except Fenced as fenced:
            _refence(fenced, lambda state: self._states(self._writer.state, state))

    async def _end(self) -> str | None:
        try:
            return await self._box.feed.latest(self._letters.place or self._claim.partition)
        except FeedError as error:
            raise _unreadable(error) from error

    def _states(self, sink: str, letters: str) -> States:
        """The next owner reads the box from the first letter whose batch ends after the sink's position."""
        while len(self._ends) > 1 and self._claim.compare(self._ends[0][0], self._writer.position) <= 0:
            self._ends.popleft()
        is_ahead = self._claim.compare(self._letters.position, self._writer.position) > 0
        at = self._letters.position if is_ahead else None
        return States(sink=sink, letters=letters, box=self._box_id, since=self._ends[0][1], at=at)

    def _letters_in(self, output: Output) -> Output:
        """The letters as output for the box. If the box is ahead, its position stays: it never goes back."""
        at = self._letters.position
        to = output.to if at is None or self._claim.compare(output.to, at) > 0 else at
        rows = self._box.rows(letters_of(self._claim, output))
        return Output(table=rows, start=at, to=to, events=rows.num_rows, trace=output.trace)

    @property
    def is_buffering(self) -> bool:
        return self._writer.is_buffering

    @property
    def acknowledged(self) -> int:
        return self._writer.acknowledged

    async def wait_for_progress(self) -> None:
        await self._writer.wait_for_progress()

    async def flush(self) -> None:
        await self._writer.flush()


def _of_letters(claim: Claim, states: States) -> Claim:
    """The box's claim, at the box's own position if that is known to be ahead."""
    at = claim.continuation if claim.compare(states.at, claim.continuation) <= 0 else states.at
    return replace(claim, pipeline=claim.pipeline + LEASE, state=states.letters, continuation=at)


def _unreadable(error: FeedError) -> SinkUnavailable:
    return SinkUnavailable(f"the dead letters cannot be read: {error}")


def _refence(fenced: Fenced, states: Callable[[str], States]) -> NoReturn:
    """Raises Fenced with a state of both, from which the next claim outranks what one of the two knows."""
    state = None if fenced.state is None else states(fenced.state).encoded()
    raise Fenced(str(fenced), epoch=fenced.epoch, state=state) from fenced


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """The states of a sink and of its box, which share the one sink state of the lease. Pure."""

    sink: str
    letters: str = ""
    """The state of the box's own sink."""
    box: str = ""
    """The name of the box."""
    since: str | None = None
    """The end of the box before it was ahead of the sink; None if unknown. The search for buried events starts there."""
    at: str | None = None
    """The box's position if it is ahead: a sink that has settled it does not search for it again."""

    def encoded(self) -> str:
        kept = {name: each for name, each in asdict(self).items() if each is not None}
        return json.dumps(kept, separators=(",", ":"))


_STATE_FIELDS = {field.name for field in fields(States)}


def states_in(state: str, box: str) -> States:
    """The states for this box. If another box, or none, has left the text, it has only the sink's state, and this box begins
    where the lease stands."""
    found = _found(state)
    if found is None:
        return States(sink=state, box=box)
    if found.get("box", box) != box:
        return States(sink=found["sink"], box=box)
    return States(**{**found, "box": box})


def sink_alone(state: str) -> str:
    """The sink's state without what a former box has left."""
    found = _found(state)
    return state if found is None else found["sink"]


def box_id(identity: str) -> str:
    """A short name of the box, because the text is bounded, and identities are not."""
    return sha256(identity.encode()).hexdigest()[:12]


def _found(state: str) -> dict[str, str] | None:
    try:
        found = parsed_json(state, JSON_LEVELS_MAX)
    except ValueError:
        return None
    if not isinstance(found, dict) or not {"sink", "letters"} <= found.keys() <= _STATE_FIELDS:
        return None
    return found if all(isinstance(each, str) for each in found.values()) else None
