"""Deprecated: import `pipeline.cancellation`. This name goes with the next release."""

import warnings

from pipeline.cancellation import *  # noqa: F403

warnings.warn(
    "pipeline.cancelled is now pipeline.cancellation; the old name goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
