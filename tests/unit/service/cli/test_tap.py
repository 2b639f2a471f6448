"""`leasehold tap`: lines for people, and clear errors without a host that answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result

from leasehold.service.cli.main import main
from leasehold.service.cli.tap import _own_url, line_of, summary_of
from leasehold.service.config.settings import ApiSettings

SETTINGS = """
api: {api}
pipelines:
  - name: bank
    feed: {{type: files, path: "*.jsonl"}}
    sink: {{type: log, path: copied}}
"""
TOKEN = "o" * 32


def test_a_row_is_a_line_and_begins_nothing_in_a_terminal() -> None:
    values = {"sequence": 5, "key": None, "body": '{"a":"\x1b[2J\n\u202e"}', "properties": {"kind": "a"}}
    line = line_of("input", {"at": "2026-01-31T12:00:00Z", "values": values})
    assert line == ('2026-01-31T12:00:00Z input  sequence=5 body={"a":"\\u001b[2J\\n\\u202e"} properties={"kind": "a"}')


def test_the_summary_counts_what_was_left_out() -> None:
    assert (
        summary_of(2, {"input": 1000, "output": 0}, "why")
        == "2 rows shown; left out: 1,000 of input, 0 of output (why)"
    )


class Answers(BaseHTTPRequestHandler):
    """status, body: of every answer. asked: paths and tokens."""

    status = 200
    body = b""
    asked: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["authorization"]))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def server() -> Iterator[tuple[str, type[Answers]]]:
    class Fresh(Answers):
        asked: list[tuple[str, str | None]] = []  # noqa: RUF012 - of this class alone

    with HTTPServer(("127.0.0.1", 0), Fresh) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", Fresh
        server.shutdown()
        thread.join()


def run(folder: Path, *arguments: str, api: str = "{}") -> Result:
    (folder / "bank.yaml").write_text(SETTINGS.format(api=api))
    return CliRunner().invoke(main, ["tap", str(folder / "bank.yaml"), *arguments])


def events(*named: tuple[str, object]) -> bytes:
    return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in named).encode()


ROW = {"at": "2026-01-31T12:00:00Z", "to": "9", "values": {"body": "{}"}}
READY = {"host": "pod-1", "epoch": 4, "rows_per_s": 10, "seconds": 60}


def test_it_asks_for_what_is_wanted_with_the_operators_token(tmp_path: Path, server) -> None:
    url, answers = server
    counts = {"input": 7, "output": 0}
    end = {"why": "limit", "shown": 1}
    answers.body = events(("ready", READY), ("input", ROW), ("left_out", counts), ("end", end))
    (tmp_path / "operators").write_text(f"\nalice {TOKEN}\nbob {'b' * 32}\n")
    result = run(tmp_path, "bank", "a/b", "--input", "--limit", "1", "--url", f"{url}/x/", api="{operators: operators}")
    assert result.exit_code == 0, result.output
    assert result.stdout == "2026-01-31T12:00:00Z input  body={}\n"
    assert "host 'pod-1' works on 'a/b'" in result.stderr
    assert "1 row shown; left out: 7 of input, 0 of output (--limit is reached)" in result.stderr
    [(path, token)] = answers.asked
    assert path == "/x/api/tap/bank/a%2Fb?side=input&limit=1&seconds=60.0&rows_per_s=10"
    assert token == f"Bearer {TOKEN}"


def test_with_json_each_event_is_a_line(tmp_path: Path, server) -> None:
    url, answers = server
    answers.body = b": still here\n\n" + events(("ready", READY), ("output", ROW), ("end", {"why": "time", "shown": 1}))
    result = run(tmp_path, "bank", "a", "--json", "--url", url)
    assert [json.loads(line)["event"] for line in result.stdout.splitlines()] == ["ready", "output", "end"]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (403, b'{"detail": "this is for operators"}', "answers 403: this is for operators"),
        (409, b'{"detail": "belongs to host \'pod-2\'"}', "answers 409: belongs to host 'pod-2'"),
        (502, b"<html>", "answers 502: Bad Gateway: check that a host of Leasehold listens there"),
        (200, events(("ready", READY)), "the host ended before the tap did"),
    ],
)
def test_what_the_host_refuses_is_the_error(tmp_path: Path, server, status: int, body: bytes, says: str) -> None:
    url, answers = server
    answers.status, answers.body = status, body
    result = run(tmp_path, "bank", "a", "--url", url)
    assert result.exit_code == 1
    assert says in result.stderr


@pytest.mark.parametrize(
    ("arguments", "api", "code", "says"),
    [
        (("nope", "a"), "{}", 2, "there is no pipeline 'nope'"),
        (("bank", "a"), "{enabled: false}", 2, "name the owner's API with --url"),
        (("bank", "a"), "{port: 0}", 2, "name the owner's API with --url"),
        (("bank", "a", "--url", "ftp://x"), "{}", 2, "--url must be an address"),
        (("bank", "a", "--url", "http://u:secret@x"), "{}", 2, "--url must be an address"),
        (("bank", "a", "--token-file", "none"), "{}", 2, "the token cannot be read from 'none'"),
        (("bank", "a", "--url", "http://127.0.0.1:9"), "{}", 1, "does not answer"),
    ],
)
def test_what_cannot_be_asked_is_a_clear_error(
    tmp_path: Path, arguments: tuple[str, ...], api: str, code: int, says: str
) -> None:
    result = run(tmp_path, *arguments, api=api)
    assert result.exit_code == code, result.output
    assert says in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8080"),
        ("::", "http://[::1]:8080"),  # where a host listens on IPv6 alone
        ("fd00::5", "http://[fd00::5]:8080"),
        ("10.0.0.7", "http://10.0.0.7:8080"),
    ],
)
def test_a_host_of_this_machine_is_asked_where_it_listens(host: str, url: str) -> None:
    assert _own_url(ApiSettings(host=host, port=8080, readers=Path("readers"))) == url


def test_an_empty_token_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    result = run(tmp_path, "bank", "a", "--token-file", str(tmp_path / "empty"))
    assert (result.exit_code, "holds no token" in result.stderr) == (2, True)
