"""Deprecated: import `pipeline.output_events`. This name goes with the next release."""

import warnings

from pipeline.output_events import *  # noqa: F403

warnings.warn(
    "pipeline.published is now pipeline.output_events; the old name goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
