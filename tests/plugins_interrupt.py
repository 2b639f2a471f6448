"""SIGTERM ends a run as Ctrl-C does: with the clean-up of its fixtures, so that no process outlives it."""

from __future__ import annotations

import signal
from types import FrameType

import psutil
import pytest


def pytest_configure(config: pytest.Config) -> None:
    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):  # xdist sends more of them, which would end the clean-up
            signal.signal(each, signal.SIG_IGN)
        if config.pluginmanager.has_plugin("dsession"):  # the tests run in workers, which xdist would kill
            for worker in psutil.Process().children():
                worker.terminate()
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
