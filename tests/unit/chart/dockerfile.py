"""The Dockerfile, as far as the chart has to agree with it."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Stage:
    base: str
    steps: tuple[tuple[str, str], ...]

    def all(self, instruction: str) -> list[str]:
        return [argument for name, argument in self.steps if name == instruction]

    def last(self, instruction: str) -> str:
        return self.all(instruction)[-1]

    def words(self, instruction: str) -> list[str]:
        """Of the exec form, which needs no shell."""
        return [str(word) for word in json.loads(self.last(instruction))]


def stages(text: str) -> dict[str, Stage]:
    """By name; the last one, which has none, by the empty text."""
    plain = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    found: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    steps: list[tuple[str, str]] = []  # before the first stage: the default of its base
    for line in filter(None, map(str.strip, plain.splitlines())):
        instruction, _, argument = line.partition(" ")
        if instruction == "FROM":
            base, _, name = argument.partition(" AS ")
            steps = found.setdefault(name, (base, []))[1]
        else:
            steps.append((instruction, argument.strip()))
    return {name: Stage(base, tuple(steps)) for name, (base, steps) in found.items()}


def dockerfile() -> dict[str, Stage]:
    return stages((ROOT / "Dockerfile").read_text())
