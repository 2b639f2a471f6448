"""Dead letters: events that cannot be processed are kept, whole and exactly once, and their partitions go on.

`letter`: what is kept. `sieve`: a transform over the rest. `guard`: when there is too much of it. `beside`: letters in a place of
their own, beside any sink. `box`: reading them. `replay`: sending their events through again.
"""

from pipeline.dead_letters.beside import beside
from pipeline.dead_letters.box import Kept, LetterBox
from pipeline.dead_letters.letter import REPLAY, Letter
from pipeline.dead_letters.sieve import DeadLetters

__all__ = ["REPLAY", "DeadLetters", "Kept", "Letter", "LetterBox", "beside"]
