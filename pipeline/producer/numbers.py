"""Who publishes, and which number comes next. Pure.

A broker knows a producer by its group (int64) and its owner level (int16); a higher level closes the lower ones and starts
a new line of sequence numbers (int32, one per event, 0 following the largest). All three are kept per partition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NUMBER_MAX = 2**31 - 1
NOTHING_YET = -1
"""The last number of a producer that has published nothing: some brokers answer this, others 0."""
GROUP_MAX = 2**63 - 1
OWNER_LEVEL_MAX = 2**15 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A producer of one partition. number: of the last event published, or the one to start behind, or NOTHING_YET."""

    group: int
    level: int
    number: int

    def after(self, events: int) -> Numbers:
        return replace(self, number=number_after(self.number, events))

    @property
    def asked(self) -> Asked:
        return Asked(group=self.group, level=self.level, number=self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a link asks for; None leaves the choice to the broker.

    group: the producer group's id. level: the owner level; a higher one closes the lower ones. number: the sequence number
    of the last event that was published: the first event bears the one that follows it. NOTHING_YET leaves it to the broker, too.
    """

    group: int | None = None
    level: int | None = 0
    number: int | None = None

    def __post_init__(self) -> None:
        bounds = (("group", 0, GROUP_MAX), ("level", 0, OWNER_LEVEL_MAX), ("number", NOTHING_YET, NUMBER_MAX))
        for name, least, most in bounds:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} has to be a number from {least} to {most}, or None, and is {value}")

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to the broker."""
        return None not in (self.group, self.level, self.number)


def number_after(number: int, events: int = 1) -> int:
    """The sequence number so many events further on."""
    return (number + events) & NUMBER_MAX
