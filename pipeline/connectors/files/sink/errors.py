"""What can go wrong with files and their manifest.

FilesError
├── FilesUnavailable   surely not done; may be tried again
│   ├── FilesRefused   the place is there and refuses: a key, a role, a name
│   └── FilesNowhere   its address leads nowhere
├── FilesUncertain     perhaps done: the answer was lost
└── FilesDamaged       a file of the manifest, or one that it names, is not what was written
"""

from __future__ import annotations

from pipeline.errors import PipelineError


class FilesError(PipelineError):
    """A place that could not be read or written."""


class FilesUnavailable(FilesError):
    """The same call may be tried again, after `retry_after_s` where the place said so."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class FilesRefused(FilesUnavailable):
    """The place answers, and refuses for what the settings or its permissions are."""


class FilesNowhere(FilesUnavailable):
    """The host of its address does not exist."""


class FilesUncertain(FilesError):
    """A file may be there, or may still come to be there. To put the same bytes under the same name once more is harmless."""


class FilesDamaged(FilesError):
    """Not what was written here. Restore it from a backup, or look at who else writes there."""
