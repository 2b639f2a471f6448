"""Dead letters beside a sink: a batch's letters are put into a box of their own before its output goes out.

The box has its own fence and position, under the same lease. Where a host dies between the letters and the output, the box is
ahead: the next owner reads which events of the batch to come are buried already, and leaves them out. So every event is in the
output or in a letter, and in one of the two once, as far as the sink itself is exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import NoReturn

from pipeline.dead_letters.box import LetterBox, buried_in
from pipeline.dead_letters.letter import Letter, letters_of
from pipeline.errors import FeedError, Fenced, PipelineError, SinkUnavailable
from pipeline.sink import (
    BufferingWriter,
    Claim,
    CloseReason,
    Output,
    Permit,
    Sink,
    SinkWriter,
    Standing,
    StandingSink,
    parts_of,
    standing_of,
)

LEASE = "/dead-letters"
"""Behind the pipeline's name, for the box's own fence and position: no pipeline's name has a slash."""


@dataclass(frozen=True, slots=True)
class _States:
    """The sink states of both, which share the lease's one text. One without letters is the sink's alone."""

    sink: str
    letters: str

    @classmethod
    def of(cls, state: str) -> _States:
        try:
            found = json.loads(state)
        except ValueError:
            found = None
        if isinstance(found, dict) and found.keys() == {"sink", "letters"}:
            return cls(str(found["sink"]), str(found["letters"]))
        return cls(state, "")

    def encoded(self) -> str:
        return json.dumps({"sink": self.sink, "letters": self.letters}, separators=(",", ":"))


def beside(sink: Sink, box: LetterBox) -> Sink:
    """A sink that puts dead letters into `box`. It owns both."""
    return SinkBesideBox(sink, box) if standing_of(sink) is None else StandingBesideBox(sink, box)


class SinkBesideBox:
    def __init__(self, sink: Sink, box: LetterBox) -> None:
        assert box.sink is not None, "a box without a sink is its pipeline's sink's own affair"
        self.holds_position = sink.holds_position
        self._sink = sink
        self._letters = box.sink
        self._box = box

    @property
    def identity(self) -> str:
        return self._sink.identity

    def claimed(self, state: str) -> str:
        states = _States.of(state)
        return _States(self._sink.claimed(states.sink), self._letters.claimed(states.letters)).encoded()

    async def prepare(self) -> None:
        await self._sink.prepare()
        await self._letters.prepare()

    async def open(self, claim: Claim) -> SinkWriter:
        """Both are fenced before the box is read: nobody of an earlier epoch adds to it any more."""
        states = _States.of(claim.state)
        writer, letters = await self._opened(claim, states)
        try:
            buried = await self._buried(claim, writer.position, letters.position)
        except FeedError as error:
            await writer.close("failed")
            await letters.close("failed")
            raise SinkUnavailable(f"the dead letters cannot be read: {error}") from error
        kind = BufferingWriterBesideBox if isinstance(writer, BufferingWriter) else WriterBesideBox
        return kind(claim, writer, letters, self._box, buried)

    async def close(self) -> None:
        await self._sink.close()
        await self._box.close()

    async def _opened(self, claim: Claim, states: _States) -> tuple[SinkWriter, SinkWriter]:
        try:
            writer = await self._sink.open(replace(claim, state=states.sink))
        except Fenced as fenced:
            raise await self._outranked(claim, states, fenced) from fenced
        try:
            return writer, await self._letters.open(_of_letters(claim, states.letters))
        except PipelineError as error:
            await writer.close("failed")
            if isinstance(error, Fenced):
                _refence(error, lambda state: _States(writer.state, state))
            raise

    async def _outranked(self, claim: Claim, states: _States, fenced: Fenced) -> Fenced:
        """Of what the sink says and what the box knows: the next claim is to outrank both at once."""
        epoch, letters = fenced.epoch, states.letters
        try:
            opened = await self._letters.open(_of_letters(claim, states.letters))
            letters = opened.state
            await opened.close("failed")
        except Fenced as other:
            epoch, letters = max(epoch, other.epoch), states.letters if other.state is None else other.state
        sink = states.sink if fenced.state is None else fenced.state
        return Fenced(str(fenced), epoch=epoch, state=_States(sink, letters).encoded())

    async def _buried(self, claim: Claim, position: str | None, letters: str | None) -> Collection[int]:
        if claim.compare(letters, position) <= 0:
            return ()
        of_lease = (claim.pipeline, claim.partition, claim.generation)

        def is_ahead(letter: Letter) -> bool:
            is_ours = (letter.by, letter.partition, letter.generation) == of_lease
            return is_ours and claim.compare(letter.to, position) > 0

        return await buried_in(self._box, is_ahead)


class StandingBesideBox(SinkBesideBox):
    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        told: StandingSink | None = standing_of(self._sink)
        assert told is not None
        return await told.standing(pipeline, partition)


class WriterBesideBox:
    """One claim's way into both."""

    def __init__(
        self, claim: Claim, writer: SinkWriter, letters: SinkWriter, box: LetterBox, buried: Collection[int]
    ) -> None:
        self.buried = buried
        self._claim = claim
        self._writer = writer
        self._letters = letters
        self._box = box
        self._put: Output | None = None

    @property
    def position(self) -> str | None:
        return self._writer.position

    @property
    def state(self) -> str:
        return _States(self._writer.state, self._letters.state).encoded()

    def parts(self, output: Output) -> int:
        of_letters = 1 if output.dead is None else parts_of(self._letters, self._letters_in(output))
        return max(parts_of(self._writer, output), of_letters)

    async def write(self, output: Output, permit: Permit) -> None:
        if output.dead is not None and self._put is not output:
            await self._fenced_letters(output, permit)
            self._put = output  # should the output have to wait for trust, it comes again
        try:
            await self._writer.write(replace(output, dead=None), permit)
        except Fenced as fenced:
            _refence(fenced, lambda state: _States(state, self._letters.state))

    async def end(self, permit: Permit) -> None:
        await self._writer.end(permit)

    async def close(self, reason: CloseReason) -> None:
        await self._writer.close(reason)
        await self._letters.close(reason)

    async def _fenced_letters(self, output: Output, permit: Permit) -> None:
        try:
            await self._letters.write(self._letters_in(output), permit)
        except Fenced as fenced:
            _refence(fenced, lambda state: _States(self._writer.state, state))

    def _letters_in(self, output: Output) -> Output:
        """The box may stand further on already, where it was ahead; it never goes back."""
        at = self._letters.position
        to = output.to if at is None or self._claim.compare(output.to, at) > 0 else at
        rows = self._box.rows(letters_of(self._claim, output))
        return Output(table=rows, start=at, to=to, events=rows.num_rows)


class BufferingWriterBesideBox(WriterBesideBox):
    """Over a writer that delivers beside the writes that follow. The letters are safe before it has taken the output."""

    _writer: BufferingWriter

    @property
    def acknowledged(self) -> int:
        return self._writer.acknowledged

    async def moved(self) -> None:
        await self._writer.moved()

    async def flush(self) -> None:
        await self._writer.flush()


def _of_letters(claim: Claim, state: str) -> Claim:
    return replace(claim, pipeline=claim.pipeline + LEASE, state=state)


def _refence(fenced: Fenced, states: Callable[[str], _States]) -> NoReturn:
    """The next claim outranks what one of the two knows, in the state of both."""
    state = None if fenced.state is None else states(fenced.state).encoded()
    raise Fenced(str(fenced), epoch=fenced.epoch, state=state) from fenced
