"""What users of the change feed processors write at first is refused, in code and in files, with what to write instead."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasehold import (
    Api,
    ConfigurationError,
    Context,
    CosmosFeed,
    Event,
    EventHubsFeed,
    FilesFeed,
    Handler,
    HostSettings,
    LogSink,
    MemoryFeed,
    MemoryLeases,
    MemorySink,
    Notifications,
    Pipeline,
    Processor,
    Sql,
    SqliteLeases,
)
from leasehold.service.config.load import load
from leasehold.service.wiring.problems import find_problems

FEED = MemoryFeed(changes={"0": (1,)})


async def on_changes(changes: list[Event], context: Context) -> None: ...


class Opens(Handler):
    def open(self) -> None: ...  # type: ignore[override]

    def process(self, changes: list[Event], context: Context) -> None: ...


class Plain:
    def process(self, changes: list[Event], context: Context) -> None: ...


def numbers(changes: list[Event], context: Context) -> Iterator[int]:
    yield 1


class Whole(Handler):
    def process(self, changes: list[Event], context: Context) -> None: ...


class Pooled(Handler):
    def __init__(self, pool: str) -> None: ...

    def process(self, changes: list[Event], context: Context) -> None: ...


class TurnedRound(Handler):
    def process(self, context: Context, changes: list[Event]) -> None: ...  # type: ignore[override]


class Half(Handler, ABC):
    def process(self, changes: list[Event], context: Context) -> None: ...

    @abstractmethod
    def more(self) -> None: ...


class Fixed(Handler):
    process = 5  # type: ignore[assignment]


async def make_whole() -> Whole:
    return Whole()


def answered() -> object:
    """What a call of a handler returns."""
    call = on_changes([], anything)
    call.close()
    return call


def pipeline_of(**arguments: Any) -> Pipeline:
    return Pipeline("orders", **{"feed": FEED, **arguments})


PIPELINE = pipeline_of(handler=on_changes)
anything: Any = Processor
IN_CODE: dict[str, tuple[Callable[[], object], str]] = {
    "no pipeline": (lambda: Processor(), "needs a pipeline: Processor(Pipeline(...), leases=...)"),
    "a list of pipelines": (
        lambda: anything([PIPELINE]),
        "not a list of them: write Processor(*pipelines, leases=...)",
    ),
    "pipelines by name": (
        lambda: Processor(pipelines=[PIPELINE]),
        "without a name: Processor(Pipeline(...), leases=...)",
    ),
    "the class Pipeline": (
        lambda: anything(Pipeline),
        "is the class Pipeline: write Processor(Pipeline(...), leases=...)",
    ),
    "leases without a name": (lambda: anything(PIPELINE, SqliteLeases()), "write Processor(Pipeline(...), leases=...)"),
    "a name twice": (
        lambda: Processor(PIPELINE, PIPELINE),
        "two pipelines are named 'orders': every name is used once",
    ),
    "timing": (
        lambda: Processor(PIPELINE, timing=30),
        "intervals belong to `leases`, like SqliteLeases(duration_s=30)",
    ),
    "store": (lambda: Processor(PIPELINE, store=MemoryLeases()), "`store` is not a setting: it is called `leases`"),
    "a function as leases": (lambda: anything(PIPELINE, leases=on_changes), "must be a section, like SqliteLeases()"),
    "a path as leases": (lambda: anything(PIPELINE, leases="leases.db"), "must be a section, like SqliteLeases()"),
    "the class of leases": (lambda: anything(PIPELINE, leases=SqliteLeases), "must be a section, like SqliteLeases()"),
    "a number as spark": (
        lambda: anything(PIPELINE, spark=30),
        "`spark` is of type int, and must be a section, like Spark()",
    ),
    "a port as api": (lambda: anything(PIPELINE, api=8080), "`api` is of type int, and must be a section, like Api()"),
    "a name of a host": (lambda: Processor(PIPELINE, host="a b"), "`host` is 'a b', and must be 1 to 128 of"),
    "a number as host": (
        lambda: anything(PIPELINE, host=5),
        "`host` is of type int, and must be a name, like 'pod-1', or HostSettings(name='pod-1')",
    ),
    "a function as observer": (
        lambda: anything(PIPELINE, on=print),
        "`on`: it is of type builtin_function_or_method, which does not derive from leasehold.Notifications: derive a class",
    ),
    "a number as observer": (lambda: anything(PIPELINE, on=5), "`on`: it is of type int, which does not derive from"),
    "the class of an observer": (
        lambda: anything(PIPELINE, on=Notifications),
        "`on`: Notifications is a class: pass an",
    ),
    "a number as path": (
        lambda: anything.from_yaml(5),
        "`path` is of type int, and must be the path of a file of settings",
    ),
    "a list of handlers": (
        lambda: anything.from_yaml("a.yaml", handlers=[on_changes]),
        (
            "`handlers` is of type list, and must be a mapping from the file's values of `handler` to functions, like"
            ' {"module:on_changes": on_changes}'
        ),
    ),
    "a number as query": (lambda: anything and Sql(5), '`text` is of type int, and must be a text, like Sql("SELECT'),  # type: ignore[arg-type]
    "a lambda as transform": (
        lambda: pipeline_of(handler=on_changes, transform=lambda events: events),
        "`transform` is '<lambda>.<locals>.<lambda>', which workers cannot find by its name: define it at the top",
    ),
    "a function as sink": (lambda: pipeline_of(sink=on_changes), "`sink` is a function: give it as `handler`"),
    "the class of a sink": (lambda: pipeline_of(sink=LogSink), "must be a section, like LogSink(path=...)"),
    "neither sink nor handler": (
        lambda: pipeline_of(),
        "needs `handler`, a function of yours, or `sink`, like LogSink(path=...)",
    ),
    "sink and handler": (lambda: pipeline_of(sink=LogSink(path=Path("a")), handler=on_changes), "remove one of them"),
    "gets without handler": (
        lambda: pipeline_of(sink=LogSink(path=Path("a")), gets="events"),
        "`gets` requires `handler`: add it",
    ),
    "a function as feed": (
        lambda: pipeline_of(feed=on_changes, handler=on_changes),
        "must be a section, like FilesFeed(path=...)",
    ),
    "the class of a feed": (
        lambda: pipeline_of(feed=FilesFeed, handler=on_changes),
        "must be a section, like FilesFeed(path=...)",
    ),
    "a sink as feed": (
        lambda: pipeline_of(feed=MemorySink(), handler=on_changes),
        "`feed` is of type MemorySink, and must be a section, like FilesFeed(path=...)",
    ),
    "a feed as leases": (
        lambda: anything(PIPELINE, leases=FEED),
        "`leases` is of type MemoryFeed, and must be a section, like SqliteLeases()",
    ),
    "a feed as sink": (
        lambda: pipeline_of(sink=FEED),
        "`sink` is of type MemoryFeed, and must be a section, like LogSink(path=...)",
    ),
    "all without names": (
        lambda: anything and Pipeline(*("orders", FEED, on_changes)),
        "Pipeline('orders', feed=..., handler=...)",
    ),  # type: ignore[misc]
    "start of a pipeline": (
        lambda: pipeline_of(handler=on_changes, start="latest"),
        "`start` is not a setting here: it belongs to the feed",
    ),
    "start beginning": (
        lambda: FilesFeed(path="a", start="beginning"),
        "`start` is 'beginning', and must be earliest, latest, or a time",
    ),  # type: ignore[arg-type]
    "start of a hub": (lambda: EventHubsFeed(start="-1"), "`start` is '-1', and must be earliest, latest, or a time"),  # type: ignore[arg-type]
    "a path without a name": (
        lambda: anything and FilesFeed("a"),
        "takes its arguments by name: write FilesFeed(path='a')",
    ),  # type: ignore[misc]
    "leases without names": (lambda: anything and SqliteLeases("a"), "write SqliteLeases(path='a')"),  # type: ignore[misc]
    "a port without a name": (lambda: anything and Api(8080), "write Api(port=8080)"),  # type: ignore[misc]
    "a host without a name": (lambda: anything and HostSettings("a"), "write HostSettings(name='a')"),  # type: ignore[misc]
    "duration": (lambda: SqliteLeases(duration=30), "`duration` is not a setting: did you mean `duration_s`?"),  # type: ignore[call-arg]
    "a connection string": (
        lambda: CosmosFeed(connection_string="x", database="a", container="b"),
        "must look like AccountEndpoint=https://...;AccountKey=...;",
    ),  # type: ignore[arg-type]
    "a number as handler": (
        lambda: pipeline_of(handler=3),
        "`handler` 'int' is of type int: write `async def NAME(changes, context)`",
    ),
    "an object as handler": (lambda: pipeline_of(handler=Whole()), "each lease needs its own: give the class Whole"),
    "a handler without process": (
        lambda: pipeline_of(handler=Handler),
        "define `async def process(self, changes, context)`",
    ),
    "a method with other arguments": (
        lambda: pipeline_of(handler=Opens),
        "`open` takes (self) -> 'None', and is called with (self, context): let it take these",
    ),
    "a class of no handler": (
        lambda: pipeline_of(handler=Plain),
        "does not derive from leasehold.Handler: derive it from that",
    ),
    "a generator": (lambda: pipeline_of(handler=numbers), "so calling it runs nothing: remove `yield` from it"),
    "one argument": (
        lambda: pipeline_of(handler=lambda one: None),
        "`handler` '<lambda>.<locals>.<lambda>' takes (one), and cannot be called with (changes, context)",
    ),
    "arguments turned round": (
        lambda: pipeline_of(handler=lambda context, changes: None),
        "takes (context, changes), and is called with (changes, context): swap the two",
    ),
    "arguments of azure-eventhub": (
        lambda: pipeline_of(handler=lambda partition_context, events: None),
        "takes (partition_context, events), and is called with (changes, context): swap the two",
    ),
    "arguments of a method turned round": (
        lambda: pipeline_of(handler=TurnedRound),
        "-> 'None', and is called with (self, changes, context): swap the two",
    ),
    "no argument": (
        lambda: pipeline_of(handler=lambda: None),
        "`handler` '<lambda>.<locals>.<lambda>' takes () and returns nothing: let it take (changes, context)",
    ),
    "a class that needs arguments": (
        lambda: pipeline_of(handler=Pooled),
        (
            "its `__init__` takes (pool: 'str') -> 'None', and each lease makes an object without arguments: give a function that"
            " makes it, like `handler=lambda: Pooled(...)`"
        ),
    ),
    "a partial of a class that needs more arguments": (
        lambda: pipeline_of(handler=partial(Pooled)),
        "`handler` 'Pooled': its `__init__` takes (pool: 'str') -> 'None' in addition: give these to `partial`",
    ),
    "a partial of a class of no handler": (
        lambda: pipeline_of(handler=partial(Plain)),
        "does not derive from leasehold.Handler: derive it from that",
    ),
    "a partial of a function of three arguments": (
        lambda: pipeline_of(handler=partial(lambda changes, context, pool: None)),
        "takes (changes, context, pool), and cannot be called with (changes, context): let it take these two",
    ),
    "an abstract class": (
        lambda: pipeline_of(handler=Half),
        "is an abstract class: define more in a subclass, and give that",
    ),
    "a process that is no method": (
        lambda: pipeline_of(handler=Fixed),
        "`process` is not a method: define `async def process(self, changes, context)`",
    ),
    "an async factory": (
        lambda: pipeline_of(handler=make_whole),
        (
            "is an `async def` function, and a factory of handlers is called without `await`: define it with `def`,"
            " and await in the handler's `open`"
        ),
    ),
    "a partial of an async factory": (
        lambda: pipeline_of(handler=partial(make_whole)),
        "`handler` 'make_whole' takes () -> 'Whole' and is an `async def` function",
    ),
    "a call of a handler": (
        lambda: pipeline_of(handler=answered()),
        "`handler` 'on_changes' is the result of a call: give the function itself, and do not call it",
    ),
    "a call of a generator": (
        lambda: pipeline_of(handler=numbers([], anything)),
        "`handler` 'numbers' is the result of a call: give the function itself, and do not call it",
    ),
    "a method of a handler's object": (
        lambda: pipeline_of(handler=Whole().process),
        "is a method of an object, and each lease needs an object of its own: give the class, or a function that makes such",
    ),
    "a method of no object": (
        lambda: pipeline_of(handler=Whole.process),
        "give that method of an object, or the class if it derives from leasehold.Handler",
    ),
    "a path with a dot": (
        lambda: pipeline_of(handler="a.on_changes"),
        "must name a handler to import, like package.module:name",
    ),
    "gets": (lambda: pipeline_of(handler=on_changes, gets="evnts"), "`gets` is 'evnts', and must be 'documents'"),
    "checkpoint_s": (
        lambda: pipeline_of(handler=on_changes, checkpoint_s="auto"),
        "`checkpoint_s` is 'auto', and must be a number, or `manual`",
    ),
    "manual and plain": (
        lambda: pipeline_of(handler=Whole, checkpoint_s="manual"),
        "`process` is a plain function, which cannot await `context.checkpoint`: define it with `async def`",
    ),
    "a number as parallel": (
        lambda: pipeline_of(handler=on_changes, parallel=64),
        '`parallel` is of type int, and must be a mapping, like {"key": "key", "max": 64}',
    ),
    "keys of a file as api": (
        lambda: anything(PIPELINE, api={"port": 1}),
        "`api` is of type dict, and must be a section: write Api(port=...)",
    ),
    "keys of a file as leases": (
        lambda: anything(PIPELINE, leases={"type": "sqlite", "path": "a.db"}),
        "`leases` is of type dict, and must be a section: write SqliteLeases(path=...)",
    ),
    "keys of a file as spark": (lambda: anything(PIPELINE, spark={}), "and must be a section: write Spark()"),
    "keys of a file as log": (
        lambda: anything(PIPELINE, log={"level": "off"}),
        "and must be a section: write LogSettings(level=...)",
    ),
    "keys of a file as telemetry": (
        lambda: anything(PIPELINE, telemetry={}),
        "`telemetry` is of type dict, and must be a section: write TelemetrySettings()",
    ),
    "keys of a file as host": (
        lambda: anything(PIPELINE, host={"name": "a"}),
        "`host` is of type dict, and must be a name, like 'pod-1', or HostSettings(name='pod-1')",
    ),
    "keys of a file as feed": (
        lambda: pipeline_of(feed={"type": "cosmos", "database": "a"}, handler=on_changes),
        "`feed` is of type dict, and must be a section: write CosmosFeed(database=...)",
    ),
    "a plug-in's keys as feed": (
        lambda: pipeline_of(feed={"type": "plugins:Feed"}, handler=on_changes),
        "must be a section, like FilesFeed(path=...), or an object of your class",
    ),
    "keys of a file as sink": (
        lambda: pipeline_of(sink={"path": "a"}),
        "`sink` is of type dict, and must be a section, like LogSink(path=...)",
    ),
    "keys of a handler as sink": (
        lambda: pipeline_of(sink={"type": "python", "handler": on_changes}),
        "`sink` is of type dict, and must be left out: give the function as `handler`",
    ),
    "keys of a file as dead letters": (
        lambda: pipeline_of(handler=on_changes, dead_letters={"type": "log", "path": "a"}),
        "`dead_letters` is of type dict, and must be a section: write LogLetters(path=...)",
    ),
    "a number as checkpoint blobs": (
        lambda: EventHubsFeed(checkpoint_blobs=5),  # type: ignore[arg-type]
        '`checkpoint_blobs` is of type int, and must be a mapping, like {"account_url": ..., "container": ...}',
    ),
    "rows without a transform": (
        lambda: pipeline_of(handler=on_changes, gets="rows"),
        "`gets: rows` needs a transform, whose output has rows: add one, or set `gets: events`",
    ),
    "a text as transform": (
        lambda: pipeline_of(handler=on_changes, transform="SELECT 1"),
        "must be Sql(...), a function from DataFrame to DataFrame, or None",
    ),
}

FILE = """
leases: {type: memory}
api: {enabled: false}
%s
pipelines:
  - {name: orders, feed: {type: files, path: "*.jsonl"%s}, sink: %s%s}
"""
PYTHON = '{type: python, handler: "%s"}'
GOOD = PYTHON % "my_handlers:on_changes"
IN_FILES: dict[str, tuple[tuple[str, str, str, str], str]] = {
    "timing": (
        ("timing: 30", "", GOOD, ""),
        "timing is not a setting here: intervals belong to `leases`, like `duration_s: 30`",
    ),
    "store": (("store: a.db", "", GOOD, ""), "store is not a setting here: it is called `leases`"),
    "start beginning": (
        ("", ", start: beginning", GOOD, ""),
        "feed.start is 'beginning', and must be earliest, latest, or a time",
    ),
    "start of a pipeline": (("", "", GOOD, ", start: latest"), "start is not a setting here: it belongs to the feed"),
    "handler of a pipeline": (("", "", GOOD, ', handler: "a:b"'), "as in `sink: {type: python, handler: module:name}`"),
    "a function as sink": (
        ("", "", "on_changes", ""),
        "must be a mapping of settings, like {type: python, handler: module:name}",
    ),
    "a handler without a type": (
        ("", "", '{handler: "a:b"}', ""),
        "sink.type is missing: it must be log, postgres, eventhubs, kafka, nats, pulsar, files, python",
    ),
    "a number as parallel": (
        ("", "", '{type: python, handler: "a:b", parallel: 64}', ""),
        "must be a mapping of settings, like {key: key, max: 64}",
    ),
    "a path with a dot": (("", "", PYTHON % "a.b", ""), "must name a handler to import, like package.module:name"),
    "nothing of that name": (("", "", PYTHON % "my_handlers:on_change", ""), "module 'my_handlers' has no 'on_change'"),
    "an incomplete class": (
        ("", "", PYTHON % "my_handlers:Half", ""),
        "has no method `process`: define `async def process(self, changes, context)`",
    ),
    "a class of no handler": (
        ("", "", PYTHON % "my_handlers:Plain", ""),
        "does not derive from leasehold.Handler: derive it from that",
    ),
    "an object": (("", "", PYTHON % "my_handlers:made", ""), "each lease needs its own: give the class Whole"),
    "a class that needs arguments": (
        ("", "", PYTHON % "my_handlers:Pooled", ""),
        "give a function that makes it, like `handler=lambda: Pooled(...)`",
    ),
    "an async factory": (("", "", PYTHON % "my_handlers:make", ""), "is called without `await`: define it with `def`"),
    "one argument": (
        ("", "", PYTHON % "my_handlers:one", ""),
        "cannot be called with (changes, context): let it take these two",
    ),
    "a generator": (("", "", PYTHON % "my_handlers:numbers", ""), "so calling it runs nothing: remove `yield` from it"),
}

MODULE = """
from leasehold import Handler

async def on_changes(changes, context): ...
async def one(changes): ...
def numbers(changes, context): yield 1
class Half(Handler): ...
class Plain:
    def process(self, changes, context): ...
class Whole(Handler):
    def process(self, changes, context): ...
class Pooled(Whole):
    def __init__(self, pool): ...
async def make(): return Whole()
made = Whole()
"""


@pytest.mark.parametrize("mistake", [*IN_CODE, *(f"file: {name}" for name in IN_FILES)])
async def test_a_mistake_is_refused_with_what_to_write(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mistake in IN_CODE:
        make, message = IN_CODE[mistake]
        with pytest.raises((ConfigurationError, TypeError)) as refused:
            make()
        assert message in str(refused.value)
        return
    parts, message = IN_FILES[mistake.removeprefix("file: ")]
    (tmp_path / "my_handlers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_handlers", raising=False)
    (tmp_path / "orders.yaml").write_text(FILE % parts)
    try:
        problems = await find_problems(load(tmp_path / "orders.yaml", {}))
    except ConfigurationError as error:
        problems = list(error.problems)
    assert any(message in problem for problem in problems), problems


def test_keys_of_a_file_hide_no_other_problem() -> None:
    with pytest.raises(ConfigurationError) as refused:
        pipeline_of(feed={"type": "cosmos", "start": "never"}, handler=on_changes, batch_events_max=0)
    assert len(refused.value.problems) == 2, refused.value.problems


def problems_of(make: Callable[[], object]) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        make()
    return [re.split(r"[ :(]", each)[0] for each in refused.value.problems]


def test_an_unknown_name_hides_no_other_problem(tmp_path: Path) -> None:
    assert problems_of(lambda: FilesFeed(pth="a", start="never", path=5)) == ["`pth`", "`start`", "`path`"]  # type: ignore[call-arg,arg-type]
    assert problems_of(lambda: SqliteLeases(duration=3, duration_s=0)) == ["`duration`", "`duration_s`"]  # type: ignore[call-arg]
    rules = {"timing": 1, "sql": "SELECT * FROM events", "function": "a:b"}
    assert problems_of(lambda: pipeline_of(handler=on_changes, **rules)) == ["`timing`", "has"]
    assert problems_of(lambda: pipeline_of(transform=5, sink=on_changes, feed=5, batch_events_max=0, strat=1)) == [
        "`transform`",
        "`sink`",
        "`strat`",
        "`feed`",
        "`batch_events_max`",
    ]
    assert problems_of(lambda: Processor(PIPELINE, PIPELINE, spark=5, host=5, on=5, store=5, leases=5)) == [  # type: ignore[arg-type]
        "`store`",
        "two",
        "`host`",
        "`on`",
        "`leases`",
        "`spark`",
    ]
    (tmp_path / "orders.yaml").write_text(FILE % ("bogus: 1", ", start: never", GOOD, ", batch_events_max: 0"))
    assert problems_of(lambda: Processor.from_yaml(tmp_path / "orders.yaml", handlers=[on_changes], on=5)) == [  # type: ignore[arg-type]
        "`handlers`",
        "`on`",
        "line",
        "line",
        "line",
    ]


async def test_mistakes_of_the_start_and_the_end_are_refused_at_once() -> None:
    processor = Processor(PIPELINE, leases=MemoryLeases())
    with pytest.raises(TypeError, match="write `async with processor:`"), processor:  # type: ignore[attr-defined]
        pass
    processor.start().close()  # without await
    with pytest.raises(RuntimeError, match="was not started: await `start`, or use `async with`"):
        await processor.wait()
    async with processor:
        pass
    with pytest.raises(RuntimeError, match="starts once: make another one"):
        await processor.start()
