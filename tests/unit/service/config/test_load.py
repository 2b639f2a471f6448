"""One file, and everything that can be wrong with it."""

from __future__ import annotations

import dataclasses
import pwd
import re
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from leasehold.leases.timing import Timing, derived_timing
from leasehold.pipeline.connectors.postgres import PostgresOutputSink
from leasehold.pipeline.limits import BatchLimits
from leasehold.service.config.files import FilesFeed
from leasehold.service.config.leases import SqliteLeases
from leasehold.service.config.load import FILE_BYTES_MAX, load, parse
from leasehold.service.config.log import LogFeed
from leasehold.service.config.postgres import PostgresSink
from leasehold.service.config.reference import Setting, describe
from leasehold.service.config.section import Section
from leasehold.service.config.settings import Settings
from leasehold.service.errors import ConfigurationError
from leasehold.service.pipeline import PipelineParts

DOCUMENT = Path(__file__).parents[4] / "docs/configuration.md"
SECRET = "hunter2"
PIPELINES = """
pipelines:
  - name: copy
    feed: {type: files, path: "in/*.csv"}
    sink: {type: log, path: out}
"""


def settings(text: str, folder: Path = Path("/etc/leasehold"), **env: str) -> Settings:
    return parse(text, env, folder=folder)


def problems(text: str, folder: Path = Path("/etc/leasehold"), **env: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as error:
        parse(text, env, folder=folder)
    assert str(error.value).splitlines()[1:] == [f"  {problem}" for problem in error.value.problems]
    return error.value.problems


def problem(text: str, **env: str) -> str:
    (only,) = problems(text, **env)
    return only


# What a right file becomes


def test_defaults_run_locally() -> None:
    found = settings(PIPELINES)
    assert isinstance(found.leases, SqliteLeases)
    assert found.leases.timing == Timing()
    assert found.api.host == "127.0.0.1"
    assert found.spark.master == "local[*]"
    assert found.host.name is None


def test_defaults_are_those_of_the_code() -> None:
    found = settings(PIPELINES).pipelines[0]
    defaults = {each.name: each.default for each in dataclasses.fields(PipelineParts)}
    assert found.batch_timeout_s == defaults["batch_timeout_s"]
    assert found.buffer_bytes_max == defaults["buffer_bytes_max"]
    assert found.feed.start == defaults["start"]
    limits = BatchLimits(
        events_max=found.batch_events_max, bytes_max=found.batch_bytes_max, age_max_s=found.batch_age_max_s
    )
    assert limits == BatchLimits()


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "bank.yaml"
    file.write_text("log: {file: host.log}" + PIPELINES.replace("path: out", "path: /abs/out"))
    monkeypatch.chdir("/")
    found = load(file, {})
    assert isinstance(found.leases, SqliteLeases)
    assert found.leases.path == tmp_path / "leases.db"
    assert found.log.file == tmp_path / "host.log"
    assert found.pipelines[0].feed.path == str(tmp_path / "in/*.csv")  # type: ignore[union-attr]
    assert found.pipelines[0].sink.path == Path("/abs/out")  # type: ignore[union-attr]


def test_a_folder_with_the_signs_of_a_pattern_in_its_name_is_taken_as_it_is() -> None:
    feed = settings(PIPELINES, folder=Path("/data/[1]*")).pipelines[0].feed
    assert isinstance(feed, FilesFeed)
    assert feed.path == "/data/[[]1][*]/in/*.csv"


def test_a_relative_file_name_means_the_same_paths_as_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bank.yaml").write_text(PIPELINES)
    monkeypatch.chdir(tmp_path)
    assert load(Path("bank.yaml"), {}) == load(tmp_path / "bank.yaml", {})


def test_home_is_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    found = settings("leases: {path: ~/leases.db}" + PIPELINES).leases
    assert isinstance(found, SqliteLeases)
    assert found.path == Path("/home/ada/leases.db")


def test_without_settings_hosts_have_the_default_intervals() -> None:
    assert settings(PIPELINES).leases.timing == Timing()


@pytest.mark.parametrize("duration_s", [0.1, 1, 5, 60, 600, 3600])
def test_a_lease_duration_alone_is_enough(duration_s: float) -> None:
    timing = settings(f"leases: {{duration_s: {duration_s}}}" + PIPELINES).leases.timing
    assert timing == derived_timing(duration_s)


def test_intervals_that_are_set_stay_as_they_are() -> None:
    text = "leases: {duration_s: 30, balance_s: 2, call_timeout_s: 3}"
    assert settings(text + PIPELINES).leases.timing == Timing(duration_s=30, balance_s=2, call_timeout_s=3)


def test_a_type_of_somebody_else_keeps_its_arguments_and_hides_them() -> None:
    text = 'pipelines: [{name: a, feed: {type: "my.mod:Feed", token: "${T}", size: 3}, sink: {type: "my.mod:Sink"}}]'
    found = settings(text, T=SECRET)
    assert found.pipelines[0].feed.options == {"token": SECRET, "size": 3}  # type: ignore[union-attr]
    assert SECRET not in repr(found)


def test_a_single_partition_has_a_start_of_its_own() -> None:
    text = (
        "pipelines: [{name: a, feed: {type: log, path: p, starts: {'0': latest, b: %s}}, sink: {type: log, path: q}}]"
    )
    [pipeline] = settings(text % "2026-01-31T12:00:00Z").pipelines
    assert pipeline.feed.starts == {"0": "latest", "b": datetime(2026, 1, 31, 12, tzinfo=UTC)}
    assert "must be earliest, latest, or a time" in problem(text % "newest")


def test_a_start_is_a_word_or_a_time() -> None:
    def start(value: str) -> object:
        text = f"pipelines: [{{name: a, feed: {{type: log, path: p, start: {value}}}, sink: {{type: log, path: q}}}}]"
        feed = settings(text).pipelines[0].feed
        assert isinstance(feed, LogFeed)
        return feed.start

    assert start("latest") == "latest"
    assert start("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert start('"2026-01-31T13:00:00+01:00"') == datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_spark_takes_numbers_and_true_as_texts() -> None:
    found = settings("spark: {conf: {spark.a: 1, spark.b: true, spark.c: 0.5, spark.d: x}}" + PIPELINES).spark.conf
    assert found == {"spark.a": "1", "spark.b": "true", "spark.c": "0.5", "spark.d": "x"}


def test_settings_do_not_change() -> None:
    found = settings(PIPELINES)
    with pytest.raises(ValidationError):
        found.api.port = 1  # type: ignore[misc]


# Environment


def test_variables_stand_for_the_whole_or_a_part_of_a_value() -> None:
    text = "api: {port: ${PORT}}\n".replace("${PORT}", '"${PORT}"') + 'log: {file: "${DIR}/${NAME}.log"}' + PIPELINES
    found = settings(text, PORT="9000", DIR="/var/log", NAME="host")
    assert found.api.port == 9000
    assert found.log.file == Path("/var/log/host.log")


def test_a_variable_is_data_and_never_read_again() -> None:
    """Not as YAML, not as another variable."""
    found = settings('spark: {master: "${A}"}' + PIPELINES, A="[${B}] # {x: *y}", B=SECRET)
    assert found.spark.master == "[${B}] # {x: *y}"


@pytest.mark.parametrize(
    ("written", "meant"), [("$${A}", "${A}"), ("$$", "$$"), ("do $$ x $$", "do $$ x $$"), ("$1", "$1"), ("$A", "$A")]
)
def test_dollars_that_name_no_variable_stay(written: str, meant: str) -> None:
    assert settings(f"spark: {{master: '{written}'}}{PIPELINES}", A="no").spark.master == meant


def test_keys_are_not_expanded() -> None:
    assert problem("${A}: 1" + PIPELINES, A="api").startswith("line 1: ${A} is not a setting")


def test_every_missing_variable_is_named_and_nothing_else_is_said_of_its_value() -> None:
    found = problems('api: {port: "${P}"}\nlog: {file: "${A}/${B}"}' + PIPELINES, A="/tmp")
    assert found == (
        "line 1: api.port needs the environment variable P, which is not set: set it",
        "line 2: log.file needs the environment variable B, which is not set: set it",
    )


@pytest.mark.parametrize("written", ["${}", "${1a}", "${a b}", "${a", "${a:-b}"])
def test_a_reference_that_names_no_variable_is_refused(written: str) -> None:
    assert "names no variable" in problem(f"spark: {{master: '{written}'}}{PIPELINES}")


# Secrets


def with_sink(fields: str) -> str:
    return f'pipelines: [{{name: a, feed: {{type: files, path: "*.csv"}}, sink: {{type: postgres, {fields}}}}}]'


def test_a_secret_shows_nowhere_but_where_it_is_asked_for() -> None:
    found = settings(with_sink(f'dsn: "postgresql://u:{SECRET}@h/d", merge: x'))
    assert SECRET not in repr(found) + str(found) + found.model_dump_json()
    sink = found.pipelines[0].sink
    assert isinstance(sink, PostgresSink)
    assert sink.dsn.get_secret_value() == f"postgresql://u:{SECRET}@h/d"


@pytest.mark.parametrize(
    "text",
    [
        with_sink(f'dsn: ["{SECRET}"], merge: x'),
        with_sink(f'dns: "{SECRET}", merge: x'),
        with_sink('dsn: "${S}", merge: x, connections_max: "${S}"'),
        with_sink('dsn: "${S}", merge: x, mode: "${S}"'),
        with_sink('dsn: "${S}", merge: x, "${S}": 1'),
        with_sink(f'dsn: {SECRET}, merge: x, connections_max: "postgresql://u:{SECRET}@h/d"'),
        'api: {host: "a${S}b"}' + PIPELINES,
        'host: {name: "${S} "}' + PIPELINES,
        'log: {level: "${S}"}' + PIPELINES,
        'pipelines: [{name: a, feed: {type: "${S}"}, sink: {type: log, path: x}}]',
        'pipelines: "${S}"',
        with_sink('dsn: "", merge: x, password: "${S}"'),
        with_sink(f'dsn: "postgresql://h/d", merge: x, executors_env: "postgresql://u:{SECRET}@h/d"'),
    ],
)
def test_no_problem_tells_a_secret(text: str) -> None:
    assert not any(SECRET in each for each in problems(text, S=SECRET))


def test_the_variable_of_the_executors_is_named_and_not_its_value() -> None:
    (found,) = problems(with_sink('dsn: "postgresql://h/d", merge: x, executors_env: "$BANK_DSN"'))
    assert "must be the name of an environment variable, like BANK_DSN, and not its value" in found
    sink = settings(with_sink('dsn: "postgresql://h/d", merge: x, executors_env: BANK_DSN')).pipelines[0].sink
    assert isinstance(sink, PostgresSink)
    made = sink.make(Timing())
    assert isinstance(made, PostgresOutputSink)
    assert made._parts.executors_env == "BANK_DSN"


def test_a_secret_that_is_no_text_is_not_shown_either() -> None:
    (found,) = problems(with_sink("dsn: 4711, merge: x"))
    assert found == "line 1: pipelines[0].sink.dsn (a secret, not shown) must be a text (put it in quotes)"


NOT_DSNS = [
    "foo bar='",
    f"postgresql://u:ge%zz{SECRET}@127.0.0.1:1/x",
    f"host=h password={SECRET} pt=1",
    f"host=h password=two {SECRET}=1",
    f"postgresql://u:{SECRET}@h:1/x?foo=1",
    f"postgresql://u:a/{SECRET}@h/x",
]


@pytest.mark.parametrize("dsn", NOT_DSNS)
def test_a_dsn_that_the_driver_would_not_take_is_told_in_one_line_without_it(dsn: str) -> None:
    found = problem(with_sink('dsn: "${S}", merge: x'), S=dsn)
    assert found.startswith("line 1: pipelines[0].sink.dsn (from ${S}) ")
    assert "%2F" in found
    assert SECRET not in found
    assert "u:a" not in found
    assert "\n" not in found


def test_a_wrong_dsn_is_told_with_everything_else_and_does_not_show_itself_either() -> None:
    found = problems(with_sink(f'dsn: "host=h {SECRET}", merge: x, bogus: 1') + "\napi: {port: x}")
    assert [re.sub("[:,] .*", "", each.partition(": ")[2]) for each in found] == [
        "pipelines[0].sink.bogus is not a setting",
        "pipelines[0].sink.dsn (a secret",
        "api.port is 'x'",
    ]
    assert SECRET not in str(found)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:a%25%40%2Fb@h:5432/d?sslmode=require",
        "postgres://[::1]/d",
        "host=a,b port=1,65535 user=u password='a b'",
        "host=a,b port=5432,",
        "service=bank",
        "postgresql://",
    ],
)
def test_what_the_driver_takes_is_a_dsn(dsn: str) -> None:
    assert settings(with_sink('dsn: "${S}", merge: x'), S=dsn)


# What is wrong with single settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("api: {prot: 1}", "line 1: api.prot is not a setting: did you mean `port`?"),
        ("apis: {}", "line 1: apis is not a setting: did you mean `api`?"),
        ("api: {xyzzy: 1}", "line 1: api.xyzzy is not a setting: known here are enabled, host, port, readers"),
        ("api: {port: http}", "line 1: api.port is 'http', and must be a whole number"),
        ("api: {port: 1.5}", "line 1: api.port is 1.5, and must be a whole number"),
        ("api: {port: true}", "line 1: api.port is true, and must be a number"),
        ("api: {port: 65536}", "line 1: api.port is 65536, and must be less than or equal to 65535"),
        ("api: {port: null}", "line 1: api.port is null, and must be a whole number"),
        ("api: {enabled: maybe}", "line 1: api.enabled is 'maybe', and must be true or false"),
        ("api: [1]", "line 1: api must be a mapping of settings"),
        ("api: 1", "line 1: api is 1, and must be a mapping of settings"),
        ("host: {stop_timeout_s: 0}", "line 1: host.stop_timeout_s is 0, and must be greater than 0"),
        ("host: {stop_timeout_s: nan}", "line 1: host.stop_timeout_s is 'nan', and must be a finite number"),
        ("host: {leases_max: -1}", "line 1: host.leases_max is -1, and must be greater than or equal to 1"),
        ("log: {level: loud}", "line 1: log.level is 'loud', and must be 'debug', 'info', 'warning', 'error' or 'off'"),
        ("log: {file: 3}", "line 1: log.file is 3, and must be a path"),
        ("spark: {master: 3}", "line 1: spark.master is 3, and must be a text (put it in quotes)"),
        ("spark: {master: ''}", "line 1: spark.master is '', and must not be empty"),
        (
            "spark: {driver_memory: 1 GB}",
            "line 1: spark.driver_memory is '1 GB', and must be a number with k, m, g or t, like 512m",
        ),
        ("spark: {conf: [a]}", "line 1: spark.conf must be a mapping"),
        (
            "leases: {type: redis}",
            "line 1: leases.type is 'redis', and must be sqlite, postgres, cosmos, blob, memory, or a class to import",
        ),
        ("leases: {type: memory, path: x}", "line 1: leases.path is not a setting"),
        ("leases: {balance_s: 1e-300}", "line 1: leases.balance_s is 1e-300, and must be greater than or equal to 0.1"),
        ("leases: {balance_s: 0.09}", "line 1: leases.balance_s is 0.09, and must be greater than or equal to 0.1"),
        ("leases: {duration_s: 0}", "line 1: leases.duration_s is 0, and must be greater than or equal to 0.1"),
        ("leases: {duration_s: 3601}", "line 1: leases.duration_s is 3601, and must be less than or equal to 3600"),
    ],
)
def test_a_wrong_value_is_shown_with_its_place_and_what_it_must_be(text: str, expected: str) -> None:
    assert problem(text + PIPELINES).startswith(expected)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.com", "127.0.0.1.example.com"])
def test_the_api_is_not_offered_to_the_network(host: str) -> None:
    assert "the API has no tokens: set `readers`" in problem(f"api: {{host: '{host}'}}{PIPELINES}")


@pytest.mark.parametrize("whose", ["readers", "operators"])
def test_with_tokens_the_api_listens_where_others_reach_it(whose: str) -> None:
    found = settings(f"api: {{host: 0.0.0.0, {whose}: tokens}}" + PIPELINES)
    assert (found.api.host, getattr(found.api, whose)) == ("0.0.0.0", Path("/etc/leasehold/tokens"))


@pytest.mark.parametrize("name", ["", "A", "-a", "a/b", "a b", "é", "a" * 64, "a\n"])
def test_a_pipeline_name_has_to_be_safe_in_ids(name: str) -> None:
    assert "must be 1 to 63 of" in problem(PIPELINES.replace("name: copy", f'name: "{name}"'.replace("\n", "\\n")))


@pytest.mark.parametrize("start", ["yesterday", "2026-01-31", "2026-01-31T12:00:00", "3"])
def test_a_start_without_an_offset_from_utc_is_refused(start: str) -> None:
    assert "must be earliest, latest, or a time with its offset" in problem(
        PIPELINES.replace('.csv"', f'.csv", start: {start}')
    )


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("feed: {}", "pipelines[0].feed.type is missing"),
        (
            "feed: {type: rabbitmq}",
            "pipelines[0].feed.type is 'rabbitmq', and must be files, log, cosmos, eventhubs, kafka, nats, pulsar, or a class",
        ),
        ("feed: files", "pipelines[0].feed is 'files', and must be a mapping of settings"),
        ("feed: {type: files}", "pipelines[0].feed.path is missing: give it a value"),
        ("feed: {type: files, path: a.txt}", "pipelines[0].feed: the path's ending does not show the format"),
        ("feed: {type: 'a b:c'}", "pipelines[0].feed.type is 'a b:c', and must name something to import"),
        ("feed: {type: log, path: a, format: csv}", "pipelines[0].feed.format is not a setting"),
    ],
)
def test_a_wrong_feed_is_told_apart(part: str, expected: str) -> None:
    assert expected in problem(PIPELINES.replace('feed: {type: files, path: "in/*.csv"}', part))


# Rules between settings


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("dsn: host=a", "needs either `merge` or `table`"),
        ("dsn: host=a, merge: b, table: c", "needs either `merge` or `table`"),
        ("dsn: host=a, table: b, mode: upsert", "`mode: upsert` and `key` go together"),
        ("dsn: host=a, table: b, key: [c]", "`mode: upsert` and `key` go together"),
        ("dsn: host=a, merge: b, key: [c]", "`mode` and `key` require `table`"),
        ("dsn: host=a, table: b, mode: upsert, key: c", "must be a list"),
    ],
)
def test_a_postgres_sink_has_one_target(fields: str, expected: str) -> None:
    assert expected in problem(with_sink(fields))


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        (f"postgresql://u:{SECRET}@h/d", "`identity` provides the password, and `dsn` has one too"),
        (f"host=h password={SECRET}", "`identity` provides the password, and `dsn` has one too"),
        ("host=h sslmode=disable", "`identity` sends a token, which needs TLS"),
    ],
)
def test_an_identity_of_a_postgres_sink_replaces_the_password(dsn: str, expected: str) -> None:
    found = problem(with_sink('dsn: "${S}", identity: default, table: b'), S=dsn)
    assert expected in found
    assert SECRET not in found
    assert settings(with_sink('dsn: "${S}", table: b'), S=dsn)
    assert settings(with_sink("dsn: postgresql://u@h/d, identity: default, table: b"))


def test_a_transform_is_one_thing() -> None:
    assert "has both `sql` and `function`" in problem(PIPELINES + "    sql: select 1\n    function: a:b\n")


def test_what_nests_too_deeply_is_refused_with_its_setting_and_the_limit() -> None:
    schema = "a STRUCT<" * 33 + "b INT" + ">" * 33
    query = "SELECT " + "(" * 5000 + "1" + ")" * 5000
    found = problems(f'{PIPELINES}    schema: "{schema}"\n    sql: "{query}"\n')
    for each, expected in zip(
        found,
        (
            r"line \d+: pipelines\[0\]\.schema is '.*, and must nest <> at most 32 levels deep, and nests them 33 levels",
            r"line \d+: pipelines\[0\]\.sql is '.*, and must nest \(\) at most 200 levels deep, and nests them 5000 levels",
        ),
        strict=True,
    ):
        assert re.match(expected, each)


def test_a_batch_fits_the_buffer() -> None:
    assert "no batch could fill up" in problem(PIPELINES + "    buffer_bytes_max: 1000\n")


def test_spark_runs_in_one_place() -> None:
    assert "has both `master` and `remote`" in problem('spark: {master: "local[1]", remote: "sc://h"}' + PIPELINES)


def pipeline(name: str, reads: str, writes: str) -> str:
    return f"  - name: {name}\n    feed: {{type: log, path: {reads}}}\n    sink: {{type: log, path: {writes}}}\n"


def test_a_name_is_used_once_and_a_prefix_of_another_is_another() -> None:
    assert settings("pipelines:\n" + pipeline("a", "x", "y") + pipeline("a.b", "x", "z") + pipeline("a-b", "x", "w"))
    found = problem("pipelines:\n" + pipeline("a", "x", "y") + pipeline("a", "x", "z"))
    assert found == "line 5: pipelines[1].name 'a' is the name of pipelines[0] too: rename one of them"


def test_a_log_has_one_writer_however_its_path_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "y")
    for other in ("y", "./y", "z/../y", f"{tmp_path}/y", "link"):
        (found,) = problems("pipelines:\n" + pipeline("a", "x", "y") + pipeline("b", "x", other), folder=tmp_path)
        assert "pipelines[1].sink.path is the log that pipelines[0] writes" in found


def test_a_pipeline_does_not_feed_itself() -> None:
    assert "which would never end" in problem("pipelines:\n" + pipeline("a", "x", "./x"))


def test_one_pipelines_mistake_does_not_hide_anothers() -> None:
    text = (
        "pipelines:\n"
        + pipeline("A", "x", "y")
        + pipeline("b", "x", "y")
        + "  - {name: b, bogus: 1, sql: a, function: 'a:b'}\n"
    )
    found = "\n".join(problems("leases: {balance_s: 0.01, bogus: 1}\n" + text))
    for expected in (
        "leases.bogus is not a setting",
        "leases.balance_s is 0.01, and must be greater than or equal to 0.1",
        "pipelines[0].name is 'A'",
        "pipelines[1].sink.path is the log that pipelines[0] writes",
        "pipelines[2].name 'b' is the name of pipelines[1]",
        "pipelines[2].bogus is not a setting",
        "pipelines[2].feed is missing",
        "pipelines[2].sink is missing",
    ):
        assert expected in found


def test_problems_come_in_the_order_of_the_file() -> None:
    found = problems("log: {level: 1}\napi: {port: x}\nbogus: 1" + PIPELINES.replace("copy", "C"))
    lines = [int(re.match(r"line (\d+)", each)[1]) for each in found]  # type: ignore[index]
    assert lines == sorted(lines)
    assert len(lines) == 4


# The file and its YAML


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "there are no settings in it"),
        ("# nothing\n", "there are no settings in it"),
        ("- a\n", "line 1: this is not a mapping of settings"),
        ("just a text", "line 1: this is not a mapping of settings"),
        ("api: {}", "pipelines is missing: give it a value"),
        ("pipelines: []", "line 1: pipelines must not be empty"),
        ("pipelines: {}", "line 1: pipelines must be a list"),
        ("api: {port: 1\nlog: {}", "line 2: column 4: this is not the YAML that is read here"),
        ("api:\n\tport: 1", "line 2: column 1: this is not the YAML that is read here"),
        ("a: b: c", "line 1: column 5: this is not the YAML that is read here"),
        ("api: {port: ${P}}", 'inside { } write "${NAME}", with quotes'),
        ("a: 1\n--- \nb: 2", "line 2: column 1: this is not the YAML that is read here"),
        (
            "api: {}\napi: {}" + PIPELINES,
            "line 2: key 'api' appears a second time (first in line 1): keep one of them",
        ),
        ("api: {port: 1, port: 2}" + PIPELINES, "line 1: key 'port' appears a second time"),
        ("1: a" + PIPELINES, "line 1: this key is not text: put it in quotes"),
        ("[a]: b" + PIPELINES, "line 1: this key is not text"),
        ("spark: &a {}\nlog: *a" + PIPELINES, "line 2: column 6: this is not the YAML that is read here: an alias"),
        (
            "spark: {master: !!python/name:os.system x}" + PIPELINES,
            "line 1: the tag tag:yaml.org,2002:python/name:os.system",
        ),
        ('spark: {master: "a\\0b"}' + PIPELINES, "line 1: a text holds a NUL"),
        ('spark: {master: "\\ud800"}' + PIPELINES, "line 1: a text holds a NUL or half of a surrogate pair"),
        ("a: \x07", "line 1: the character U+0007 is not allowed"),
        ("api: {port: 1" + "0" * 5000 + "}" + PIPELINES, "line 1: a number of more than 18 digits"),
        ("api: {port: !!int x}" + PIPELINES, "line 1: this is not a number"),
        ("a: " + "[" * 5000, "nested deeper than 20 levels"),
        ("a: " + "{a: " * 5000, "nested deeper than 20 levels"),
        ("- " * 5000, "nested deeper than 20 levels"),
    ],
)
def test_a_text_that_is_not_plain_settings_is_refused_with_its_place(text: str, expected: str) -> None:
    assert any(expected in each for each in problems(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("leases: {balance_s: 99999999999999999999999999}", "line 1: a number of more than 18 digits"),
        ('host: {name: "a\\0"}', "line 1: a text holds a NUL"),
        ("leases: !!int many", "line 1: this is not a number"),
        ("leases: {type: !!int many}", "line 1: this is not a number"),
        ('leases: {type: "${NO_SUCH}"}', "line 1: leases.type needs the environment variable NO_SUCH"),
        ('"a\\0": 1', "line 1: a text holds a NUL"),
    ],
)
def test_one_mistake_is_one_problem(text: str, expected: str) -> None:
    assert problem(text + PIPELINES).startswith(expected)


def test_a_yaml_bomb_does_not_go_off() -> None:
    nine = [f"{name}: &{name} [{', '.join(['*' + before] * 9)}]" for before, name in pairwise("abcdefghi")]
    bomb = "\n".join(["a: &a [x, x, x, x, x, x, x, x, x]", *nine])
    assert "an alias" in problem(bomb)


@pytest.mark.parametrize(
    ("text", "value"), [("no", "no"), ("1:30", "1:30"), ("2026-01-31", "2026-01-31"), ("0x10", "0x10"), ("<<", "<<")]
)
def test_what_looks_like_a_text_is_one(text: str, value: str) -> None:
    assert settings(f"spark: {{master: {text}}}{PIPELINES}").spark.master == value


def test_a_number_is_decimal() -> None:
    assert settings(f"api: {{port: 010}}{PIPELINES}").api.port == 10


def file_problem(path: Path) -> str:
    with pytest.raises(ConfigurationError) as error:
        load(path, {})
    assert str(path) in str(error.value)
    (only,) = error.value.problems
    return only


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "cannot be read (no such file or directory)" in file_problem(tmp_path / "missing.yaml")
    assert "cannot be read (is a directory)" in file_problem(tmp_path)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    assert "is larger than" in file_problem(tmp_path / "large.yaml")


def test_a_file_that_is_not_utf_8_is_told_the_line(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(PIPELINES.encode() + "# é".encode("latin-1"))
    assert file_problem(tmp_path / "latin.yaml").startswith("line 6: this is not UTF-8")


def test_a_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + PIPELINES.encode())
    assert load(tmp_path / "bom.yaml", {})


# Documentation


def sections(model: type[Section] = Section) -> set[type[Section]]:
    """Of the configuration. Files of cases have sections too, if another test has imported them."""
    found = {each for below in model.__subclasses__() for each in (below, *sections(below))}
    return {each for each in found if each.__module__.startswith("leasehold.service.config.")}


def test_every_setting_is_described() -> None:
    found = describe()
    fields = {
        field.alias or name
        for section in sections()
        for name, field in section.model_fields.items()
        if not field.exclude  # only programs have it
    }
    assert fields == {row.name for row in found}
    assert all(row.description.endswith(".") for row in found)


def markdown(row: Setting) -> str:
    """The row as docs/configuration.md has it."""
    default = "required" if row.default is None else row.default
    if default not in ("required", "none", "all defaults"):
        default = f"`{default}`"
    return f"| `{row.key}` | {row.type} | {default} | {row.description} |"


def test_every_setting_stands_in_the_documentation_as_it_is() -> None:
    rows = describe()
    types = {parent: len({row.when for row in rows if row.parent == parent}) for parent in {row.parent for row in rows}}
    told = Counter((row.parent, markdown(row)) for row in rows)  # what all types of a section have is told once
    document = Counter(line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `"))
    wanted = Counter({row: 1 if times == types[parent] else times for (parent, row), times in told.items()})
    missing = wanted - document
    assert not missing, "these rows belong into docs/configuration.md:\n" + "\n".join(sorted(missing))
    stale = set(document) - set(wanted)
    assert not stale, "these rows of docs/configuration.md are of no setting:\n" + "\n".join(sorted(stale))


def test_the_example_of_the_documentation_is_right() -> None:
    for example in re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        assert settings(example)


# Paths


PATHS = (
    "leases: {type: sqlite, path: PATH}",
    "log: {file: PATH}",
    "api: {readers: PATH}",
    "api: {operators: PATH}",
    "feed: {type: files, path: PATH, format: csv}",
    "feed: {type: log, path: PATH}",
    "sink: {type: files, path: PATH}",
    "sink: {type: log, path: PATH}",
    "dead_letters: {type: files, path: PATH}",
    "dead_letters: {type: log, path: PATH}",
    "leases: {type: blob, container: leases, account_url: 'https://a.blob.core.windows.net', ca_file: PATH}",
)


@pytest.mark.parametrize("where", PATHS)
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("~/x", "begins with `~`, and there is no such home directory: write the path without `~`"),
        ("~nosuchuser/x", "begins with `~nosuchuser`, and there is no such home directory"),
    ],
)
def test_a_path_without_its_home_directory_is_a_problem_like_others(
    where: str, path: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a user without an entry in /etc/passwd and without HOME, such as the random uid of a pod."""
    monkeypatch.delenv("HOME", raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    section, _, fields = where.replace("PATH", path).partition(": ")
    one = {"feed": "{type: log, path: in}", "sink": "{type: log, path: out}"}
    is_of_pipeline = section in ("feed", "sink", "dead_letters")
    one |= {section: fields} if is_of_pipeline else {}
    text = "pipelines:\n  - {name: p, " + ", ".join(f"{key}: {value}" for key, value in one.items()) + "}\n"
    assert expected in problem(text if is_of_pipeline else f"{section}: {fields}\n{text}")
