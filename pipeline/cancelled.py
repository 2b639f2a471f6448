"""Deprecated: import `heeding` and `insisting` from `leasehold`. The next release removes this name."""

import warnings

from leasehold.common.cancellation import *  # noqa: F403

warnings.warn(
    "leasehold.pipeline.cancelled: import `heeding` and `insisting` from leasehold; the old name is removed in the next release",
    DeprecationWarning,
    stacklevel=2,
)
