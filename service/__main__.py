"""The entry point of the command `leasehold`, and of `python -m leasehold`."""

from __future__ import annotations

import sys

from leasehold.service.cli.common import importing, open_closed_streams, watched_output

INTERRUPTED = 130


def main() -> None:
    """Run the command. Ctrl-C causes no traceback, even before the command has anything to end."""
    open_closed_streams()
    try:
        with importing():
            from leasehold.service.cli.main import main as command
        with watched_output():
            command()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
