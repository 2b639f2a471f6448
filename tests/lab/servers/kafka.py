"""A real Kafka broker for a developer, until Ctrl-C (docs/local.md): `make kafka`."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import suppress

import pytest
from patience import Failed
from plugins_kafka import kafka_machines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9092, help="where it serves at 127.0.0.1; 0 takes a free port")
    port = parser.parse_args().port
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            suppress(KeyboardInterrupt),
            kafka_machines(port=port or None, auto_create_topics_enable="true") as [broker],
        ):
            sys.stdout.write(f"Kafka serves at {broker.servers}. Ctrl-C stops it, and its topics are gone then.\n")
            sys.stdout.flush()
            signal.pause()
    except (pytest.skip.Exception, Failed) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
