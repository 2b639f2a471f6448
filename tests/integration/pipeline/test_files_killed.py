"""A process that writes files is killed before each step that changes the disk: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

from unit.pipeline.connectors.files.sink.places import deliver, numbers_in

from leasehold.pipeline.connectors.files.sink import Directory, leftovers, snapshot_of

KILLED = """
import os, signal, sys
from itertools import count
calls, wanted = count(1), 0
def watched(call):
    def stepped(*arguments, **options):
        if next(calls) == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments, **options)
    return stepped
import asyncio
from pathlib import Path
from unit.pipeline.connectors.files.sink.places import STEPS, deliver
print("ready", flush=True)
for line in sys.stdin:  # one process forks for every step: to start Python is what takes time
    wanted, path = int(line.split()[0]), Path(line.split()[1])
    if (child := os.fork()) == 0:
        try:
            for name in STEPS:
                setattr(os, name, watched(getattr(os, name)))
            asyncio.run(deliver(path, 1, 2))
            os._exit(0)
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_process_killed_at_whatever_step_leaves_what_the_next_one_finishes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        killed = 0
        for wanted in count(1):
            path = tmp_path / str(wanted)
            process.stdin.write(f"{wanted} {path}\n")
            process.stdin.flush()
            status = int(process.stdout.readline())
            seen = numbers_in(Directory(path))
            assert seen == list(range(1, len(seen) + 1))
            asyncio.run(deliver(path, 2, 3))
            assert numbers_in(Directory(path)) == [1, 2, 3], f"killed before step {wanted}"
            for name in leftovers(Directory(path), snapshot_of(Directory(path))):
                Directory(path).delete(name)
            assert len(list(path.rglob("*.parquet"))) == len(snapshot_of(Directory(path)).files)
            if status == 0:
                break
            assert status == -9
            killed += 1
        process.stdin.close()
    assert killed > 20
