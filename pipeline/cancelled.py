"""Deprecated: import `heeding` and `insisting` from `leasehold`. This name goes with the next release."""

import warnings

from leasehold.common.cancellation import *  # noqa: F403

warnings.warn(
    "pipeline.cancelled: import `heeding` and `insisting` from leasehold; the old name goes with the next release",
    DeprecationWarning,
    stacklevel=2,
)
