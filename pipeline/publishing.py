"""Deprecated: import `pipeline.publishing_writer`. The next release removes this name."""

import warnings

from pipeline.publishing_writer import *  # noqa: F403

warnings.warn(
    "pipeline.publishing is now pipeline.publishing_writer; the old name is removed in the next release",
    DeprecationWarning,
    stacklevel=2,
)
