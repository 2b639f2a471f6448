"""Containers of the built image, without a daemon: run as Kubernetes runs them, as user 10001, on a root that is read-only, with
memory for what is written, and processes, mounts and a host name of their own. They share the machine's network."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psutil

ROOT = Path(__file__).parents[1]
NAME = os.environ.get("IMAGE", "leasehold")
THIN = f"{NAME}-thin"
TOKEN = "0123456789abcdef" * 2
"""Of readers: in the file `readers` beside the settings."""
SETTINGS = "etc/leasehold"
STATE = "var/lib/leasehold"
WRITABLE = ("tmp", "dev/shm", STATE)
HOSTS = ("pod-1", "pod-2", "pod-3", "pod-4")
INSIDE = """
set -eu
mount --bind {root} {root}
mount -o remount,bind,ro {root}
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
{mounts}
hostname {host}
exec env --ignore-environment {environment} /usr/sbin/chroot --userspec={user} --groups={group} {root} {command}
"""
UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation=private", "sh", "-c")


def buildah(*arguments: str) -> str:
    ran = subprocess.run(["buildah", *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


@dataclass(frozen=True)
class Image:
    """root: where its files are. container: buildah's name of them. config: what the Dockerfile says of how it is run."""

    root: Path
    config: dict[str, Any]
    container: str

    @property
    def user(self) -> int:
        return int(self.config["User"].split(":")[0])

    def size_bytes(self) -> int:
        used = subprocess.run(["du", "-sxb", self.root], capture_output=True, text=True, timeout=120, check=True).stdout
        return int(used.split()[0])

    def command(
        self, settings: Path, *arguments: str, host: str = HOSTS[0], state: Path | None = None, **environment: str
    ) -> list[str]:
        """state: a directory to keep what is written to the host's own; memory, if not given."""
        user, group = self.config["User"].split(":")
        given = [*self.config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        script = INSIDE.format(
            root=self.root,
            mounts="\n".join(self._mounts(settings, state)),
            host=host,
            environment=shlex.join(given),
            user=f"{user}:{group}",
            group=group,
            command=shlex.join(arguments or (*self.config["Entrypoint"], *self.config["Cmd"])),
        )
        return [*UNSHARE, script]

    def _mounts(self, settings: Path, state: Path | None) -> Iterator[str]:
        given = {SETTINGS: settings, **({STATE: state} if state else {})}
        for folder in WRITABLE:
            if folder not in given:
                yield f"mount -t tmpfs -o mode=1777,size=2g tmpfs {self.root}/{folder}"
        for folder, source in given.items():
            yield shlex.join(["mount", "--bind", str(source), f"{self.root}/{folder}"])


def noted(line: str) -> None:
    """For people: `make image` and `make pods` show it."""
    with (ROOT / "build/image.txt").open("a") as notes:
        notes.write(line + "\n")


@contextmanager
def opened(name: str = NAME) -> Iterator[Image]:
    """Its files are there meanwhile. As root."""
    told = json.loads(buildah("inspect", "--type", "image", name))
    container = buildah("from", "--pull-never", name)
    try:
        root = Path(buildah("mount", container))
        (root / SETTINGS).mkdir(exist_ok=True)  # as whoever mounts the settings does
        names = " ".join(HOSTS)
        (root / "etc/hosts").write_text(
            f"127.0.0.1 localhost {names}\n"
        )  # as Kubernetes does: a pod knows its own name
        yield Image(root, told["Docker"]["config"], container)
    finally:
        buildah("rm", container)


class Pod:
    """A host in a container. output: a file for what it says."""

    def __init__(
        self,
        image: Image,
        settings: Path,
        *,
        port: int,
        output: Path,
        host: str = HOSTS[0],
        state: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self._output = output
        command = image.command(settings, host=host, state=state, POD_NAME=host, **(environment or {}))
        self.started = time.monotonic()
        with output.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file)

    @property
    def said(self) -> str:
        return self._output.read_text(errors="replace")

    def asked(self, path: str) -> tuple[int, str]:
        """Status and text; 0 where nobody answers."""
        request = Request(f"http://127.0.0.1:{self.port}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        try:
            with urlopen(request, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, ""
        except (URLError, OSError):
            return 0, ""

    def items(self, path: str) -> list[dict[str, Any]]:
        """Of a listing; none where it does not answer."""
        status, text = self.asked(path)
        return list(json.loads(text)["items"]) if status == 200 else []

    def until(
        self, path: str, within_s: float, holds: Callable[[str], bool] = lambda text: True, every_s: float = 0.01
    ) -> float:
        """Seconds from its start until the path was answered as wanted. Raises AssertionError."""
        while True:
            status, text = self.asked(path)
            if status == 200 and holds(text):
                return time.monotonic() - self.started
            assert self.process.poll() is None, f"{self.host} has ended: {self.said}"
            assert time.monotonic() - self.started < within_s, (
                f"{self.host}, {path}: not within {within_s} s: {self.said}"
            )
            threading.Event().wait(every_s)

    def memory_bytes(self) -> int:
        """Resident, of all its processes: also the pages of files that pods on one machine share."""
        return sum(each.memory_info().rss for each in psutil.Process(self.process.pid).children(recursive=True))

    def send(self, number: signal.Signals) -> None:
        """To the host: process 1 of its container."""
        for process in psutil.Process(self.process.pid).children():
            process.send_signal(number)

    def ended(self, within_s: float = 60) -> int:
        return self.process.wait(within_s)

    def end(self) -> None:
        if self.process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                self.send(signal.SIGKILL)
            self.process.kill()
        self.process.wait(20)
