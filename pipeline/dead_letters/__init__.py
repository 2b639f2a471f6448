"""Dead letters: events that cannot be processed are kept, whole and exactly once, and their partitions continue.

`record`: what is kept. `box`: where it is kept and read. `dead_letter_transform`: a transform over the rest. `refusals`: finds
the events that a sink refuses. `guards`: stop a partition with too many letters. `side_output_sink`: letters in a place of their
own, next to any sink, and `States`, what the lease keeps about both. `merged_feed`: letters that are numbered in several places.
`settled`: what replays have done with them.
"""

from leasehold.pipeline.dead_letters.box import LetterBox, StoredLetter
from leasehold.pipeline.dead_letters.dead_letter_transform import DeadLetters
from leasehold.pipeline.dead_letters.record import Letter
from leasehold.pipeline.dead_letters.side_output_sink import beside, sink_alone

__all__ = ["DeadLetters", "StoredLetter", "Letter", "LetterBox", "beside", "sink_alone"]
