"""Deprecated: import `pipeline.publishing_writer`. This name goes with the next release."""

import warnings

from pipeline.publishing_writer import *  # noqa: F403

warnings.warn(
    "pipeline.published is now pipeline.publishing_writer; the old name goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
