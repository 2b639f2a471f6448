"""Dead letters: events that cannot be processed are kept, whole and exactly once, and their partitions continue.

`record`: what is kept. `dead_letter_transform`: a transform over the rest. `rate_guard`: when there is too much of it.
`side_output_sink`: letters in a place of their own, beside any sink, and `states`: what the lease keeps of both.
`store`: reading them; `merged_feed`: where they are numbered in several places. `replay`: sending their events through again.
"""

from pipeline.dead_letters.dead_letter_transform import DeadLetters
from pipeline.dead_letters.record import Letter, LetterBox, StoredLetter
from pipeline.dead_letters.side_output_sink import beside, sink_alone

__all__ = ["DeadLetters", "StoredLetter", "Letter", "LetterBox", "beside", "sink_alone"]
