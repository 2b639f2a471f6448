"""A Connect server, as far as sessions and jobs use one. It may freeze, and refuse calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pyspark
import pytest
from patience import PATIENCE_S

from leasehold.pipeline.spark.engine import SparkEngine


class Session:
    """As far as jobs use one: a connection of its own, whose calls wait while its server is frozen.

    fails: what its calls raise next, by their names. interrupted: the tags whose jobs were ended.
    """

    version = pyspark.__version__

    def __init__(self, server: Server) -> None:
        self.client, self.conf, self._server = self, self, server
        self._channel = SimpleNamespace(close=self.cut)
        self.modules: list[str] = []
        self.interrupted: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.releases = 0
        self.is_cut = self.is_closed = False
        self.wakes = threading.Event()

    def registerProgressHandler(self, handler: object) -> None:  # noqa: N802 - as PySpark names it
        pass

    def get(self, name: str) -> str:
        self._call("get")
        return "UTC"

    def set(self, name: str, value: str) -> None:
        self._call("set")

    def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802 - as PySpark names it
        self._call("addArtifacts")
        self.modules.append(path)

    def clearTags(self) -> None:  # noqa: N802 - as PySpark names it
        pass

    def addTag(self, tag: str) -> None:  # noqa: N802 - as PySpark names it
        pass

    def interruptTag(self, tag: str) -> None:  # noqa: N802 - as PySpark names it
        self.interrupted.append(tag)
        self.wakes.set()

    def release_session(self) -> None:
        self.releases += 1
        self._call("release_session")

    def cut(self) -> None:
        self.is_cut = True
        self.wakes.set()

    def close(self) -> None:
        self.is_closed = True

    def stop(self) -> None:
        pass

    def _call(self, name: str) -> None:
        if self._server.is_frozen:
            self._server.is_called.set()
            if not self.wakes.wait(PATIENCE_S):
                self._server.outlasted.append(name)
        if self.is_cut:
            raise ValueError("Cannot invoke RPC on closed channel!")
        for fails in (self.fails, self._server.fails):
            if (error := fails.pop(name, None)) is not None:
                raise error


@dataclass
class Server:
    """sessions: in the order in which they were opened, the root session of a connection first.

    fails: what calls raise next, by their names. is_called: set once a call waits because the server is frozen.
    outlasted: calls whose channel nobody has closed while they waited.
    """

    engine: SparkEngine
    sessions: list[Session] = field(default_factory=list)
    fails: dict[str, Exception] = field(default_factory=dict)
    is_frozen: bool = False
    is_called: threading.Event = field(default_factory=threading.Event)
    outlasted: list[str] = field(default_factory=list)

    def thaw(self) -> None:
        self.is_frozen = False
        for session in self.sessions:
            session.wakes.set()


@contextmanager
def connect_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    server = Server(SparkEngine(remote="sc://spark"))

    def session(remote: str) -> Session:
        server.sessions.append(Session(server))
        return server.sessions[-1]

    monkeypatch.setattr("leasehold.pipeline.spark.connect._session", session)
    yield server
    server.thaw()
    server.engine.stop()


@contextmanager
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only while the server is frozen: a busy machine may answer late."""
    with monkeypatch.context() as bounds:
        bounds.setattr("leasehold.pipeline.spark.runs.LOOK_S", 0.01)
        bounds.setattr("leasehold.pipeline.spark.runs.ANSWER_S", 0.1)
        bounds.setattr("leasehold.pipeline.spark.connect.END_S", 0.1)
        yield
