"""Settings of handlers that are called side by side: what they become, and what contradicts itself."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pyarrow as pa
import pytest

from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.handlers import HandlerSink
from leasehold.pipeline.connectors.python import PythonOutputSink
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.limits import ParallelLimits
from leasehold.service.config.custom import PythonSink
from leasehold.service.config.load import load
from leasehold.service.config.settings import Settings
from leasehold.service.errors import ConfigurationError
from leasehold.service.wiring.build import processor_of


def settings(folder: Path, parallel: str, more: str = "", *, checkpoint_s: str = "0") -> Settings:
    text = f"""
    pipelines:
      - name: p
        feed: {{type: log, path: log}}
        {more}
        sink: {{type: python, handler: "{__name__}:handle", parallel: {{{parallel}}}, checkpoint_s: {checkpoint_s}}}
    """
    (folder / "c.yaml").write_text(textwrap.dedent(text))
    return load(folder / "c.yaml", {})


async def handle(changes: object, context: object) -> None: ...


def plain(changes: object, context: object) -> None: ...


def sink_in(found: Settings) -> PythonSink:
    sink = found.pipelines[0].sink
    assert isinstance(sink, PythonSink)
    return sink


def test_settings_have_the_defaults_of_the_limits(tmp_path: Path) -> None:
    found = sink_in(settings(tmp_path, "key: key"))
    assert found.parallel is not None
    assert found.parallel.limits() == ParallelLimits()
    sink = found.make(Timing())
    assert isinstance(sink, HandlerSink)
    assert isinstance(PythonSink(type="python", handler="a:b").make(Timing()), PythonOutputSink)
    assert sink.identity == PythonSink(type="python", handler=f"{__name__}:handle").make(Timing()).identity


def test_batches_hold_a_quarter_of_the_window_at_most(tmp_path: Path) -> None:
    import structlog

    def events_max(parallel: str, more: str = "") -> int:
        found = settings(tmp_path, parallel, more)
        return processor_of(found, host="a", log=structlog.get_logger()).pipelines[0].limits.events_max

    assert events_max("key: key") == 250
    assert events_max("key: key, max: 1, window: 3") == 1
    assert events_max("key: key", "batch_events_max: 20") == 20


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ("max: 4", "pipelines[0].sink.parallel.key is missing"),
        ("key: key, max: 0", "pipelines[0].sink.parallel.max is 0"),
        ("key: key, maxx: 4", "did you mean `max`"),
        ("key: key, window: 10", "window (10) is below max (64), so there could never be as many calls"),
        ("key: key}, gets: table, parallel_: {key: key", "did you mean `parallel`"),
        ("key: key, timeout_s: 0", "pipelines[0].sink.parallel.timeout_s is 0"),
        (
            "key: account",
            "`sink.parallel.key` names the column 'account', and without a transform events have the columns",
        ),
    ],
)
def test_contradictions_are_reported(tmp_path: Path, parallel: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        settings(tmp_path, parallel)
    assert message in str(caught.value)


def test_with_a_transform_any_column_may_be_the_key(tmp_path: Path) -> None:
    found = sink_in(settings(tmp_path, "key: account", "schema: account STRING"))
    found.check_output(pa.table({"account": ["a"]}))
    with pytest.raises(SinkRejected, match="the output has no column 'account'"):
        found.check_output(pa.table({"sequence": [1]}))


def test_output_that_is_acknowledged_by_hand_needs_its_sequences(tmp_path: Path) -> None:
    found = sink_in(settings(tmp_path, "key: key", checkpoint_s="manual"))
    with pytest.raises(SinkRejected, match="no column 'sequence', by which events are acknowledged"):
        found.check_output(pa.table({"key": ["a"]}))


def test_a_check_imports_the_function(tmp_path: Path) -> None:
    found = sink_in(settings(tmp_path, "key: key, timeout_s: 5"))
    found.import_code()
    with pytest.raises(SinkRejected, match="needs an `async def` one"):
        found.model_copy(update={"handler": f"{__name__}:plain"}).import_code()
