"""Traces for OpenTelemetry, where somebody asks for them: the leases' moves and renewals, and each batch by its stages.

What happened is told once it is over, with its times: nothing waits for a span, and nobody carries one along. Without an
endpoint nothing of OpenTelemetry is imported.

    traces = traces_of(settings.telemetry, os.environ, host="pod-1", log=log)     # None where nobody asks
    processor = Processor(..., traces=traces)
"""

from service.traces.asked import lacking, traces_of
from service.traces.span import Span, Told, Traces
from service.traces.tally import TracedTally

__all__ = ["Span", "Told", "TracedTally", "Traces", "lacking", "traces_of"]
