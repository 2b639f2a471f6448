"""Texts that people will read: counted nouns, descriptions of errors, and secrets masked out. Pure."""

from __future__ import annotations

import re


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """plural: by default `singular` with an s."""
    return f"{count:,} {noun(count, singular, plural)}"


def noun(count: int, singular: str, plural: str | None = None) -> str:
    return singular if count == 1 else plural or f"{singular}s"


def described(error: BaseException) -> str:
    """The error's class and its text, for the log."""
    return f"{type(error).__name__}: {error}"


MASK = "***"
CHARS_MAX = 8192
"""Longer texts quote data. They are cut, because they are logged with every attempt."""

_VALUE = r"""(?:"[^"]*"|'(?:[^'\\]|\\.)*'|[^\s;&,"')]+)"""
_NAME = r"(?:[\w.-]*(?:password|passwd|pwd|secret|token|(?:access|account|api|private)[_-]?key|accesssignature)|sig)"
_RULES = (
    # scheme://user:password@host; a password may contain @ and /, and a port is not a password. Both repetitions are bounded: the
    # text may be an event's, of any length, and the time must be linear in it
    (
        re.compile(r"((?<=[a-z0-9+.-]://)[^\s/:@]{0,256}):(?!\d{1,5}(?:[/?#\s]|$))[^\s\"']{0,1024}@", re.IGNORECASE),
        rf"\1:{MASK}@",
    ),
    (re.compile(rf"(?<![\w.-])({_NAME})([\"']?\s*[=:]\s*){_VALUE}", re.IGNORECASE), rf"\1\2{MASK}"),
    (re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE), rf"\1 {MASK}"),
)
_HARMLESS_CHARS_MAX = 21
"""`basic` or `bearer`, a space and 16 characters are longer. The other rules need a colon or an equals sign."""
_SECRET_NAME = re.compile(rf"{_NAME}|authorization", re.IGNORECASE)


def redacted(text: str) -> str:
    """`text`, with everything that looks like a secret replaced by ***."""
    if len(text) <= _HARMLESS_CHARS_MAX and ":" not in text and "=" not in text:
        return text
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def readable(text: str) -> str:
    """The text with secrets masked, and without its middle if it is too long."""
    text = redacted(text)
    if len(text) <= CHARS_MAX:
        return text
    half = CHARS_MAX // 2
    return f"{text[:half]} ... ({len(text)} characters) ... {text[-half:]}"


def names_a_secret(name: str) -> bool:
    """Whether a field of this name holds a secret, whatever the value looks like."""
    return _SECRET_NAME.fullmatch(name) is not None
