"""A real Pulsar broker for a developer, until Ctrl-C (docs/local.md): `make pulsar`."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import suppress

import pytest
from patience import Failed
from plugins_pulsar import pulsar_machine

CREATED = {"allowAutoTopicCreation": "true", "allowAutoTopicCreationType": "partitioned", "defaultNumPartitions": "4"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=6650, help="where it serves at 127.0.0.1; 0 takes a free port")
    port = parser.parse_args().port
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt), pulsar_machine(port=port or None, **CREATED) as broker:
            sys.stdout.write(
                f"Pulsar serves at {broker.servers}, and its administration at {broker.admin_url}."
                " Ctrl-C stops it, and its topics are gone then.\n"
            )
            sys.stdout.flush()
            signal.pause()
    except (pytest.skip.Exception, Failed) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
