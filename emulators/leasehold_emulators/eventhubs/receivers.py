"""Who may receive from a partition in a consumer group: one receiver with the highest epoch, or up to five without an epoch."""

from __future__ import annotations

from collections.abc import Sequence

from leasehold_emulators.eventhubs.producers import Refusal

STOLEN = "amqp:link:stolen"
LIMIT = "amqp:resource-limit-exceeded"
WITHOUT_EPOCH_MAX = 5


def admitted(present: Sequence[int | None], epoch: int | None) -> Refusal | list[int]:
    """Indices of the receivers that a new one displaces. present: the epochs of the present ones, None for one without."""
    highest = max((each for each in present if each is not None), default=None)
    if epoch is None:
        if highest is not None:
            text = f"A receiver with epoch '{highest}' is there: a receiver without epoch is not allowed."
            return Refusal(condition=STOLEN, description=text)
        if len(present) >= WITHOUT_EPOCH_MAX:
            text = (
                f"Exceeded the maximum number of allowed receivers per partition in a consumer group, {len(present)}."
            )
            return Refusal(condition=LIMIT, description=text)
        return []
    if highest is not None and highest > epoch:
        text = f"A receiver with the higher epoch '{highest}' is there: epoch '{epoch}' cannot be created."
        return Refusal(condition=STOLEN, description=text)
    return list(range(len(present)))


def displaced(epoch: int | None, by: int | None) -> Refusal:
    text = f"New receiver with epoch '{by}' is created, hence the one with epoch '{epoch}' is getting disconnected."
    return Refusal(condition=STOLEN, description=text)
