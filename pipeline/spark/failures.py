"""What an exception of Spark's means for the batch: Spark is not usable, the transform fails, or some events fail."""

from __future__ import annotations

from collections.abc import Sequence

import pyspark
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from leasehold.pipeline.errors import EngineUnavailable, PipelineError, TransformError
from leasehold.pipeline.poison import JobFailed
from leasehold.pipeline.spark.blame import Cause, blame, causes_in
from leasehold.pipeline.spark.connect import failed_call, lost_server, lost_session
from leasehold.pipeline.spark.jvm import Running, text_of
from leasehold.pipeline.spark.pyspark_internals import java_causes
from leasehold.pipeline.spark.reason import last_words, reason_of
from leasehold.pipeline.spark.session import PipelineSession


def failure_of(error: BaseException, running: Running, own: PipelineSession | None = None) -> Exception:
    """What an error that Spark raised means for the batch. own: the session that was called; None while one is opened."""
    if isinstance(error, PipelineError):
        return error
    text = text_of(error)
    lost = lost_session(error, running) if own is None else own.lose(error)
    if (lost := lost or lost_server(error, running) or failed_call(error, running)) is not None:
        return lost
    if (text is None or not isinstance(error, Py4JJavaError)) and _is_of_connection(error) and running.has_died():
        words = last_words(running.last_lines)
        why = f" ({words})" if words else ""
        return EngineUnavailable(f"Spark's JVM has died{why}; the next batch starts another")
    if text is None:
        return EngineUnavailable("Spark's JVM no longer answers")
    if isinstance(error, AnalysisException):
        return TransformError(reason_of(text))
    if not isinstance(error, PySparkException | Py4JError):
        return TransformError(f"{type(error).__name__}: {text}".splitlines()[0])
    verdict, reason = blame(_causes_of(error, text)), reason_of(text)
    match verdict.blame:
        case "engine":
            breaks = verdict.breaks == "always" or (verdict.breaks == "local" and not running.is_cluster)
            running.is_broken = running.is_broken or breaks
            remedy = f": {verdict.remedy.format(version=pyspark.__version__)}" if verdict.remedy else ""
            return EngineUnavailable(f"Spark at '{running.place}' could not run the job: {reason}{remedy}")
        case "transform":
            return TransformError(reason)
        case "output":
            return TransformError(f"the output of one batch is too large ({reason}): make batches smaller")
    return JobFailed(reason)


def _causes_of(error: BaseException, text: str) -> Sequence[Cause]:
    """text: of the error. For a class of PySpark's, it begins with a message, which may quote an event."""
    if found := [Cause(kind, message) for kind, message in java_causes(error)]:
        return found
    return causes_in(text, type(error).__name__ if isinstance(error, PySparkException) else "")


def _is_of_connection(error: BaseException) -> bool:
    return isinstance(error, Py4JError | OSError | EOFError)
