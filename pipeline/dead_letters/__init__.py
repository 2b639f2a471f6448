"""Dead letters: events that cannot be processed are kept, whole and exactly once, and their partitions go on.

`letter`: what is kept. `sieve`: a transform over the rest. `guard`: when there is too much of it. `beside`: letters in a place of
their own, beside any sink, and `states`: what the lease keeps of both. `box`: reading them; `strands`: where they are numbered in
several places. `replay`: sending their events through again.
"""

from pipeline.dead_letters.beside import beside
from pipeline.dead_letters.box import Kept, LetterBox
from pipeline.dead_letters.letter import Letter
from pipeline.dead_letters.sieve import DeadLetters
from pipeline.dead_letters.states import sink_alone

__all__ = ["DeadLetters", "Kept", "Letter", "LetterBox", "beside", "sink_alone"]
