"""Standard streams that may be closed, and standard output whose reader may leave: `leasehold ... | head` ends silently.

Only writes to standard output count. SIGPIPE stays ignored, because it would also end a host whose connection to a database
breaks; and a BrokenPipeError of a connection stays an error that is reported.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

READER_LEFT = 141
"""The exit code of a process that SIGPIPE ended, which shells and their `pipefail` know: 128 + 13."""


class OutputLost(SystemExit):
    """Standard output takes no more. It ends the command, and no handler of errors takes it for a failure of the work."""


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            self._discard_the_rest()
            raise OutputLost(READER_LEFT) from None
        except OSError as error:
            self._discard_the_rest()
            reason = error.strerror or str(error)
            raise OutputLost(f"leasehold: standard output cannot be written ({reason}): write it elsewhere") from None

    def _discard_the_rest(self) -> None:
        """Or Python would complain again when it flushes what is left in its buffers."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, self.fileno())
        os.close(nothing)


def open_closed_streams() -> None:
    """Give a process that was started without standard input, output or error (`<&-`) empty ones.

    Otherwise Python has None for the stream, and the next file or socket that is opened gets its number.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 - gets the number of the missing stream
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


@contextmanager
def watched_output() -> Iterator[None]:
    """Within, a write to standard output that is lost raises OutputLost. What is buffered is written at the end."""
    before = sys.stdout
    if (output := _watched(before)) is None:
        yield
        return
    sys.stdout = output
    try:
        yield
        output.flush()
    except SystemExit as ended:
        _flush(output, keeps_code=bool(ended.code))
        raise
    except BaseException:
        _flush(output, keeps_code=True)
        raise
    finally:
        sys.stdout = before


def _watched(stream: TextIO) -> TextIO | None:
    """None for a stream that is no file of the system, as tests have it."""
    try:
        number = stream.fileno()
    except (AttributeError, OSError):
        return None
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(number, "w", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty(),
    )


def _flush(output: TextIO, *, keeps_code: bool) -> None:
    """keeps_code: the exit code that is on its way says more than a reader that left."""
    try:
        output.flush()
    except OutputLost:
        if not keeps_code:
            raise


@contextmanager
def unread_is_fine() -> Iterator[None]:
    """For the report of a command whose work is done: its exit code is that of the work, whether its report was read or not."""
    with suppress(OutputLost):
        yield
