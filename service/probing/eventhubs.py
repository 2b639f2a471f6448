"""Questions to an event hub, about one partition of a hub that nothing else uses, under producer groups of their own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise

from leasehold.pipeline.connectors.eventhubs.feed.receiver import (
    Receiver,
)
from leasehold.pipeline.connectors.eventhubs.position import LATEST, EventPosition, selector
from leasehold.pipeline.errors import FeedError, Fenced
from leasehold.pipeline.producer import ProducerPosition, PublishError, Reason
from leasehold.pipeline.producer.event import OWNER_LEVEL_MAX
from leasehold.service.probing.hub_place import ANSWER_S_MAX, POLL_S, HubPlace, Sender
from leasehold.service.probing.report import Finding, Question, either, judged
from leasehold.service.texts import counted

OLD_S_MAX = 10.0
"""The greatest age of an answer of `$management`, and the greatest delay of a receiver's first event."""
SILENCE_S = 3.0
"""How long to wait for what may come late, or never."""
RECEIVERS = 5
RACES = 5
REPEATED = 12
STARTING_NUMBER = 1000
COSTS = "publishes about 100 small events to it, which stay until retention deletes them, and requests metadata up to 100 times"


async def ask_for_nothing_published(place: HubPlace) -> Finding:
    sender = await place.attach(place.new_group(), 1, None)
    return either(str(sender.position.number), is_known=sender.position.number in (0, -1))


async def ask_for_stored_batches(place: HubPlace) -> Finding:
    """A claim reads its first batch back, and relies on the later ones."""
    sender = await place.attach(place.new_group(), 1, None)
    batches = [await sender.send(3)]
    try:
        batches.append(await sender.send(3))
    except PublishError:
        batches.append([])  # an earlier one is missing
    stored = await place.read()
    first, second = (sum(len(stored.get(body, ())) == 1 for body in bodies) for bodies in batches)
    answer = (
        f"of the first batch {first} of 3 events are stored once, of the second {second} of {len(batches[1])} accepted"
    )
    if first == 0 and second == len(batches[1]):
        return either(f"{answer}; a claim notices that")
    return judged(answer, first == second == 3)


async def ask_for_chosen_number(place: HubPlace) -> Finding:
    group = place.new_group()
    await (await place.attach(group, 1, None)).send()
    try:
        raised = await place.attach(group, 2, STARTING_NUMBER)
        (body,) = await raised.send(after=ProducerPosition(group=group, level=2, number=STARTING_NUMBER))
    except PublishError as error:
        return judged(f"no: {error}", False)
    times = len((await place.read()).get(body, ()))
    is_taken = raised.position.number == STARTING_NUMBER and times == 1
    return judged(f"the reply is {raised.position.number}, and the event is stored {counted(times, 'time')}", is_taken)


async def ask_for_skipped_levels(place: HubPlace) -> Finding:
    group = place.new_group()
    await (await place.attach(group, 1, None)).send()
    try:
        sender = await place.attach(group, OWNER_LEVEL_MAX, STARTING_NUMBER)
    except PublishError as error:
        return judged(f"no: {error}", False)
    return judged(f"attached at level {sender.position.level}", sender.position.level == OWNER_LEVEL_MAX)


async def ask_for_late_batch(place: HubPlace) -> Finding:
    """One batch after the raise, and races of a batch with a raise."""
    group = place.new_group()
    old = await place.attach(group, 1, None)
    await old.send()
    began = place.clock.monotonic()
    new = await place.attach(group, 2, STARTING_NUMBER)
    attach_s = place.clock.monotonic() - began
    late, accepted = place.new_bodies(1), True
    try:
        await old.send_bodies(late, old.position)
    except (PublishError, TimeoutError):
        accepted = False
    marks = [(late[0], (await new.send())[0])]
    for race in range(RACES):
        racing = place.new_bodies(1)
        sending = asyncio.create_task(_send_later(new, racing, attach_s * race / RACES))
        try:
            following = await place.attach(group, 3 + race, (3 + race) * STARTING_NUMBER)
        finally:
            await asyncio.wait({sending})
            _ = sending.exception()  # it may be refused
        marks.append((racing[0], (await following.send())[0]))
        new = following
    await place.clock.sleep(SILENCE_S)
    stored = await place.read()
    is_stored = late[0] in stored
    behind = [late for late, mark in marks if late in stored and max(stored[late]) > max(stored.get(mark, [0]))]
    text = f"{'accepted' if accepted else 'refused'} and {'stored' if is_stored else 'not stored'}"
    return judged(
        f"a batch sent after the raise is {text}; of {RACES} batches that raced with a raise, {len(behind)} were stored after a"
        " batch of the next level",
        not accepted and not is_stored and not behind,
    )


async def _send_later(sender: Sender, bodies: list[bytes], pause_s: float) -> None:
    await asyncio.sleep(pause_s)
    await sender.send_bodies(bodies, sender.position)


async def ask_for_one_level_twice(place: HubPlace) -> Finding:
    group = place.new_group()
    await place.attach(group, 1, STARTING_NUMBER)
    try:
        other = await place.attach(group, 1, 5 * STARTING_NUMBER)
    except PublishError as error:
        return judged(f"no, the second is refused: {error}", True)
    shows = other.position.number != 5 * STARTING_NUMBER
    return judged(f"yes, and the reply is {other.position.number}", shows)


async def ask_for_null_number(place: HubPlace) -> Finding:
    group = place.new_group()
    owner = await place.attach(group, 1, None)
    await owner.send()
    await place.attach(group, 1, None)
    try:
        await owner.send()
    except (PublishError, TimeoutError):
        return either("yes, the owner's next batch is refused")
    return either("no, the owner continues")


async def ask_for_null_level(place: HubPlace) -> Finding:
    group = place.new_group()
    await (await place.attach(group, 5, None)).send()
    level = (await place.attach(group, None, None)).position.level
    names = {5: "the current one", 6: "the next one"}
    return either(names.get(level, f"level {level} after level 5"), is_known=level in names)


async def ask_for_null_level_at_highest(place: HubPlace) -> Finding:
    group = place.new_group()
    await place.attach(group, OWNER_LEVEL_MAX, None)
    try:
        level = (await place.attach(group, None, None)).position.level
    except PublishError as error:
        return either(f"refused: {error}", is_known=error.reason is Reason.INVALID_CLIENT_STATE)
    return either(f"level {level}", is_known=level == OWNER_LEVEL_MAX)


async def ask_for_return_behind(place: HubPlace) -> Finding:
    group = place.new_group()
    sender = await place.attach(group, 1, None)
    await sender.send()
    own = sender.position.number
    await sender.send()
    known = sender.position.number
    try:
        number = (await place.attach(group, 1, own)).position.number
    except PublishError as error:
        return Finding(f"refused: {error}", "fails")
    names = {known: "the service's own number", own: "the producer's number"}
    return either(names.get(number, f"{number}, which neither had"), is_known=number in names)


async def ask_for_last_number(place: HubPlace) -> Finding:
    group = place.new_group()
    sender = await place.attach(group, 1, None)
    for events in (1, 2, 1):
        await sender.send(events)
    number = (await place.attach(group, 1, None)).position.number
    last = sender.position.number
    return judged(f"{number}; the last stored event has {last}", number == last)


async def ask_for_repeated_batches(place: HubPlace) -> Finding:
    """Repeat exact batches, the newest first, until one is refused."""
    sender = await place.attach(place.new_group(), 1, None)
    sent = []
    for _ in range(REPEATED):
        before = sender.position
        sent.append((await sender.send(), before))
    known = 0
    try:
        for bodies, before in reversed(sent):
            await sender.send_bodies(bodies, before)
            known += 1
    except (PublishError, TimeoutError):
        pass
    stored = await place.read()
    twice = sum(len(stored.get(bodies[0], ())) > 1 for bodies, _ in sent)
    depth = f"at least {known}" if known == REPEATED else f"{known}"
    return judged(f"{depth}; {twice} repeated batches are stored twice", known > 0 and twice == 0)


async def ask_for_kept_numbers(place: HubPlace) -> Finding:
    assert place.oldest is not None, "it was opened"
    position, at = place.oldest
    number = (await place.attach(position.group, position.level, None)).position.number
    age_s = place.clock.monotonic() - at
    kept = "known" if number == position.number else f"forgotten (the reply is {number})"
    return either(f"after {age_s:.0f} s they are {kept}; a longer time needs a later probe")


async def ask_for_age_of_management(place: HubPlace) -> Finding:
    stored = await place.read()
    before = max(n for each in stored.values() for n in each)
    await (await place.attach(place.new_group(), 1, None)).send()
    began = place.clock.monotonic()
    while (last := (await place.broker.read_extent(place.partition)).last) <= before:
        age_s = place.clock.monotonic() - began
        place.note(f"{age_s:.2f} s after the acknowledgement, $management reports the last event {last}")
        if age_s > 2 * OLD_S_MAX:
            return judged(f"more than {age_s:.0f} s", False)
        await place.clock.sleep(POLL_S if age_s < 1 else 1.0)
    age_s = place.clock.monotonic() - began
    place.note(f"{age_s:.2f} s after the acknowledgement, $management reports the last event {last}")
    return judged(f"up to {age_s:.2f} s", age_s <= OLD_S_MAX)


async def ask_for_end_of_receiver(place: HubPlace) -> Finding:
    stored = await place.read()
    before = max(n for each in stored.values() for n in each)
    await (await place.attach(place.new_group(), 1, None)).send()
    async with place.receiving(place.beginning) as receiver:
        end = (await receiver.take_next()).end
    place.note(f"an event was stored after sequence {before}; then a receiver attached, and reports the end {end}")
    return judged(f"the reported end is {end}, the stored one at least {before + 1}", end is not None and end > before)


async def ask_for_first_event(place: HubPlace) -> Finding:
    began = place.clock.monotonic()
    async with place.receiving(place.beginning) as receiver:
        await receiver.take_next()
    took_s = place.clock.monotonic() - began
    return judged(f"after {took_s:.2f} s, including the attach", took_s <= OLD_S_MAX)


async def ask_for_receivers(place: HubPlace) -> Finding:
    attached, why = 0, ""
    async with AsyncExitStack() as stack:
        try:
            for _ in range(RECEIVERS):
                await stack.enter_async_context(place.receiving(LATEST))
                attached += 1
        except (FeedError, Fenced) as error:
            why = f": {error}"
    place.note(f"{attached} of {RECEIVERS} receivers without epoch are attached at the same time{why}")
    return judged(f"{attached} of {RECEIVERS}{why}", attached == RECEIVERS)


async def ask_for_epochs(place: HubPlace) -> Finding:
    """A higher epoch has to displace a lower one, which then is refused."""
    async with place.receiving(LATEST, 1) as lower, place.receiving(LATEST, 2):
        displaced = await _end_of(lower)
        refused = "attached"
        try:
            async with place.receiving(LATEST, 1):
                pass
        except Fenced as error:
            refused = f"refused: {error}"
    place.note(
        f"a receiver with epoch 2 attaches in addition to one with epoch 1 -> the latter is {displaced or 'not displaced'}"
    )
    place.note(f"another one with epoch 1 -> {refused}")
    return judged(
        f"the lower epoch is {'displaced' if displaced else 'not displaced'}, and its next attach is {refused.partition(':')[0]}",
        displaced is not None and refused != "attached",
    )


async def _end_of(receiver: Receiver) -> str | None:
    """How the receiver is displaced; None if it is not."""
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            while True:
                await receiver.take_next()
    except Fenced as error:
        return f"displaced: {error}"
    except TimeoutError:
        return None


async def ask_for_start_behind_end(place: HubPlace) -> Finding:
    stored = await place.read()
    beyond = max(n for each in stored.values() for n in each) + 1000
    try:
        async with place.receiving(selector(EventPosition(beyond))) as receiver, asyncio.timeout(SILENCE_S):
            await receiver.take_next()
    except TimeoutError:
        return either("no, it waits")
    except FeedError as error:
        return either(f"yes: {error}")
    return Finding("no, and it receives events", "fails")


async def ask_for_consecutive_sequences(place: HubPlace) -> Finding:
    found = sorted(n for each in (await place.read()).values() for n in each)
    gaps = sum(after != before + 1 for before, after in pairwise(found))
    return judged(f"{len(found)} events, {gaps} gaps", gaps == 0)


QUESTIONS: tuple[Question[HubPlace], ...] = (
    Question(
        id="hub-nothing-published",
        text="What is the last number of a producer that has published nothing?",
        assumed="0 or -1",
        ask=ask_for_nothing_published,
    ),
    Question(
        id="hub-stored-batches",
        text="Is an acknowledged batch stored, once and whole?",
        assumed="yes; only the first one of a claim may be missing",
        ask=ask_for_stored_batches,
    ),
    Question(
        id="hub-late-batch",
        text="May a batch of a lower level be stored after a higher level is attached?",
        assumed="no",
        ask=ask_for_late_batch,
    ),
    Question(
        id="hub-skipped-levels",
        text="May a claim skip levels, and attach at the highest one?",
        assumed="yes",
        ask=ask_for_skipped_levels,
    ),
    Question(
        id="hub-chosen-number",
        text="May a claim choose its starting number at a raised level?",
        assumed="yes",
        ask=ask_for_chosen_number,
    ),
    Question(
        id="hub-one-level-twice",
        text="May two claims attach at one level with different starting numbers?",
        assumed="no; if so, the reply shows the other number",
        ask=ask_for_one_level_twice,
    ),
    Question(
        id="hub-null-level",
        text="Which level does an attach with a null level get?",
        assumed="the current one or the next one",
        ask=ask_for_null_level,
    ),
    Question(
        id="hub-null-level-at-highest",
        text="What does an attach with a null level get if the group is at the highest level?",
        assumed="that level, or a refusal as an invalid client state",
        ask=ask_for_null_level_at_highest,
    ),
    Question(
        id="hub-null-number",
        text="Does an attach at a group's current level, with a null number, fence its current owner?",
        assumed="either",
        ask=ask_for_null_number,
    ),
    Question(
        id="hub-return-behind",
        text="Which last number does a producer get if it attaches again with a lower number than its last one?",
        assumed="the service's number or its own",
        ask=ask_for_return_behind,
    ),
    Question(
        id="hub-last-number",
        text="Is the last number that an attach returns that of the last stored batch?",
        assumed="yes",
        ask=ask_for_last_number,
    ),
    Question(
        id="hub-repeated-batches",
        text="How many earlier batches of a producer does the service recognize if they are sent again?",
        assumed="at least the last one of a producer",
        ask=ask_for_repeated_batches,
    ),
    Question(
        id="hub-age-of-management",
        text="How old may an answer of `$management` be?",
        assumed=f"up to {OLD_S_MAX:g} s",
        ask=ask_for_age_of_management,
    ),
    Question(
        id="hub-end-of-receiver",
        text="Is the end that a receiver gets at least what was stored before the receiver attached?",
        assumed="yes",
        ask=ask_for_end_of_receiver,
    ),
    Question(
        id="hub-first-event",
        text="When does a receiver of a partition that has events get the first one?",
        assumed=f"within {OLD_S_MAX:g} s after it attached",
        ask=ask_for_first_event,
    ),
    Question(
        id="hub-receivers",
        text="Can five receivers without epoch read one partition in a consumer group?",
        assumed="yes",
        ask=ask_for_receivers,
    ),
    Question(
        id="hub-epochs",
        text="Does a receiver with a higher epoch displace one with a lower epoch, and is a lower epoch refused?",
        assumed="yes",
        ask=ask_for_epochs,
    ),
    Question(
        id="hub-start-behind-end",
        text="Is a receiver that starts past the partition's end refused?",
        assumed="yes or no",
        ask=ask_for_start_behind_end,
    ),
    Question(
        id="hub-consecutive-sequences",
        text="Are sequence numbers of a partition consecutive?",
        assumed="yes",
        ask=ask_for_consecutive_sequences,
    ),
    Question(
        id="hub-kept-numbers",
        text="How long does the service keep a producer's numbers?",
        assumed="any time",
        ask=ask_for_kept_numbers,
    ),
)
