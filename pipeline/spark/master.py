"""A standalone Spark master: its addresses, tried before a JVM spends seconds on its own start and a minute on the master."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from pipeline.errors import EngineUnavailable

REACH_S = 5.0
REMEDY = "start it, or correct `spark.master`"
_STANDALONE = "spark://"
_ADDRESS = re.compile(r"\[?([^\[\]]+)\]?:(\d{1,5})")

Address = tuple[str, int]


def is_standalone(master: str) -> bool:
    return master.startswith(_STANDALONE)


def addresses(master: str) -> list[Address]:
    """Of `spark://a:7077,b:7077`; none for other kinds of masters. Raises ValueError."""
    if not is_standalone(master):
        return []
    found = [_ADDRESS.fullmatch(part.strip()) for part in master.removeprefix(_STANDALONE).split(",")]
    if not all(each and int(each[2]) < 65536 for each in found):  # a larger port would be another one to the resolver
        raise ValueError(f"`spark.master` is '{master}': write it as spark://HOST:PORT, spark://spark:7077 for example")
    return [(each[1], int(each[2])) for each in found if each]


def require_master(master: str, connect: Callable[[Address], str | None] | None = None) -> None:
    """Return once one of the addresses accepts a connection. Blocks, for REACH_S at most as a rule.

    connect: returns why an address does not accept one, or None. Raises EngineUnavailable.
    """
    try:
        wanted = addresses(master)
    except ValueError as error:
        raise EngineUnavailable(str(error)) from None
    answers: SimpleQueue[tuple[Address, str | None]] = SimpleQueue()
    for address in wanted:  # daemons, because nothing ends a name server's silence
        threading.Thread(target=_answer, args=(connect or _connect, address, answers), daemon=True).start()
    refusals = dict.fromkeys(wanted, f"no answer within {REACH_S:g} s")
    for _ in wanted:
        try:
            address, refusal = answers.get(timeout=REACH_S + 0.5)
        except Empty:
            break
        if refusal is None:
            return
        refusals[address] = refusal
    if refusals:
        reasons = "; ".join(f"{host}:{port}: {why}" for (host, port), why in refusals.items())
        raise EngineUnavailable(f"the Spark master at '{master}' cannot be reached ({reasons}): {REMEDY}")


def _answer(
    connect: Callable[[Address], str | None], address: Address, answers: SimpleQueue[tuple[Address, str | None]]
) -> None:
    answers.put((address, connect(address)))


def _connect(address: Address) -> str | None:
    try:
        socket.create_connection(address, timeout=REACH_S).close()
    except TimeoutError:
        return f"no answer within {REACH_S:g} s"
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot carry
        return (getattr(error, "strerror", None) or str(error)).lower()
    return None
