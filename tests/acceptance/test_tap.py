"""`leasehold tap` beside a real host: what it shows, whom it refuses, and that Ctrl-C ends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from patience import until
from plugins_cli import Command, Commands

READER, OPERATOR = "reader-" + "r" * 32, "operator-" + "o" * 32
SETTINGS = """
leases: {{type: sqlite, path: state/leases.db}}
host: {{name: {host}}}
api: {{port: 0, readers: readers, operators: operators{tap}}}
log: {{format: json}}
pipelines:
  - name: copy
    feed: {{type: files, path: "orders-*.jsonl"}}
    sink: {{type: log, path: state/copied}}
"""
LINE = '{{"order": {number}, "card": {{"number": "4111-1111"}}}}\n'


class Place:
    def __init__(self, folder: Path, leasehold: Commands) -> None:
        self.folder = folder
        self._leasehold = leasehold
        self.written = 0
        (folder / "readers").write_text(READER)
        (folder / "operators").write_text(f"alice {OPERATOR}\n")
        self.write(0)

    def write(self, count: int) -> None:
        with (self.folder / "orders-1.jsonl").open("a") as file:
            file.writelines(LINE.format(number=self.written + n) for n in range(count))
        self.written += count

    def start(self, name: str, tap: str = ", tap_mask: [number]") -> str:
        """A host; where its API listens."""
        (self.folder / f"{name}.yaml").write_text(SETTINGS.format(host=name, tap=tap))
        host = self._leasehold("run", f"{name}.yaml")
        until(lambda: host.found(r'"url": "(http://[^"]+)"'), "the API listens")
        self.host = host
        return str(host.found(r'"url": "(http://[^"]+)"'))

    def tap(self, url: str, *options: str) -> Command:
        return self._leasehold("tap", "host-a.yaml", "copy", "orders-1.jsonl", "--url", url, *options)


@pytest.fixture
def place(tmp_path: Path, leasehold: Commands) -> Place:
    return Place(tmp_path, leasehold)


def test_an_operator_sees_masked_events_and_rows_until_ctrl_c(place: Place) -> None:
    url = place.start("host-a")
    until(lambda: place.host.found(r'("lease acquired")'), "the host has the lease")
    tap = place.tap(url, "--json")
    until(lambda: '"ready"' in tap.out, "the tap is open")
    place.write(3)
    until(lambda: tap.out.count('"event": "output"') == 3, "rows are shown")
    tap.interrupt()
    assert tap.ended() == 0
    events = [json.loads(line) for line in tap.out.splitlines()]
    shown = {name: [json.loads(each["values"]["body"]) for each in events if each["event"] == name] for name in SIDES}
    assert shown["input"] == shown["output"] == [{"order": n, "card": {"number": "***"}} for n in range(3)]
    assert "4111" not in tap.out + place.host.err
    assert "3 of" not in tap.err
    assert "(interrupted)" in tap.err
    until(lambda: '"operator action"' in place.host.err, "the log has the tap")
    [line] = [json.loads(line) for line in place.host.err.splitlines() if '"operator action"' in line]
    assert (line["action"], line["who"], line["after"]["shown"]) == ("tap", "alice", 6)


SIDES = ("input", "output")


def test_who_may_not_or_cannot_be_shown_anything_gets_a_clear_error(place: Place) -> None:
    url = place.start("host-a")
    until(lambda: place.host.found(r'("lease acquired")'), "the host has the lease")
    reader = place.tap(url, "--token-file", "readers")
    assert (reader.ended(), "403: this is for operators" in reader.err) == (1, True)
    other = place.tap(place.start("host-b"))
    assert other.ended() == 1
    assert "belongs to host 'host-a', and this is 'host-b': ask that host" in other.err
    off = place.tap(place.start("host-c", tap=""))
    assert (off.ended(), "taps are off on this host: set `api.tap_mask`" in off.err) == (1, True)
