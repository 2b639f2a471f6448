"""Error messages for invalid settings, and how to install what an extra needs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires

from pydantic_core import ErrorDetails

from leasehold.common.distribution import NAME
from leasehold.service.texts import redacted

_WORDS = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    **dict.fromkeys(("dict_type", "mapping_type"), "must be a mapping"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("model_type", "model_attributes_type"), "must be a mapping of settings"),
    **dict.fromkeys(("string_too_short", "too_short"), "must not be empty"),
    "finite_number": "must be a finite number",
    "path_type": "must be a path",
    "string_type": "must be a text (put it in quotes)",
    "tuple_type": "must be a list",
}
"""Messages for pydantic's errors that do not explain what to write."""


def message_of(error: ErrorDetails) -> str:
    """The message without the value. A rule of these settings may report several problems, one per line."""
    kind, message = error["type"], error["msg"]
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    return _WORDS.get(kind) or message.replace("Input should", "must").replace("String should", "must")


SHOWN_CHARACTERS_MAX = 60


def shown(value: object) -> str:
    """A value for people: short, and without what looks like a secret."""
    words = {None: "null", True: "true", False: "false"}
    text = redacted(words[value] if value is None or isinstance(value, bool) else repr(value))
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[:SHOWN_CHARACTERS_MAX] + "..."


ELSEWHERE = {
    "handler": "it belongs to the sink, as in `sink: {type: python, handler: module:name}`",
    "start": "it belongs to the feed, and is earliest, latest or a time",
    "store": "it is called `leases`",
    "timing": "intervals belong to `leases`, like `duration_s: 30`",
}
"""Settings that people often write in the wrong section."""
WRITTEN = {
    "sink": "like {type: python, handler: module:name}",
    "parallel": "like {key: key, max: 64}",
}
"""What to write for a setting that cannot be a section."""


def unknown_setting(name: str, known: Iterable[str]) -> str:
    names = list(known)
    if name in ELSEWHERE:
        return f"is not a setting here: {ELSEWHERE[name]}"
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return (
        f"is not a setting: did you mean `{near[0]}`?"
        if near
        else f"is not a setting: known here are {', '.join(names)}"
    )


def install_command(extra: str) -> str:
    """Names the requirements of the extra: these are on package indexes, and Leasehold itself is not."""
    try:
        return command_of(extra, requires(NAME) or ())
    except PackageNotFoundError:  # run from its sources
        return command_of(extra, ())


def command_of(extra: str, requirements: Iterable[str]) -> str:
    """requirements: in the form of a distribution's metadata (PEP 508)."""
    found = [each.partition(";") for each in requirements]
    wanted = [
        name.strip() for name, _, marker in found if re.search(rf"""extra == ['"]{re.escape(extra)}['"]""", marker)
    ]
    return "pip install " + " ".join(f"'{name}'" for name in sorted(wanted) or [f"{NAME}[{extra}]"])
