"""Deprecated: import `leasehold.pipeline.publishing_writer`. The next release removes this name."""

import warnings

from leasehold.pipeline.publishing_writer import *  # noqa: F403

warnings.warn(
    "leasehold.pipeline.published is now leasehold.pipeline.publishing_writer; the old name is removed in the next release",
    DeprecationWarning,
    stacklevel=2,
)
