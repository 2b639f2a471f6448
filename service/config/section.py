"""What all sections of the configuration have in common.

The section of a system also makes its feed, sink or lease store. It imports the connector only then: some SDKs take a second.
"""

from __future__ import annotations

import difflib
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from pydantic import BaseModel, ConfigDict, Discriminator, Field, SecretStr, model_validator
from pydantic_core import ErrorDetails

from leasehold.common.azure import Identity
from leasehold.pipeline.limits import AsyncLimits
from leasehold.service.config.types import (
    NONE,
    Certificates,
    Count,
    Credential,
    Importable,
    Seconds,
    SecondsOrNone,
    SecretOrNone,
    Share,
    StartAt,
    Text,
)
from leasehold.service.texts import redacted

if TYPE_CHECKING:
    import pyarrow as pa

    from leasehold.leases.stores.blob import CheckpointBlobs
    from leasehold.leases.stores.cosmos import Monitored
    from leasehold.leases.timing import Timing
    from leasehold.pipeline.connectors.files.sink.storage import Storage
    from leasehold.pipeline.dead_letters import LetterBox
    from leasehold.pipeline.feed import ChangeFeed
    from leasehold.pipeline.sink import Sink

# Error messages for invalid settings.


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
"""pydantic's errors, where its own words would not tell a person what to write."""


def message_of(error: ErrorDetails) -> str:
    """Without the value. A rule of ours may have several things to say, each on a line."""
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
"""Settings that people look for where they are not."""
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


# How to install what an extra needs: Leasehold itself is on no package index, and its requirements are.


def install_command(extra: str) -> str:
    try:
        return command_of(extra, requires("leasehold") or ())
    except PackageNotFoundError:  # run from its sources
        return command_of(extra, ())


def command_of(extra: str, requirements: Iterable[str]) -> str:
    """requirements: as a distribution's metadata has them (PEP 508)."""
    found = [each.partition(";") for each in requirements]
    wanted = [
        name.strip() for name, _, marker in found if re.search(rf"""extra == ['"]{re.escape(extra)}['"]""", marker)
    ]
    return "pip install " + " ".join(f"'{name}'" for name in sorted(wanted) or [f"leasehold[{extra}]"])


GIVEN = "given by a program"
"""Stands for every part that a program has made itself. No file can name it."""
CUSTOM = "module:Class"
"""Stands for every `type` that names a third party's class."""


class Section(BaseModel):
    """What all sections have in common: nothing unknown, nothing changes, nothing infinite."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, validate_default=True
    )

    program_arguments: ClassVar[tuple[str, ...]] = ()
    """More arguments that a program may give."""

    if not TYPE_CHECKING:  # type checkers derive the arguments from the fields

        def __init__(self, /, *positional: object, **values: Any) -> None:
            """Raises ConfigurationError, with all problems."""
            from leasehold.service.config.arguments import check_named, raising

            check_named(type(self), positional, values)
            with raising(type(self)):
                super().__init__(**values)

        # Otherwise pydantic would call it for each section of a file, and the errors would lose their places.
        __init__.__pydantic_base_init__ = True


class Given(Section):
    """A part that a program has made itself, instead of settings."""

    type: str = Field(default=GIVEN, exclude=True)
    part: Any = Field(exclude=True)


class Custom(Section):
    """Other keys than those named here are arguments of the class."""

    model_config = ConfigDict(extra="allow")
    type: Importable

    @property
    def options(self) -> Mapping[str, Any]:
        return dict(self.model_extra or {})

    def __repr_args__(self) -> list[tuple[str | None, Any]]:
        """Without the values of `options`, which may be secrets."""
        return [(name, "..." if name in self.options else value) for name, value in super().__repr_args__()]


def tag_of(default: str | None, *known: str, is_open: bool = True) -> Discriminator:
    """is_open: whether a third party's class is allowed, too."""

    def tag(value: object) -> str | None:
        if isinstance(value, Given):
            return GIVEN
        name = value.get("type", default) if isinstance(value, Mapping) else getattr(value, "type", None)
        return str(name) if name in known else CUSTOM if is_open and isinstance(name, str) and ":" in name else None

    return Discriminator(
        tag,
        custom_error_type="unknown_type",
        custom_error_message=", ".join(known) + (", or a class to import like package.module:Class" if is_open else ""),
    )


# What the feeds, the sinks and the dead letters of all systems have in common.


Seat = tuple[str, str]
"""A hub and a consumer group: a reader with an epoch excludes other readers of its partition there."""


@dataclass(frozen=True, slots=True)
class FeedContext:
    """What a feed needs to know of its pipeline. columns: those of the schema, each with whether it is NOT NULL.

    yields_malformed: whether a record that cannot become an event becomes a dead letter.
    """

    pipeline: str = "PIPELINE"
    yields_malformed: bool = False
    columns: Mapping[str, bool] = field(default_factory=dict)


class FeedSettings(Section):
    start: StartAt = Field(
        default="earliest",
        description="The start of partitions that exist at the first run: `earliest`, `latest`, or a time like"
        " 2026-01-31T12:00:00Z. Partitions that appear later are read from their beginning.",
    )
    starts: Mapping[str, StartAt] = Field(
        default={},
        description="The start of single partitions, by name, instead of `start`: for each `earliest`, `latest` or a time.",
    )

    @property
    def seat(self) -> Seat | None:
        """Where no other reader may be; None if others do no harm."""
        return None

    @property
    def executors_seat(self) -> Seat | None:
        """No feed may read here, because Spark's executors do, without an epoch. None: they read nowhere."""
        return None

    @property
    def executors_lack(self) -> str | None:
        """The setting without which Spark's executors cannot read the feed, and what it is for; None if they can."""
        return None

    @property
    def log_path(self) -> Path | None:
        """The directory of the embedded log that it reads; None if it reads none."""
        return None

    def monitored(self, pipeline: str, feed: ChangeFeed) -> Monitored | None:
        """What leases in Cosmos DB are named after; None if it is the pipeline alone. feed: as `make` returned it."""
        return None

    @property
    def checkpoint_container(self) -> tuple[StorageAccess, str] | None:
        """The account and the container of checkpoint blobs; None: none are written."""
        return None

    def make_checkpoint_blobs(self) -> CheckpointBlobs | None:
        """Where positions are written for other readers; None: nowhere. Raises ValueError."""
        return None

    @abstractmethod
    def make(self, context: FeedContext) -> ChangeFeed:
        """Raises ValueError, StartFailed."""


class SinkSettings(Section):
    @property
    def seat(self) -> Seat | None:
        """Where the sink reads back its own output; None if it does not."""
        return None

    @property
    def input_bytes_max(self) -> int | None:
        """A smaller limit for batches, because the output of a larger one would have to be cut; None: it need not be."""
        return None

    @property
    def input_events_max(self) -> int | None:
        """A smaller limit for batches, because a crash would repeat more of larger ones; None: there is none."""
        return None

    @property
    def unkept_s(self) -> float:
        """The longest time between checkpoints of a sink that holds no position."""
        return 0.0

    @property
    def log_path(self) -> Path | None:
        """The directory of the embedded log that it writes; None if it writes none."""
        return None

    @property
    def writes_files(self) -> bool:
        return False

    def make_place(self) -> Storage:
        """The place of the files, for writing and for reading; of a sink that `writes_files`. Raises ValueError."""
        raise NotImplementedError

    def import_code(self) -> None:
        """Import what the sink names as `module:attribute`. Raises SinkRejected."""

    def check_output(self, table: pa.Table) -> None:
        """Whether the destination takes these columns and values, as far as that is known without it. Raises SinkRejected."""

    @abstractmethod
    def make(self, timing: Timing, *, letters: bool = False) -> Sink:
        """letters: whether it is to take dead letters with its output. Raises ValueError, StartFailed."""


class Buffering(SinkSettings):
    """For each partition separately; see docs/sinks.md."""

    batch_entries_max: Count = Field(
        default=AsyncLimits().batch_entries_max, description="Entries in one request at most."
    )
    batch_bytes_max: Count = Field(default=AsyncLimits().batch_bytes_max, description="Bytes in one request at most.")
    entry_bytes_max: Count = Field(
        default=AsyncLimits().entry_bytes_max,
        description="A larger entry stops its partition; at most `batch_bytes_max`.",
    )
    in_flight_max: Count = Field(
        default=AsyncLimits().in_flight_max, description="Requests of one partition at a time, while all goes well."
    )
    buffered_entries_max: Count = Field(
        default=AsyncLimits().buffered_entries_max,
        description="The most entries of one partition that are taken and not yet acknowledged without a gap. Reading"
        " pauses at this limit. At least `batch_entries_max`.",
    )
    buffer_age_max_s: SecondsOrNone = Field(
        default=AsyncLimits().buffer_age_max_s, description="How long an entry waits for its request to fill up."
    )
    request_timeout_s: Seconds = Field(
        default=AsyncLimits().request_timeout_s, description="A request without an answer for so long is sent again."
    )

    @property
    def limits(self) -> AsyncLimits:
        return AsyncLimits(**{name: getattr(self, name) for name in AsyncLimits.__dataclass_fields__})

    @model_validator(mode="after")
    def _fits_together(self) -> Buffering:
        if problems := list(self.limits.problems()):
            raise ValueError("\n".join(problems))
        return self


class LettersSettings(Section):
    share_max: Share = Field(
        default=0.1,
        description="The partition stops if a larger share of its last `share_events` events become dead letters. 1:"
        " it never stops for that.",
    )
    share_events: Count = Field(default=1000, description="The number of last events that `share_max` refers to.")

    @abstractmethod
    def make_box(self, pipeline: str, sink: SinkSettings, timing: Timing) -> LetterBox:
        """The store of a pipeline's letters; with a sink of its own, unless the pipeline's sink takes them. Raises ValueError."""


# Azure credentials, shared by leases, feeds and sinks.


IDENTITY = (
    "Instead of a key: `default` for the identity that azure-identity finds (this is also the default), or the client"
    " id of a managed identity. It needs the role "
)


class AzureCredentials(TypedDict):
    """Secrets and all: what the connectors take."""

    key: str | None
    connection_string: str | None
    identity: Identity | None


class WithCredential(Section):
    """What a program may have instead of the settings of a file."""

    credential: Credential | None = Field(default=None, exclude=True, repr=False)

    def identity_or(self, name: str | None) -> Identity | None:
        """Raises ValueError if there are both."""
        if name is not None and self.credential is not None:
            raise ValueError("has both `identity` and `credential`: keep one of them")
        return name if self.credential is None else self.credential


def azure_credentials(
    key: SecretStr | None, connection_string: SecretStr | None, identity: Identity | None
) -> AzureCredentials:
    """Without a key, azure-identity finds the credentials."""
    is_anybody = identity is None and key is None and connection_string is None
    return {
        "key": None if key is None else key.get_secret_value(),
        "connection_string": None if connection_string is None else connection_string.get_secret_value(),
        "identity": "default" if is_anybody else identity,
    }


class StorageAccess(AzureCredentials):
    """The arguments of `storage_account_of`."""

    account_url: str | None
    ca_file: Path | None


class StorageAccount(WithCredential):
    account_url: Text | None = Field(
        default=None, description="The address of the account's blobs, like https://account.blob.core.windows.net."
    )
    key: SecretOrNone = Field(
        default=NONE, description="One of the account's keys. By default azure-identity provides the credentials."
    )
    connection_string: SecretOrNone = Field(
        default=NONE,
        description="Instead of `account_url` and `key`, as the portal shows it; one with a signature (SAS) too.",
    )
    identity: Text | None = Field(default=None, description=IDENTITY + "Storage Blob Data Contributor.")
    ca_file: Certificates = Field(
        default=NONE, description="Certificates (PEM) to trust instead of the system's, for an emulator with its own."
    )

    @property
    def account(self) -> StorageAccess:
        """How to reach it, secrets and all."""
        return {
            "account_url": self.account_url,
            "ca_file": self.ca_file,
            **azure_credentials(self.key, self.connection_string, self.identity_or(self.identity)),
        }
