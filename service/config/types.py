"""Types of single settings: texts, counts, seconds, paths, names. Each error states what is valid."""

from __future__ import annotations

import glob
import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar, overload

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, StringConstraints, ValidationInfo

from leasehold.common.addresses import checked_url
from leasehold.common.dsn import read_dsn
from leasehold.common.given_credential import is_credential
from leasehold.pipeline.sql_text import schema_problem, sql_problem

_IMPORTABLE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_MEMORY = re.compile(r"[1-9][0-9]*[kmgt]")
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PROCESSOR_NAME = re.compile(r"[^/\\?#\x00-\x1f]{0,255}")
_BLOB_CONTAINER_NAME = re.compile(r"(?=.{3,63}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_PIPELINE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def _not_bool(value: object) -> object:
    """Python takes true for 1; a person who writes true for a number means something else."""
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


def _matching(pattern: re.Pattern[str], rule: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(rule)
        return value

    return AfterValidator(check)


def _folder(info: ValidationInfo) -> Path:
    """Where relative paths start. A configuration file's own folder: two hosts with one file mean the same paths, wherever they
    were started. For a program, the current folder, even if another becomes current later. Raises ValueError."""
    if info.context is not None:
        return Path(info.context.get("folder", ""))
    try:
        return Path.cwd()
    except OSError:
        raise ValueError("is relative, and the current directory no longer exists: give the whole path") from None


def expanded_path(value: Path) -> Path:
    """The path, with `~` replaced by the home directory. Raises ValueError."""
    try:
        return value.expanduser()
    except RuntimeError:
        raise ValueError(
            f"begins with `{value.parts[0]}`, and there is no such home directory: write the path without `~`"
        ) from None


def _resolved(value: Path, info: ValidationInfo) -> Path:
    path = expanded_path(value)
    return path if path.is_absolute() else _folder(info) / path


def _resolved_glob(value: str, info: ValidationInfo) -> str:
    path = expanded_path(Path(value))
    return str(path if path.is_absolute() else Path(glob.escape(str(_folder(info)))) / path)


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _certificates(value: Path, info: ValidationInfo) -> Path:
    """Certificates that a settings file names are read here, so that missing ones are reported with all other problems. Those of
    a program are read at the start of the host."""
    if info.context is None:
        return value
    try:
        ssl.create_default_context(cafile=value)
    except OSError as error:
        reason = "it holds none" if isinstance(error, ssl.SSLError) else (error.strerror or str(error)).lower()
        raise ValueError(f"must be a PEM file with certificates ({reason}): name one that this user may read") from None
    return value


def _start(value: object) -> object:
    if isinstance(value, str) and value not in ("earliest", "latest"):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if value in ("earliest", "latest") or (isinstance(value, datetime) and value.tzinfo is not None):
        return value
    raise ValueError("must be earliest, latest, or a time with its offset from UTC, like 2026-01-31T12:00:00Z")


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def servers_like(example: str, *, scheme: str = "") -> AfterValidator:
    """Addresses of one service. scheme: may precede each of them."""

    def check(value: str) -> str:
        for each in value.split(","):
            host, _, port = each.strip().removeprefix(scheme).rpartition(":")
            is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 65_536
            if not host or not is_port or set(host) & set("/@"):
                raise ValueError(f"must be HOST:PORT, or several separated by commas, like {example}")
        return value

    return AfterValidator(check)


def are_loopback(servers: str, *, scheme: str = "") -> bool:
    """Whether only this machine can reach the servers, which are written as for `servers_like`."""
    hosts = [each.strip().removeprefix(scheme).rpartition(":")[0] for each in servers.split(",")]
    return all(is_loopback(host.strip("[]")) for host in hosts)


def _conf(value: object) -> object:
    """The values have to be texts, but people write numbers and true."""
    if not isinstance(value, Mapping):
        return value
    return {
        k: str(v).lower() if isinstance(v, bool) else str(v) if isinstance(v, int | float) else v
        for k, v in value.items()
    }


def _shallow(problem: Callable[[str], str | None]) -> AfterValidator:
    def check(value: str) -> str:
        if (why := problem(value)) is not None:
            raise ValueError(why)
        return value

    return AfterValidator(check)


def _dsn(value: SecretStr) -> SecretStr:
    read_dsn(value.get_secret_value())
    return value


def _url(value: SecretStr) -> SecretStr:
    checked_url(value.get_secret_value())
    return value


def _headers(value: Mapping[str, SecretStr]) -> Mapping[str, SecretStr]:
    """A client refuses such a header at every request, without its name."""
    broken = [name for name, secret in value.items() if _CONTROL.search(secret.get_secret_value())]
    if broken:
        raise ValueError(
            f"the value of {', '.join(broken)} has a line break or another control character: remove it; a file often ends"
            " with a line break"
        )
    return value


def _credential(value: object) -> object:
    if not is_credential(value):
        raise ValueError("must be a credential of azure-identity, like DefaultAzureCredential(), and not a key")
    return value


Text = Annotated[str, StringConstraints(min_length=1)]
Ddl = Annotated[Text, _shallow(schema_problem)]
Sql = Annotated[Text, _shallow(sql_problem)]
Count = Annotated[int, BeforeValidator(_not_bool), Field(ge=1, le=2**53)]
Series = Annotated[int, BeforeValidator(_not_bool), Field(ge=0, le=1000)]
"""How many time series a metric may add."""
Port = Annotated[int, BeforeValidator(_not_bool), Field(ge=0, le=65_535)]
RecordBytes = Annotated[int, BeforeValidator(_not_bool), Field(ge=1, le=64 * 1024 * 1024)]
Connections = Annotated[int, BeforeValidator(_not_bool), Field(ge=1, le=1000)]
Seconds = Annotated[float, BeforeValidator(_not_bool), Field(gt=0, le=10 * 365 * 86_400)]
LeaseSeconds = Annotated[float, BeforeValidator(_not_bool), Field(ge=0.1, le=3600)]
SecondsOrNone = Annotated[float, BeforeValidator(_not_bool), Field(ge=0, le=86_400)]
Share = Annotated[float, BeforeValidator(_not_bool), Field(ge=0, le=1)]
Memory = Annotated[str, _matching(_MEMORY, "must be a number with k, m, g or t, like 512m")]
HostName = Annotated[
    str,
    _matching(_HOST_NAME, "must be 1 to 128 of A-Z, a-z, 0-9, dot, dash and underscore, the first a letter or digit"),
]
PipelineName = Annotated[
    str, _matching(_PIPELINE_NAME, "must be 1 to 63 of a-z, 0-9, dot, dash and underscore, the first a letter or digit")
]
ProcessorName = Annotated[
    str, _matching(_PROCESSOR_NAME, "must be what a document's id may hold: at most 255 characters, none of / \\ ? #")
]
BlobContainerName = Annotated[
    str, _matching(_BLOB_CONTAINER_NAME, "must be 3 to 63 of a-z, 0-9 and single dashes between them")
]
Variable = Annotated[
    str, _matching(_VARIABLE, "must be the name of an environment variable, like BANK_DSN, and not its value")
]
Importable = Annotated[str, _matching(_IMPORTABLE, "must name something to import, like package.module:name")]
Conf = Annotated[Mapping[str, str], BeforeValidator(_conf)]
Prefetch = Annotated[int, BeforeValidator(_not_bool), Field(ge=1, le=100_000)]
Credential = Annotated[Any, AfterValidator(_credential)]
StartAt = Annotated[Any, BeforeValidator(_start)]

Given = TypeVar("Given", contravariant=True)
Kept = TypeVar("Kept", covariant=True)


class ConvertedSetting(Generic[Given, Kept]):
    """A field for type checkers: the type of its argument, and the type of what the section keeps."""

    @overload
    def __get__(self, section: None, owner: type) -> Self: ...
    @overload
    def __get__(self, section: object, owner: type) -> Kept: ...
    def __get__(self, section: object, owner: type) -> Self | Kept:
        raise NotImplementedError

    def __set__(self, section: object, value: Given) -> None: ...


if TYPE_CHECKING:
    Secret = ConvertedSetting[str | SecretStr, SecretStr]
    SecretOrNone = ConvertedSetting[str | SecretStr | None, SecretStr | None]
    Headers = ConvertedSetting[Mapping[str, str] | Mapping[str, SecretStr], Mapping[str, SecretStr]]
    Dsn = Secret
    DsnOrNone = SecretOrNone
    Url = Secret
    FilePath = ConvertedSetting[str | Path, Path]
    Glob = ConvertedSetting[str | Path, str]
    FilePathOrNone = ConvertedSetting[str | Path | None, Path | None]
    Certificates = FilePathOrNone
else:
    Secret = Annotated[SecretStr, Field(min_length=1)]
    SecretOrNone = Secret | None
    Headers = Annotated[Mapping[str, Secret], AfterValidator(_headers)]
    Dsn = Annotated[SecretStr, Field(min_length=1), AfterValidator(_dsn)]
    DsnOrNone = Dsn | None
    Url = Annotated[SecretStr, Field(min_length=1), AfterValidator(_url)]
    FilePath = Annotated[Path, AfterValidator(_resolved)]
    FilePathOrNone = FilePath | None
    Glob = Annotated[Text, BeforeValidator(_as_text), AfterValidator(_resolved_glob)]
    Certificates = Annotated[Path, AfterValidator(_resolved), AfterValidator(_certificates)] | None

NONE: Any = None
"""The default of a field that is `ConvertedSetting`: type checkers compare a default with what the section keeps."""
