"""What is a record, and what becomes of it: compared with Python's csv module and with a parser that goes byte by byte."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import orc

from leasehold.pipeline.connectors.files.feed.cursor import Cursor
from leasehold.pipeline.connectors.files.feed.position import FilePosition, decode
from leasehold.pipeline.connectors.files.feed.reader import WINDOW_BYTES_MIN, FileReader, Reading, ReadStep
from leasehold.pipeline.connectors.files.feed.records import BOM, CsvRecords, JsonRecords, NotText, check_text
from leasehold.pipeline.errors import MalformedRecord
from leasehold.pipeline.event import EVENT_SCHEMA

End = Literal["waits", "malformed"]
Format = Literal["csv", "jsonl"]


@dataclass
class Read:
    """What a file gave: events, how reading ended, and the position behind."""

    events: list[dict[str, Any]]
    end: End = "waits"
    error: str = ""
    position: FilePosition | None = None

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(event["body"]) for event in self.events]

    @property
    def lines(self) -> list[str]:
        return [event["offset"] for event in self.events]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.csv"


def reader(
    path: Path,
    *,
    format: Format = "csv",
    key: str | None = None,
    accept: bool = False,
    record_bytes_max: int = 1 << 20,
    page_events_max: int = 100,
    page_bytes_max: int = 1 << 20,
) -> FileReader:
    records = CsvRecords if format == "csv" else JsonRecords
    reading = Reading(
        accepts_unterminated=accept,
        record_bytes_max=record_bytes_max,
        page_events_max=page_events_max,
        page_bytes_max=page_bytes_max,
    )
    return FileReader(path, "a.csv", records(key=key, record_bytes_max=record_bytes_max), reading)


def read(path: Path, *, position: FilePosition | None = None, window: int | None = None, **options: Any) -> Read:
    """Everything behind `position`, as far as it can be read now. window: read that many bytes at first, after each page."""
    file = reader(path, **options)
    cursor = file.begin(position)
    while position and cursor.position != position:
        cursor = file.verify(cursor, position)
    result = Read([])
    while True:
        if window and cursor.window >= WINDOW_BYTES_MIN:
            cursor = replace(cursor, window=window)
        try:
            step = file.step(cursor)
        except MalformedRecord as error:
            return replace(result, end="malformed", error=str(error), position=cursor.position)
        assert step.then != "verify", "it only grew"
        cursor = step.cursor
        if step.page:
            step.page.events.validate(full=True)
            assert step.page.events.schema.equals(EVENT_SCHEMA)
            result.events += step.page.events.to_pylist()
        if step.then == "wait":
            return replace(result, position=cursor.position)


def steps(file: FileReader, cursor: Cursor) -> Iterator[ReadStep]:
    """Up to the one that waits."""
    step = ReadStep(cursor, "read")
    while step.then != "wait":
        step = file.step(step.cursor)
        yield step


def at_end(file: FileReader, cursor: Cursor) -> Cursor:
    return [step.cursor for step in steps(file, cursor)][-1]


def pages(file: FileReader) -> list[pa.Table]:
    return [step.page.events for step in steps(file, file.begin(None)) if step.page]


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


class TestCsv:
    def test_a_record_is_an_object_of_its_texts_as_they_are_written(self, file: Path) -> None:
        [event] = read(write(file, "id,amount,note\n007,12.30, a b \n")).events
        assert event["body"] == b'{"id":"007","amount":"12.30","note":" a b "}'
        assert event["key"] is None
        assert event["operation"] is None

    def test_an_empty_field_is_an_empty_text_quoted_or_not(self, file: Path) -> None:
        assert read(write(file, 'a,b,c\n,"",x\n')).bodies == [{"a": "", "b": "", "c": "x"}]

    def test_a_quoted_field_may_hold_line_ends_commas_and_doubled_quotes(self, file: Path) -> None:
        text = 'a,b\n"x, ""y""\r\nz\n",1\n"""",2\n'
        assert read(write(file, text)).bodies == [{"a": 'x, "y"\r\nz\n', "b": "1"}, {"a": '"', "b": "2"}]

    def test_an_event_names_the_file_and_the_line_where_its_record_starts(self, file: Path) -> None:
        events = read(write(file, 'a,b\n"1\n1",2\n\n3,4\n')).events
        assert [event["offset"] for event in events] == ["line 2", "line 5"]
        assert [dict(event["properties"]) for event in events] == [
            {"file": "a.csv", "line": "2"},
            {"file": "a.csv", "line": "5"},
        ]
        assert [event["sequence"] for event in events] == [0, 1]

    def test_a_header_may_be_quoted_and_hold_line_ends(self, file: Path) -> None:
        result = read(write(file, '"a ""b""","c\nd"\r\n1,2\r\n'))
        assert result.bodies == [{'a "b"': "1", "c\nd": "2"}]
        assert result.lines == ["line 3"]

    def test_a_byte_order_mark_is_no_part_of_the_first_name(self, file: Path) -> None:
        assert read(write(file, b"\xef\xbb\xbfa\r\n1\r\n")).bodies == [{"a": "1"}]

    @pytest.mark.parametrize("text", ["a,b\n1,2\n\n", "a,b\n\n\r\n1,2\n\n\n", "\n\na,b\n1,2\n\r\n"])
    def test_blank_lines_are_passed_over_wherever_they_are(self, file: Path, text: str) -> None:
        assert read(write(file, text)).bodies == [{"a": "1", "b": "2"}]

    def test_an_empty_field_of_a_single_column_is_written_with_quotes(self, file: Path) -> None:
        assert read(write(file, 'a\n""\n\n1\n')).bodies == [{"a": ""}, {"a": "1"}]

    def test_control_characters_and_any_unicode_survive_the_way_into_json(self, file: Path) -> None:
        text = "\x01\t\\u0041\x7f \u2028\U0001f600\\"
        assert read(write(file, f"a\n{text}\n")).bodies == [{"a": text}]

    def test_the_key_is_the_text_of_its_column(self, file: Path) -> None:
        result = read(write(file, 'id,account\n1,"Ann ""A"""\n2,\n'), key="account")
        assert [event["key"] for event in result.events] == ['Ann "A"', ""]

    @pytest.mark.parametrize(
        ("text", "line", "why"),
        [
            ("a,b\n1,2\n1\n", 3, "1 field, and the header 2 fields"),
            ("a,b\n1,2\n1,2,3\n4,5\n", 3, "3 fields, and the header 2 fields"),
            ('a,b\n1,2\nx"y,2\n', 3, "a quote within a field"),
            ('a,b\n1,2\n"x"y,2\n', 3, "a quote within a field"),
            ('a,b\n1,2\n "x",2\n', 3, "a quote within a field"),
            ('a,b\n1,2\n"""x"",2\n"y"z"', 3, "a quote within a field"),
            ("a,b\n1,2\nx\ry,2\n", 3, "carriage return"),
            ("a,b\n1,2\nx\0y,2\n", 3, "NUL"),
            (b"a,b\n1,2\nx,\xff\n", 3, "not UTF-8 (byte 0xff)"),
            (b"a,b\n1,2\nx,\xed\xa0\x80\n", 3, "not UTF-8"),
            ('a,b\n1,"\n\n"\n\n1\n', 6, "1 field"),
            ("a,b\n1,2\n" + "x" * 99 + ",2\n", 3, "larger than 64 bytes"),
            ("a,b\n1,2\n" + "x" * 99, 3, "larger than 64 bytes"),
            ('a,b\n1,2\n"' + "x\n" * 99, 3, "larger than 64 bytes"),
            ("a,b,a\n1,2,3\n", 1, "names 'a' 2 times"),
            ("\na,,b\n1,2,3\n", 2, "column 2 of the header has no name"),
            ('a,b"\n1,2\n', 1, "a quote within a field"),
            ("a\0b\n1,2\n", 1, "NUL"),
            ("x" * 99 + "\n1\n", 1, "larger than 64 bytes"),
        ],
    )
    def test_a_malformed_record_stops_at_its_line_and_says_why(
        self, file: Path, text: str | bytes, line: int, why: str
    ) -> None:
        result = read(write(file, text), record_bytes_max=64)
        assert result.end == "malformed"
        assert result.error.startswith(f"file 'a.csv', line {line}: ")
        assert why in result.error
        assert "correct the file" in result.error
        assert len(result.events) == (1 if line > 2 else 0)

    def test_a_key_that_names_no_column_is_malformed(self, file: Path) -> None:
        assert "no column 'account'" in read(write(file, "a,b\n1,2\n"), key="account").error

    def test_a_file_in_utf_16_is_malformed(self, file: Path) -> None:
        assert "UTF-8" in read(write(file, "a,b\n1,2\n".encode("utf-16"))).error

    @pytest.mark.parametrize("line_end", ["\n", "\r\n"])
    @pytest.mark.parametrize(("bytes", "end"), [(64, "waits"), (65, "malformed")])
    def test_the_largest_record_counts_its_line_end(self, file: Path, line_end: str, bytes: int, end: End) -> None:
        record = "x" * (bytes - len(line_end)) + line_end
        assert read(write(file, "a\n" + record), record_bytes_max=64).end == end

    @pytest.mark.parametrize(
        "text", ["", "a,b", "a,b\n", "a,b\n1,", 'a,b\n"1\n', 'a,b\n1,"2"', "a,b\n1,2\r", 'a,b\n"1"\r']
    )
    def test_what_is_not_complete_is_waited_for(self, file: Path, text: str) -> None:
        result = read(write(file, text))
        assert (result.events, result.end, result.position) == ([], "waits", None)

    @pytest.mark.parametrize("text", ["a,b\n1,2", 'a,b\n1,"2"', "a,b\r\n1,2\r", "a,b\n\n1,2"])
    def test_the_end_of_the_file_ends_the_last_record_where_that_is_accepted(self, file: Path, text: str) -> None:
        assert read(write(file, text), accept=True).bodies == [{"a": "1", "b": "2"}]

    @pytest.mark.parametrize("text", ["", "a,b", "a,b\n", "a,b\n\n", "a,b\n\r"])
    def test_a_file_without_records_has_none_to_accept(self, file: Path, text: str) -> None:
        result = read(write(file, text), accept=True)
        assert (result.events, result.end) == ([], "waits")

    def test_half_a_line_end_is_not_passed_over(self, file: Path) -> None:
        accepting = reader(write(file, "a,b\n1,2\n\r"), accept=True)
        cursor = at_end(accepting, accepting.begin(None))
        write(file, "a,b\n1,2\n\rx,y\n")
        with pytest.raises(MalformedRecord, match="line 3: a carriage return"):
            at_end(accepting, cursor)

    @pytest.mark.parametrize("text", ['a,b\n1,2\n"1\n', "a,b\n1,2\n1"])
    def test_an_accepted_last_record_has_to_be_whole(self, file: Path, text: str) -> None:
        result = read(write(file, text), accept=True)
        assert result.error.startswith("file 'a.csv', line 3: ")
        assert len(result.events) == 1


class TestJsonLines:
    def test_a_line_is_the_body_byte_for_byte(self, file: Path) -> None:
        lines = ['{"a": 1.50,"b":[null]}', ' {"\\u00e9": "é\\ud800"}\t', '{"n":1e999,"m":' + "9" * 5000 + "}"]
        result = read(write(file, "\r\n".join(lines) + "\r\n"), format="jsonl")
        assert [event["body"].decode() for event in result.events] == lines
        assert result.lines == ["line 1", "line 2", "line 3"]

    def test_byte_order_mark_and_blank_lines_are_passed_over(self, file: Path) -> None:
        result = read(write(file, b'\xef\xbb\xbf\n{"a":1}\r\n\r\n{"a":2}\n\n'), format="jsonl")
        assert result.bodies == [{"a": 1}, {"a": 2}]
        assert result.lines == ["line 2", "line 4"]

    def test_half_a_byte_order_mark_is_not_taken_for_a_record(self, file: Path) -> None:
        lines = reader(write(file, b"\xef\xbb"), format="jsonl")
        cursor = at_end(lines, lines.begin(None))
        write(file, b'\xef\xbb\xbf{"a":1}\n')
        assert at_end(lines, cursor).record == 1

    @pytest.mark.parametrize(
        ("record", "key"),
        [
            ('{"k":"x y"}', "x y"),
            ('{"k":12.30}', "12.30"),
            ('{"k":true}', "true"),
            ('{"k":null}', None),
            ("{}", None),
        ],
    )
    def test_the_key_is_the_text_of_its_field(self, file: Path, record: str, key: str | None) -> None:
        [event] = read(write(file, record + "\n"), format="jsonl", key="k").events
        assert event["key"] == key

    @pytest.mark.parametrize(
        ("record", "why"),
        [
            ("[1]", "not a JSON object"),
            ("1", "not a JSON object"),
            ('{"a":1', "not JSON"),
            ('{"a":1} {"a":2}', "not JSON (More than one value, at character 8)"),
            ('{"a":01}', "not JSON"),
            ("   ", "not JSON"),
            ('{"a":NaN}', "NaN"),
            ('{"a":-Infinity}', "-Infinity"),
            ('{"a":1,"a":2}', "one key twice"),
            ('{"b":[{"a":1,"a":2}]}', "one key twice"),
            ('{"a":' + "[" * 10_000 + "]" * 10_000 + "}", "nested more than 500 levels deep"),
            ('{"a":"\t"}', "not JSON"),
            ('{"a":"\0"}', "not JSON"),
            (b'{"a":"\xff"}', "not UTF-8 (byte 0xff)"),
            ('{"k":[1]}', "neither a text nor a number"),
            ('{"k":"\\ud800"}', "surrogate"),
            ('{"a":"' + "x" * 30_000 + '"}', "larger than 25000 bytes"),
        ],
    )
    def test_a_malformed_record_stops_at_its_line_and_says_why(self, file: Path, record: str | bytes, why: str) -> None:
        record = record if isinstance(record, bytes) else record.encode()
        path = write(file, b'{"a":1}\n\n' + record + b'\n{"a":2}\n')
        result = read(path, format="jsonl", key="k", record_bytes_max=25_000)
        assert result.bodies == [{"a": 1}]
        assert result.error.startswith("file 'a.csv', line 3: ")
        assert why in result.error

    def test_the_last_line_is_accepted_or_waited_for(self, file: Path) -> None:
        write(file, '{"a":1}\n{"a":2}')
        assert len(read(file, format="jsonl").events) == 1
        assert len(read(file, format="jsonl", accept=True).events) == 2


TOKENS = [
    "a",
    "b",
    ",",
    ",",
    '"',
    '""',
    '","',
    "\n",
    "\n",
    "\r\n",
    "\r",
    "é",
    "\U0001f600",
    "\ufeff",
    " ",
    "\\",
    "\x01",
    "\0",
    "a,b\n",
    '"x\n",y\n',
]
contents = st.lists(st.sampled_from(TOKENS), max_size=30).map("".join)
"""Mostly malformed, and in every way."""


class _Incomplete(Exception):
    pass


def reference(text: str, width: int) -> tuple[list[list[str]], End]:
    """RFC 4180, character by character: the records up to the first that is malformed or not complete."""
    records: list[list[str]] = []
    at = 0
    while True:
        start = at
        fields = []
        try:
            while True:
                field, separator, at = _field(text, at)
                fields.append(field)
                if separator == "\n":
                    break
        except _Incomplete:
            return records, "malformed" if "\0" in text[start:] else "waits"
        except ValueError:
            return records, "malformed"
        if text[start:at] in ("\n", "\r\n"):
            continue
        if "\0" in text[start:at] or len(fields) != width:
            return records, "malformed"
        records.append(fields)


def _field(text: str, at: int) -> tuple[str, str, int]:
    """The field at `at`, what ends it, and where the next begins."""
    value = ""
    is_quoted = text[at : at + 1] == '"'
    if is_quoted:
        while True:
            close = text.find('"', at + 1)
            if close < 0:
                raise _Incomplete
            value += text[at + 1 : close]
            at = close + 1
            if text[at : at + 1] != '"':
                break
            value += '"'
    while True:
        rest = text[at : at + 2]
        if rest in ("", "\r"):
            raise _Incomplete
        if rest[0] in ",\n":
            return value, rest[0], at + 1
        if rest == "\r\n":
            return value, "\n", at + 2
        if is_quoted or rest[0] in '"\r':
            raise ValueError
        value += rest[0]
        at += 1


class TestAnyContent:
    @settings(max_examples=150, deadline=None)
    @given(contents, st.integers(1, 3))
    def test_csv_is_read_as_the_standard_says(self, content: str, width: int) -> None:
        header = ",".join("abc"[:width])
        expected, end = reference(content, width)
        with _file(f"{header}\n{content}".encode()) as path:
            result = read(path)
        assert [list(body.values()) for body in result.bodies] == expected
        assert result.end == end

    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(st.lists(st.text("ab,\"'\n\r é\U0001f600\ufeff\\\x01\x85\u2028", max_size=6), min_size=3, max_size=3)),
        st.sampled_from(["\n", "\r\n"]),
        st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
        st.booleans(),
    )
    def test_what_pythons_csv_module_writes_is_read_as_it_reads_it(
        self, rows: list[list[str]], line_end: str, quoting: Literal[0, 1, 2], has_mark: bool
    ) -> None:
        if line_end == "\n" and quoting != csv.QUOTE_ALL:  # csv.writer leaves a lone carriage return unquoted there
            rows = [[value.replace("\r", "") for value in row] for row in rows]
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator=line_end, quoting=quoting).writerows([["x", "y", "z"], *rows])
        with _file(text.getvalue().encode("utf-8-sig" if has_mark else "utf-8")) as path:
            result = read(path)
        assert result.end == "waits"
        text.seek(0)
        assert [list(body.values()) for body in result.bodies] == list(csv.reader(text, strict=True))[1:]

    @settings(max_examples=100, deadline=None)
    @given(contents, st.data(), st.sampled_from(["csv", "jsonl"]))
    def test_how_a_file_grew_and_where_reading_was_resumed_changes_nothing(
        self, content: str, data: st.DataObject, format: Literal["csv", "jsonl"]
    ) -> None:
        opening = "\ufeffa,b\r\n" if format == "csv" else '\ufeff{"a":1}\n{}\r\n'
        whole = (opening + content).encode()
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
        window = data.draw(st.integers(1, 40))
        events_max = data.draw(st.integers(1, 4))
        with _file(whole) as path:
            expected = read(path, format=format)
        with _file(b"") as path:
            events: list[dict[str, Any]] = []
            result, position = Read([]), None
            for start, end in itertools.pairwise([0, *cuts, len(whole)]):
                with path.open("ab") as file:
                    file.write(whole[start:end])
                result = read(path, format=format, position=position, window=window, page_events_max=events_max)
                events += result.events
                position = result.position and decode(result.position.encode())
        assert _without_times(events) == _without_times(expected.events)
        assert (result.end, result.error.split(": ")[0]) == (expected.end, expected.error.split(": ")[0])
        assert _elsewhere(position) == _elsewhere(expected.position)

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.text('ab"\\\x01é,', min_size=1, max_size=300), min_size=1, max_size=30), st.integers(200, 2000))
    def test_pages_stay_within_their_bytes(self, texts: list[str], bytes_max: int) -> None:
        text = io.StringIO(newline="")
        csv.writer(text).writerows([["a" * 50], *([value] for value in texts)])
        with _file(text.getvalue().encode()) as path:
            events = pages(reader(path, page_bytes_max=bytes_max))
        assert [body for page in events for body in page["body"].to_pylist()] == [
            json.dumps({"a" * 50: value}, ensure_ascii=False, separators=(",", ":")).encode() for value in texts
        ]
        assert all(page.nbytes <= bytes_max or page.num_rows == 1 for page in events)


class TestPages:
    def test_escapes_that_no_estimate_foresees_make_a_page_smaller(self, file: Path) -> None:
        write(file, "a\n" + f"{chr(1) * 100}\n" * 500)
        sizes = [page.nbytes for page in pages(reader(file, page_bytes_max=30_000, page_events_max=1000))]
        assert 10_000 < max(sizes) <= 30_000

    def test_names_much_longer_than_their_records_are_not_built_all_at_once(self, file: Path) -> None:
        write(file, f"{'a' * 200_000},{'b' * 200_000}\n" + "1,2\n" * 100)
        pool = pa.default_memory_pool()
        bound = max(pool.max_memory(), 16 * 1024 * 1024)
        one_page_a_time = reader(file, page_events_max=1000)
        read = sum(
            step.page.events.num_rows for step in steps(one_page_a_time, one_page_a_time.begin(None)) if step.page
        )
        assert read == 100
        assert pool.max_memory() <= bound, "they take 40 MB"


@contextmanager
def _file(content: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield write(Path(directory) / "a.csv", content)


def _without_times(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**event, "enqueued_time": None} for event in events]


def _elsewhere(position: FilePosition | None) -> FilePosition | None:
    """As it would be in another file with the same contents."""
    return position and replace(position, file="")


# Files of other formats


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"n": [1]}), sink)
    return sink.getvalue().to_pybytes()


def orc_file(compression: str) -> bytes:
    sink = pa.BufferOutputStream()
    orc.write_table(pa.table({"n": [1, 2], "s": ["a", "b"]}), sink, compression=compression)
    return sink.getvalue().to_pybytes()


def a_zip(names: list[str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name), "n\n1\n")
    return content.getvalue()


TEXT = '{"n": 1}\n{"n": 2}\n'


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (TEXT.encode("utf-16"), "the file is UTF-16: convert it to UTF-8"),
        (TEXT.encode("utf-16-le"), "the file is UTF-16"),
        (TEXT.encode("utf-16-be"), "the file is UTF-16"),
        ("\ufeffa,b\r\n1,2\r\n".encode("utf-16-be"), "the file is UTF-16"),
        ("a".encode("utf-16-le"), "the file is UTF-16"),
        ("Ж,b\n".encode("utf-16"), "the file is UTF-16"),
        (TEXT.encode("utf-32"), "the file is UTF-32: convert it to UTF-8"),
        (TEXT.encode("utf-32-be"), "the file is UTF-32"),
        (gzip.compress(TEXT.encode(), mtime=0), "the file is compressed with gzip: decompress it"),
        (bz2.compress(TEXT.encode()), "the file is compressed with bzip2"),
        (lzma.compress(TEXT.encode()), "the file is compressed with xz"),
        (pa.compress(TEXT.encode(), codec="zstd", asbytes=True), "the file is compressed with zstd"),
        (pa.compress(TEXT.encode(), codec="lz4", asbytes=True), "the file is compressed with lz4"),
        (b"PK\x03\x04\x14\x00", "the file is a zip archive or an Excel workbook"),
        (parquet(), "the file is Parquet: convert it to CSV or JSON lines"),
        (b"SQLite format 3\x00", "the file is a SQLite database"),
        ("编号,金额\n1,2\n".encode("utf-16-le"), "the file is UTF-16: convert it to UTF-8"),
        ("编号,金额\r\n1,2\r\n".encode("utf-16-be"), "the file is UTF-16"),
        ("编号\n一百\n".encode("utf-16-le"), "the file is UTF-16"),
        (("编号,金额\n" + 3000 * "金").encode("utf-16-be"), "the file is UTF-16"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "the file is PDF: export its tables as CSV"),
        *(
            (zlib.compress(TEXT.encode(), level), "the file is compressed with zlib: decompress it")
            for level in range(10)
        ),
        (zlib.compress(TEXT.encode() * 10_000), "the file is compressed with zlib"),
        (b"\x1f\x9d\x90{D", "the file is compressed with compress"),
        (lzma.compress(TEXT.encode(), lzma.FORMAT_ALONE), "the file is compressed with lzma: decompress it"),
        (lzma.compress(TEXT.encode(), lzma.FORMAT_ALONE, preset=9), "the file is compressed with lzma"),
        (b"\x50\x2a\x4d\x18\x04\0\0\0", "the file is compressed with zstd"),
        (bz2.compress(b""), "the file is compressed with bzip2"),
        *(
            (a_zip(names), "the file is a zip archive or an Excel workbook")
            for names in (["a.csv"], ["[Content_Types].xml"])
        ),
        (a_zip([]), "the file is an empty zip archive"),
        *(
            (orc_file(codec), "the file is ORC: convert it to CSV")
            for codec in ("UNCOMPRESSED", "ZLIB", "SNAPPY", "LZ4", "ZSTD")
        ),
        (b"Obj\x01\x04\x14avro.codec", "the file is Avro: convert it to CSV"),
    ],
)
def test_a_file_of_another_known_format_is_named(content: bytes, named: str) -> None:
    with pytest.raises(NotText, match=named):
        check_text(content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"a",
        b"PAR1,x\n",
        b"BZh9,x\n",
        b"PK,x\n",
        b"ORC,x\n",
        BOM + b"a\n",
        "ж,x\n".encode(),
        b"a\n\0\n",
        b"a,b\0\n",
        b"x^2,y\n1,2\n",
        b"x\x01,y\n1,2\n",
        "x^é,y\n1,2\n".encode("latin-1"),
        "caf\u00e9,th\u00e9\n1,2\n".encode("latin-1"),
        "编号,金额\n1,2\n".encode("gb18030"),
        "名前,金額\n1,2\n".encode("shift-jis"),
        "编号,金额\n1,2\n".encode(),
        b"]\n1\n",
        b"P*M\n",
        b"PDF-1\n",
        b"ORC\n1\n2\n3\n",
        b"\0",
    ],
)
def test_a_text_is_not_taken_for_another_format(content: bytes) -> None:
    check_text(content)
