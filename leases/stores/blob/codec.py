"""The body of a document <-> a blob's metadata, or its content if it does not fit into metadata. Pure.

    leasehold: json        leasehold_0: {"version":1,...}     as long as it fits: people can read it, and one listing reads all
    leasehold: zlib        leasehold_0: eJyN...               compressed, in base64: if it is too long for that
    leasehold: content                                        the blob's content is the body: read one by one

A blob's metadata is limited to 8 KiB, including names, and is sent as HTTP headers: ASCII, no control characters, and
no two consecutive spaces, which signatures fold into one. Other characters in a JSON string are therefore written as
JSON escapes, spaces too. docs/decisions/0009-leases-in-blobs.md has the reasons.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from leasehold.leases.document import BODY_BYTES_MAX, lease_prefix, unreadable

# Ids of the store <-> names of blobs. Pure.
#
#     orders/leases/7        orders/7                   a lease: one blob at {group}/{partition}
#     orders/leases/a%2Fb    orders/a~2Fb               of a file: Azure's names are in URLs, where % would need an escape
#     orders/leases/v1.      orders/v1.!                no segment of a name may end with a dot
#     orders/info            _leasehold/orders/info     everything else
#     _hosts/host-a          _leasehold/_hosts/host-a
#
# Ids hold neither `~` nor `!` (leasehold.leases.store), so every name stands for one id. An id has at most 255 characters, and
# each becomes two at most: names stay far below the 1,024 that a blob's may have.


OTHERS = "_leasehold/"
"""No pipeline's name begins with an underscore."""
_LEASE = re.compile(r"([^/_][^/]*)/leases/(.+)", re.DOTALL)
_FINAL_DOT = re.compile(r"\.(?=/|\Z)")


def blob_name(id: str) -> str:
    lease = _LEASE.fullmatch(id)
    return _escaped(f"{lease[1]}/{lease[2]}" if lease else OTHERS + id)


def id_of(name: str) -> str | None:
    """None for a blob that represents no document here."""
    plain = _unescaped(name)
    if plain.startswith(OTHERS):
        found = plain.removeprefix(OTHERS)
    else:
        group, _, rest = plain.partition("/")
        found = lease_prefix(group) + rest
    return found if blob_name(found) == name else None


def blob_prefixes(prefix: str) -> list[str]:
    """The prefixes of the blobs whose ids may begin with `prefix`; each blob is found once."""
    lease = _LEASE.fullmatch(prefix + "?")
    if lease:
        return [_begun(f"{lease[1]}/{lease[2][:-1]}")]
    if prefix.startswith(("_", "/")):
        return [_begun(OTHERS + prefix)]
    group = prefix.partition("/")[0]
    return [""] if not prefix else [_begun(group), _begun(OTHERS + prefix)]


def _escaped(text: str) -> str:
    return _FINAL_DOT.sub(".!", text).replace("%", "~")


def _begun(text: str) -> str:
    """The prefix, escaped. A dot at its end may be inside of a segment, and is not escaped."""
    return _escaped(text + "?")[:-1]


def _unescaped(name: str) -> str:
    return name.replace(".!", ".").replace("~", "%")


FORM = "leasehold"
METADATA_MAX = 7000
"""Characters of a body in metadata. The rest of the 8 KiB is for names, and for headers that proxies add."""
PART_MAX = 3500
"""Characters of one header: HTTP clients and servers accept about 8,000, and 16 KiB for all headers together."""
_PART = re.compile(r"leasehold_([0-9]+)")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\s+', re.DOTALL)
_TO_ESCAPE = re.compile(r"[^!-~]")
JSON, ZLIB, CONTENT = "json", "zlib", "content"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A body as a blob holds it."""

    metadata: Mapping[str, str]
    content: bytes | None = None


def packed(body: str) -> Packed:
    if len(text := _as_header(body)) <= METADATA_MAX:
        return Packed(metadata=_metadata(JSON, text))
    whole = body.encode()
    if len(text := base64.b64encode(zlib.compress(whole, 6)).decode()) <= METADATA_MAX:
        return Packed(metadata=_metadata(ZLIB, text))
    return Packed(metadata=_metadata(CONTENT, ""), content=whole)


def is_content(metadata: Mapping[str, str]) -> bool:
    """Whether the body is the blob's content."""
    return metadata.get(FORM) == CONTENT


def body_in(name: str, metadata: Mapping[str, str], content: bytes = b"") -> str:
    """The body in the blob `name`, or one that explains why there is none (`leasehold.leases.document.unreadable`)."""
    form = metadata.get(FORM)
    if form == JSON:
        return _joined_parts(metadata)
    if form == ZLIB:
        return _expanded(name, _joined_parts(metadata))
    if form == CONTENT:
        return content.decode("utf-8", "backslashreplace")
    if form is None:
        return unreadable(
            f"blob '{name}' is not a document of Leasehold: move it away, or keep the leases in a container of their own"
        )
    return unreadable(f"blob '{name}': its form {form[:40]!r} is of a later version: use that one, or restore it")


def too_large(name: str) -> str:
    return unreadable(f"blob '{name}' is larger than {BODY_BYTES_MAX} bytes: restore it, or delete it")


def others_in(metadata: Mapping[str, str]) -> dict[str, str]:
    """Other programs' metadata, which is written back."""
    return {key: value for key, value in metadata.items() if key != FORM and not _PART.fullmatch(key)}


def _metadata(form: str, text: str) -> dict[str, str]:
    parts = [text[start : start + PART_MAX] for start in range(0, len(text), PART_MAX)]
    return {FORM: form, **{f"{FORM}_{number}": part for number, part in enumerate(parts)}}


def _joined_parts(metadata: Mapping[str, str]) -> str:
    numbered = sorted((int(found[1]), value) for key, value in metadata.items() if (found := _PART.fullmatch(key)))
    return "".join(value for _, value in numbered)


def _as_header(body: str) -> str:
    """An equal object in header characters. Outside of strings, spaces are the only other characters in JSON, and mean
    nothing.
    """
    return _TOKEN.sub(lambda token: _TO_ESCAPE.sub(_escape, token[0]) if token[0][0] == '"' else "", body)


def _escape(character: re.Match[str]) -> str:
    units = character[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _expanded(name: str, text: str) -> str:
    try:
        unpacking = zlib.decompressobj()
        body = unpacking.decompress(base64.b64decode(text, validate=True), BODY_BYTES_MAX + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        return unreadable(f"blob '{name}' cannot be unpacked ({error}): restore it, or delete it")
    if len(body) > BODY_BYTES_MAX:
        return too_large(name)
    if not unpacking.eof:
        return unreadable(f"blob '{name}' was cut off: restore it, or delete it")
    return body.decode("utf-8", "backslashreplace")
