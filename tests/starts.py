"""How soon a host of the image lives and is ready, beside a bare Spark session in the same image, by turns: `make start`.

    PYTHONPATH=tests python tests/starts.py [--pairs 7]

Into build/start.json. Exit code 1 where the median of a bound is broken: alive within LIVE_S_MAX, and ready within RATIO_MAX of
what the bare session needs for its first result. On a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from containers import TOKEN, Image, Pod, opened
from plugins_node import free_port

LIVE_S_MAX = 2.0
RATIO_MAX = 1.2
READY_ASKED_EVERY_S = 0.05
"""Each answer takes some of what it measures: a hundred a second took a twentieth of the start."""
RESULTS = Path(__file__).parents[1] / "build" / "start.json"
SETTINGS = """
leases: {{type: sqlite, path: /var/lib/leasehold/leases.db}}
host: {{name: "${{POD_NAME}}"}}
spark: {{master: "local[2]", driver_memory: 512m}}
api: {{host: 0.0.0.0, port: {port}, readers: /etc/leasehold/readers}}
pipelines:
  - name: letters
    feed: {{type: files, path: "words-*.jsonl"}}
    schema: "word STRING NOT NULL"
    sql: >
      SELECT partition, left(word, 1) AS key, to_json(struct(count(*) AS words)) AS body
      FROM events GROUP BY partition, left(word, 1)
    sink: {{type: files, path: /var/lib/leasehold/out, format: jsonl}}
"""
BARE = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
session.range(3).count()
print("done", flush=True)
"""


class Letters:
    """A folder of settings that count the first letters of three words."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        folder.mkdir()
        (folder / "leasehold.yaml").write_text(SETTINGS.format(port=self.port))
        (folder / "readers").write_text(TOKEN)
        (folder / "words-1.jsonl").write_text('{"word": "apple"}\n{"word": "avocado"}\n{"word": "bean"}\n')
        folder.chmod(0o755)


def bare_s(image: Image, letters: Letters, options: str | None = None) -> float:
    """From nothing to the first result. options: of Java; the image's own, if not given."""
    given = {} if options is None else {"SPARK_SUBMIT_OPTS": options}
    started = time.monotonic()
    command = image.command(letters.folder, "/opt/leasehold/bin/python", "-c", BARE, **given)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    took_s = time.monotonic() - started
    _, wrong = process.communicate(timeout=120)
    assert said == "done\n", wrong
    return took_s


def host_s(image: Image, letters: Letters, output: Path) -> tuple[float, float]:
    """From nothing to live, and to ready."""
    pod = Pod(image, letters.folder, port=letters.port, output=output)
    try:
        return pod.until("/health/live", 120), pod.until("/health/ready", 120, every_s=READY_ASKED_EVERY_S)
    finally:
        pod.end()


def pairs(image: Image, folder: Path, count: int) -> Iterator[dict[str, float]]:
    """After one that warms the disk's cache."""
    letters = Letters(folder / "settings")
    for number in range(count + 1):
        live, ready = host_s(image, letters, folder / "said")
        bare = bare_s(image, letters)
        if number:
            yield {"live_s": live, "ready_s": ready, "bare_s": bare, "ratio": ready / bare}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    measured = []
    with tempfile.TemporaryDirectory(prefix="leasehold-start-") as folder, opened() as image:
        Path(folder).chmod(0o755)
        for pair in pairs(image, Path(folder), parser.parse_args().pairs):
            measured.append(pair)
            print(", ".join(f"{name} {value:.2f}" for name, value in pair.items()), flush=True)  # noqa: T201
    medians = {name: statistics.median(pair[name] for pair in measured) for name in measured[0]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"medians": medians, "pairs": measured}, indent=2) + "\n")
    print("medians: " + ", ".join(f"{name} {value:.2f}" for name, value in medians.items()))  # noqa: T201
    sys.exit(not (medians["live_s"] < LIVE_S_MAX and medians["ratio"] <= RATIO_MAX))


if __name__ == "__main__":
    main()
