"""Parts of third parties: what is told where one cannot be used, before anything relies on it."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leasehold.leases.store import LeaseStore
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryOutputSink
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.sink import Sink
from leasehold.service.cli.main import main
from leasehold.service.config.custom import CustomFeed, CustomLeases, CustomSink
from leasehold.service.config.load import parse
from leasehold.service.config.plugins import feed_made, lacks, sink_made, store_made
from leasehold.service.errors import StartFailed
from leasehold.service.wiring.build import notifications_of, pipelines_of
from leasehold.service.wiring.problems import find_problems

PARTS = """
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryOutputSink
from leasehold.pipeline.feed import ChangeFeed

class Feed(MemoryChangeFeed):
    def __init__(self, partitions: list[str], *, age_s: Annotated[float, Field(gt=0)] = 1.0,
                 token: SecretStr | None = None, mode: Literal["all", "new"] = "all"):
        super().__init__(partitions)
        self.age_s, self.token, self.mode = age_s, token, mode

class ForLater(MemoryChangeFeed):
    leasehold_interface = 2

class Picky(MemoryOutputSink):
    def __init__(self, **anything):
        if anything:
            raise LookupError("nothing fits")
        super().__init__()

class HalfASink:
    holds_position = True
    identity = "half"
    async def prepare(self): ...
    async def open(self): ...
    async def close(self): ...
    async def claimed(self, state): return state

class OnePage(MemoryChangeFeed):
    def __init__(self):
        super().__init__(["0"])
    async def open(self, partition, continuation):
        return None

class Misspelt(MemoryChangeFeed):
    def __init__(self):
        super().__init__(["0"])
    async def find_heldback(self, partition, continuation):
        return "an open line"

class Unfinished(ChangeFeed):
    identity = "unfinished"

class Slotted:
    __slots__ = ()
    async def list(self, prefix): ...
    async def read(self, id): ...
    async def create(self, id, body): ...
    async def replace(self, id, body, etag): ...
    async def delete(self, id, etag): ...
    async def close(self): ...

class Store(MemoryStore):
    pass

class NeverOpened(MemoryStore):
    async def close(self):
        self.connection.close()

def made_by_a_function(called: str) -> MemoryChangeFeed:
    return MemoryChangeFeed(["0"], name=called)

NUMBER = 7

from leasehold import Notifications

class Watch(Notifications):
    async def on_lease_lost(self, event): ...

class WatchMisspelt(Notifications):
    async def on_lease_lots(self, event): ...

def watch():
    return Watch()

def broken():
    raise LookupError("no such room")

WATCH = Watch()
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of PARTS, another one for every test."""
    name = f"parts_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def feed(parts: str, name: str, **settings: Any) -> Any:
    return feed_made(CustomFeed(type=f"{parts}:{name}", **settings))


def test_settings_come_as_their_parameters_say(parts: str) -> None:
    made = feed(parts, "Feed", partitions=["0", "1"], age_s="2.5", token="hidden", mode="new")
    assert (made.age_s, made.token.get_secret_value(), made.mode) == (2.5, "hidden", "new")


def test_a_setting_that_is_not_given_keeps_its_default(parts: str) -> None:
    assert feed(parts, "Feed", partitions=["0"]).age_s == 1.0


def test_a_function_may_make_the_part(parts: str) -> None:
    assert feed(parts, "made_by_a_function", called="deposits").identity == "memory:deposits"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "`partitions` is missing: give it a value"),
        ({"partitions": ["0"], "ages": 2}, "`ages` is not a setting: did you mean `age_s`?"),
        ({"partitions": ["0"], "zzz": 2}, "`zzz` is not a setting: known are partitions, age_s, token, mode"),
        ({"partitions": "0"}, "`partitions` must be"),
        ({"partitions": ["0", 1]}, "`partitions[1]` must be a text (put it in quotes)"),
        ({"partitions": ["0"], "age_s": 0}, "`age_s` must be greater than 0"),
        ({"partitions": ["0"], "mode": "old"}, "`mode` must be 'all' or 'new'"),
    ],
)
def test_settings_that_do_not_fit_are_told_by_name(parts: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(StartFailed) as failed:
        feed(parts, "Feed", **settings)
    assert str(failed.value).startswith(f"feed '{parts}:Feed' does not take its settings: ")
    assert told in str(failed.value)


def test_everything_that_is_wrong_with_its_settings_is_told_at_once_and_no_value(parts: str) -> None:
    with pytest.raises(StartFailed) as failed:
        feed(parts, "Feed", age_s="hunter2", token=["hunter2"], tokens="hunter2")
    assert all(name in str(failed.value) for name in ("`partitions`", "`age_s`", "`token`", "`tokens`"))
    assert "hunter2" not in str(failed.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Fed", "has no 'Fed'"),
        ("NUMBER", "is of type int: name a class, or a function that makes one"),
        (
            "ForLater",
            "is made for version 2 of the interface of feeds, and this Leasehold has 1: install a version of either that",
        ),
        ("OnePage", "`open` has to be an async generator, with `yield`"),
        ("Misspelt", "is not a feed: `find_heldback` is never called: did you mean `find_held_back`?"),
        ("Unfinished", "is not a feed: it has no `close`; it has no `compare`; it has no `lag`; it has no `latest`"),
        ("Store", "is not a feed: it has no `identity`; it has no `partitions`; it has no `start_of`"),
    ],
)
def test_a_class_that_is_no_feed_says_why(parts: str, name: str, told: str) -> None:
    with pytest.raises(StartFailed) as failed:
        feed(parts, name)
    assert told in str(failed.value)


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(StartFailed, match=r"^sink 'no_such_module:Sink' cannot be imported: there is no module"):
        sink_made(CustomSink(type="no_such_module:Sink"))


def test_every_method_that_cannot_be_called_as_it_will_be_is_told(parts: str) -> None:
    with pytest.raises(StartFailed) as failed:
        sink_made(CustomSink(type=f"{parts}:HalfASink"))
    assert str(failed.value) == (
        f"'{parts}:HalfASink' is not a sink: `claimed` has to be a plain `def`; `open` does not take what it is called with:"
        " (claim). docs/plugins.md describes what it needs"
    )


def test_what_its_own_code_raises_is_told_with_its_name(parts: str) -> None:
    with pytest.raises(StartFailed, match="cannot be created from its settings: LookupError: nothing fits"):
        sink_made(CustomSink(type=f"{parts}:Picky", any=1))


def test_a_lease_store_may_be_somebody_else_s(parts: str) -> None:
    assert isinstance(store_made(CustomLeases(type=f"{parts}:Store")), MemoryStore)
    with pytest.raises(StartFailed, match="is not a lease store: it has no `list`"):
        store_made(CustomLeases(type=f"{parts}:Picky"))


def test_a_part_without_its_base_class_is_refused(parts: str) -> None:
    with pytest.raises(StartFailed, match=r"Slotted does not derive from leasehold\.LeaseStore"):
        store_made(CustomLeases(type=f"{parts}:Slotted"))


@pytest.mark.parametrize(
    ("part", "protocol"),
    [(MemoryChangeFeed(["0"]), ChangeFeed), (MemoryOutputSink(), Sink), (MemoryStore(), LeaseStore)],
)
def test_our_own_parts_lack_nothing(part: object, protocol: type) -> None:
    assert [*lacks(part, protocol)] == []


SETTINGS = """
leases: {{type: "{parts}:Store", oops: 1}}
pipelines:
  - name: first
    feed: {{type: "{parts}:Feed"}}
    sink: {{type: "no_such_module:Sink"}}
  - name: second
    feed: {{type: "{parts}:Feed", partitions: ["0"]}}
    sink: {{type: "{parts}:Picky"}}
"""


async def test_all_parts_are_looked_at(parts: str, tmp_path: Path) -> None:
    problems = await find_problems(parse(SETTINGS.format(parts=parts), {}, folder=tmp_path))
    assert [problem[: len("pipeline 'first': feed")] for problem in problems] == [
        "leases: lease store 'p",
        "pipeline 'first': feed",
        "pipeline 'first': sink",
    ]


async def test_a_part_that_cannot_be_closed_unused_is_told(parts: str, tmp_path: Path) -> None:
    settings = 'leases: {type: "%s:NeverOpened"}\npipelines: [{name: a, feed: {type: log, path: a}, sink: {type: log, path: b}}]'
    (problem,) = await find_problems(parse(settings % parts, {}, folder=tmp_path))
    assert "cannot be closed unused: AttributeError: 'NeverOpened' object has no attribute 'connection'" in problem


def test_check_tells_of_all_parts_and_ends_as_for_wrong_settings(parts: str, tmp_path: Path) -> None:
    (tmp_path / "bank.yaml").write_text(textwrap.dedent(SETTINGS.format(parts=parts)))
    result = CliRunner().invoke(main, ["check", str(tmp_path / "bank.yaml")])
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 3
    assert "settings: fine" not in result.output


def test_a_feed_that_executors_cannot_read_refuses_the_start(parts: str, tmp_path: Path) -> None:
    feed = f'{{type: "{parts}:Feed", partitions: ["0"]}}'
    text = f"pipelines: [{{name: a, feed: {feed}, sql: SELECT 1, executors_read: true, sink: {{type: log, path: b}}}}]"
    settings = parse("leases: {type: memory}\n" + text, {}, folder=tmp_path)
    with pytest.raises(
        StartFailed, match=r"executors cannot read its feed, because `range_reader` of Feed returns None"
    ):
        pipelines_of(settings)


PYTHON = """
leases: {type: memory}
pipelines:
  - name: letters
    feed: {type: files, path: "*.jsonl"}
    function: %s
    sink: {type: python, handler: "%s"}
"""


@pytest.fixture
def handlers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_handlers.py").write_text(
        "def make(): return Half()\nNUMBER = 3\nclass Half: ...\nasync def one(changes): ...\n"
    )
    (tmp_path / "needs_spark.py").write_text("raise RuntimeError('no active Spark session')\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("my_handlers", "needs_spark"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # of another test


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("function", "handler", "told"),
    [
        (
            "null",
            "no_such:make",
            ["handler 'no_such:make' cannot be imported: there is no module 'no_such': put it"],
        ),
        (
            "null",
            "my_handlers:mak",
            ["handler 'my_handlers:mak' cannot be imported: module 'my_handlers' has no 'mak'"],
        ),
        (
            "null",
            "my_handlers:NUMBER",
            ["handler 'my_handlers:NUMBER' is of type int: write `async def NAME(changes, context)`"],
        ),
        (
            "null",
            "my_handlers:Half",
            ["handler 'my_handlers:Half' is a class that does not derive from leasehold.Handler"],
        ),
        (
            "null",
            "my_handlers:one",
            ["handler 'my_handlers:one' takes (changes), and cannot be called with (changes, context)"],
        ),
        (
            '"no_such:f"',
            "my_handlers:make",
            ["`function` 'no_such:f' cannot be imported: there is no module 'no_such'"],
        ),
        ('"no_such:f"', "no_such:make", ["`function` 'no_such:f'", "handler 'no_such:make'"]),
        ('"needs_spark:f"', "my_handlers:make", []),
    ],
)
async def test_handlers_and_functions_that_are_not_there_are_told_without_spark(
    tmp_path: Path, function: str, handler: str, told: list[str]
) -> None:
    problems = await find_problems(parse(PYTHON % (function, handler), {}, folder=tmp_path))
    assert len(problems) == len(told)
    for problem, text in zip(problems, told, strict=True):
        assert problem.startswith(f"pipeline 'letters': {text}")


NOTIFIED = """
leases: {type: memory}
notifications: "%s"
pipelines: [{name: a, feed: {type: log, path: a}, sink: {type: log, path: b}}]
"""


@pytest.mark.parametrize("name", ["Watch", "watch", "WATCH"])
async def test_notifications_are_a_class_a_function_or_an_object(parts: str, tmp_path: Path, name: str) -> None:
    settings = parse(NOTIFIED % f"{parts}:{name}", {}, folder=tmp_path)
    assert await find_problems(settings) == []
    made = notifications_of(settings)
    assert type(made).__name__ == "Watch"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Nothing", "`notifications` '%s:Nothing' cannot be imported: module '%s' has no 'Nothing'"),
        ("NUMBER", "`notifications` '%s:NUMBER' cannot be used: TypeError: it is of type int, which does not"),
        (
            "WatchMisspelt",
            "`notifications` '%s:WatchMisspelt' cannot be used: TypeError: `WatchMisspelt.on_lease_lots` is never called",
        ),
        ("broken", "`notifications` '%s:broken' cannot be used: LookupError: no such room"),
    ],
)
async def test_notifications_that_cannot_be_used_are_reported(parts: str, tmp_path: Path, name: str, why: str) -> None:
    settings = parse(NOTIFIED % f"{parts}:{name}", {}, folder=tmp_path)
    (problem,) = await find_problems(settings)
    assert problem.startswith(why.replace("%s", parts))
    with pytest.raises(StartFailed) as refused:
        notifications_of(settings)
    assert str(refused.value) == problem
