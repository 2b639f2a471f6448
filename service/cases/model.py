"""A file of cases: YAML -> CaseFile, or every problem in it at once. Pure, except for `load_cases` and `load_settings`."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from leasehold.service.config.environment import key_of
from leasehold.service.config.load import line_of, load, text_of
from leasehold.service.config.messages import message_of
from leasehold.service.config.section import Section
from leasehold.service.config.settings import Settings
from leasehold.service.config.strict_yaml import UNREADABLE, KeyPath, SettingsProblem, YamlDocument, read
from leasehold.service.config.types import Count, Importable, Text
from leasehold.service.errors import ConfigurationError

SUFFIX = ".cases.yaml"
QUICK_JAVA = ("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
"""A variable for the environment in which Spark starts, unless it is set: cases end before Java's second compiler pays off."""
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


def _time(value: object) -> object:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError("must be a time with its offset from UTC, like 2026-01-31T12:00:00Z")
    return value


class CaseEvent(Section):
    body: Any = None
    key: str | None = None
    properties: Mapping[str, str] | None = None
    operation: str | None = None
    time: Annotated[Any, BeforeValidator(_time)] = LONG_AGO
    partition: Text = "0"

    @property
    def octets(self) -> bytes | None:
        """A text as it is, and anything else as JSON."""
        if self.body is None:
            return None
        return (self.body if isinstance(self.body, str) else json_text(self.body)).encode()


class ExpectedLetter(Section):
    event: Count
    reason: str = ""


class Case(Section):
    name: Text
    pipeline: Text | None = None
    events: Annotated[tuple[CaseEvent, ...], Field(min_length=1)]
    columns: tuple[Text, ...] | None = None
    rows: tuple[dict[str, Any], ...] | None = None
    order: Literal["any", "partition", "exact"] = "any"
    dead_letters: tuple[ExpectedLetter, ...] = ()
    stops: Text | None = None
    kill: bool = True
    batches: Literal["any", "one"] = "any"
    ignore: tuple[Text, ...] = ()
    query: Text | None = None
    state: Importable | None = None
    reset: Importable | None = None

    @model_validator(mode="after")
    def _fits(self) -> Case:
        if self.rows is None and "rows" in self.model_fields_set:
            raise ValueError("has `rows` without a value: write [] if none are expected, or remove the key")
        for each in self.dead_letters:
            if each.event > len(self.events):
                raise ValueError(
                    f"expects a dead letter of event {each.event}, and has {len(self.events)} events: count them from 1"
                )
        partitions = {event.partition for event in self.events}
        if self.order == "partition" and len(partitions) > 1 and any("partition" not in row for row in self.rows or ()):
            raise ValueError("has `order: partition` and events in several partitions: give each row its `partition`")
        if (self.state is None) != (self.reset is None):
            raise ValueError(
                "`state` and `reset` go together: one reads what the handler has done, and the other removes it"
            )
        return self

    @property
    def partitions(self) -> list[str]:
        """The partitions, in the order of their first events."""
        return list(dict.fromkeys(event.partition for event in self.events))


class _Cases(Section):
    config: Text | None = None
    cases: Annotated[tuple[Case, ...], Field(min_length=1)]


_MODELS: Mapping[KeyPath, type[Section]] = {
    (): _Cases,
    ("cases",): Case,
    ("cases", "events"): CaseEvent,
    ("cases", "dead_letters"): ExpectedLetter,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCase:
    """A case, the name of its pipeline, and where it is."""

    case: Case
    pipeline: str
    path: Path
    line: int

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFile:
    """config: the configuration that it is about. names_config: whether the file itself names it."""

    path: Path
    config: Path
    names_config: bool
    cases: tuple[Case, ...]
    document: YamlDocument

    def placed(self, settings: Settings) -> list[PlacedCase]:
        """The cases, each with its pipeline. Raises ConfigurationError."""
        sinks = {each.name: each.sink.type for each in settings.pipelines}
        names = list(sinks)
        problems, found = [], []
        for index, case in enumerate(self.cases):
            place: KeyPath = ("cases", index)
            line = line_of(place, self.document)
            name = case.pipeline or (names[0] if len(names) == 1 else None)
            if name is None:
                problems.append(SettingsProblem(line, f"{key_of(place)} needs `pipeline`: one of {', '.join(names)}"))
            elif name not in names:
                line = line_of((*place, "pipeline"), self.document)
                known = f"{self.config} has {', '.join(names)}"
                problems.append(SettingsProblem(line, f"{key_of(place)}.pipeline is '{name}', and {known}"))
            elif (unused := _unused(case, sinks[name])) is not None:
                key, sink = unused
                line = line_of((*place, key), self.document)
                problems.append(
                    SettingsProblem(
                        line,
                        f"{key_of(place)}.{key} needs a sink `{sink}`, and '{name}' has `{sinks[name]}`: remove it",
                    )
                )
            else:
                found.append(PlacedCase(case=case, pipeline=name, path=self.path, line=line))
        _raise_any(self.path, problems)
        return found


def cases_beside(config: Path) -> Path:
    """The file of cases that belongs to a configuration: bank.yaml -> bank.cases.yaml."""
    return config.with_name(config.stem + SUFFIX)


def load_cases(path: Path) -> CaseFile:
    """Raises ConfigurationError."""
    return parse_cases(text_of(path), path)


def parse_cases(text: str, path: Path) -> CaseFile:
    document = read(text, fraction=Decimal)
    problems = list(document.problems)
    found = None
    if isinstance(document.root, dict):
        try:
            found = _Cases.model_validate(document.root)
        except ValidationError as error:
            problems += [each for one in error.errors(include_url=False) for each in _described(one, document)]
    elif not problems:
        problems.append(SettingsProblem(1, "this is not a mapping: begin with `cases:`"))
    if found is not None:
        problems += _doubles(found.cases, document)
    _raise_any(path, problems)
    assert found is not None, "a problem was found"
    config = path.with_name(path.name.removesuffix(SUFFIX) + ".yaml")
    if found.config is not None:
        config = path.parent / found.config
    return CaseFile(
        path=path, config=config, names_config=found.config is not None, cases=found.cases, document=document
    )


def _unused(case: Case, sink: str) -> tuple[str, str] | None:
    """A key that has no effect with a sink of this type, and the type that it is for."""
    if case.query is not None and sink != "postgres":
        return "query", "postgres"
    return ("state", "python") if case.state is not None and sink != "python" else None


def _doubles(cases: Sequence[Case], document: YamlDocument) -> Iterator[SettingsProblem]:
    names: dict[str, int] = {}
    for index, case in enumerate(cases):
        if names.setdefault(case.name, index) != index:
            line = line_of(("cases", index, "name"), document)
            yield SettingsProblem(
                line, f"'{case.name}' is the name of cases[{names[case.name]}] too: rename one of them"
            )


def _described(error: ErrorDetails, document: YamlDocument) -> Iterator[SettingsProblem]:
    if error["input"] is UNREADABLE or (error["type"] == "too_short" and error["input"]):
        return  # reported already
    place = tuple(error["loc"])
    line = line_of(place, document)
    if error["type"] == "extra_forbidden":
        known = list(_MODELS[tuple(part for part in place[:-1] if isinstance(part, str))].model_fields)
        near = difflib.get_close_matches(str(place[-1]), known, n=1, cutoff=0.5)
        yield SettingsProblem(
            line,
            f"{key_of(place)} is not a key of a case: "
            + (f"did you mean `{near[0]}`?" if near else f"known here are {', '.join(known)}"),
        )
    elif error["type"] == "missing":
        yield SettingsProblem(line, f"{key_of(place)} is missing: give it a value")
    else:
        yield SettingsProblem(line, f"{key_of(place)} {message_of(error)}")


def _raise_any(path: Path, problems: Sequence[SettingsProblem]) -> None:
    """Raises ConfigurationError."""
    if problems:
        lines = sorted(problems, key=lambda problem: problem.line)
        raise ConfigurationError(str(path), [f"line {p.line}: {p.text}" if p.line else p.text for p in lines])


def json_text(value: object) -> str:
    """As JSON, with all digits of a number, which a float would lose."""
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)}: {json_text(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


_TESTED = ("name", "schema", "sql", "function", "setup", "merge", "table", "mode", "handler", "type")
"""Keys of a pipeline and of its sink that decide what comes out: their variables must be set."""
_UNSET = "unset.invalid"


def load_settings(path: Path, env: Mapping[str, str]) -> Settings:
    """The configuration. Variables that only specify how to connect may be unset. Raises ConfigurationError."""
    return load(path, env, _stand_in)


def _stand_in(place: KeyPath, section: Mapping[str, object]) -> str | None:
    if place[0] == "pipelines":
        is_tested = any(part in _TESTED for part in place[2:]) or isinstance(place[-1], int)
        return None if is_tested or len(place) < 4 else _connection(place, section)
    return None if place[0] == "spark" else _UNSET


def _connection(place: KeyPath, section: Mapping[str, object]) -> str:
    """A placeholder of the form that the setting has. Those of two settings are never equal."""
    name, own = str(place[-1]), "-".join(map(str, place)).replace("_", "-")
    if name == "path":  # its ending may show a format
        path = re.sub(r"\$\{[^}]*\}", own, str(section["path"]))
        return path if Path(path).suffix or section.get("type") != "files" else f"{path}.jsonl"
    if name == "dsn":
        return f"postgresql://{_UNSET}/{own}"
    if name == "connection_string":
        hub = "" if "event_hub" in section else f";EntityPath={own}"
        key = "dW5zZXQ="
        return (
            f"Endpoint=sb://{own}.{_UNSET}/;SharedAccessKeyName=unset;SharedAccessKey={key};AccountEndpoint=https://{_UNSET}/;"
            f"AccountName=unset;AccountKey={key}{hub}"
        )
    if name == "key":
        return "dW5zZXQ="
    if name in ("namespace", "event_hub", "container", "database", "consumer_group"):
        return own if name != "namespace" else f"{own}.{_UNSET}"
    return f"https://{_UNSET}/{own}" if name in ("url", "endpoint", "account_url") else own
