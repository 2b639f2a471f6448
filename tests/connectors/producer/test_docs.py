"""The example of docs/producer.md, run as it is written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from connectors.producer.conftest import Hub

ROOT = Path(__file__).parents[3]


def test_the_example_of_the_docs_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    (example,) = re.findall(
        r"<!-- example: producer\.py -->\n```python\n(.*?)```", (ROOT / "docs/producer.md").read_text(), re.DOTALL
    )
    (tmp_path / "producer.py").write_text(example)
    environment = {**os.environ, "EVENT_HUBS": hub.eventhubs.connection_string, "PYTHONPATH": str(ROOT)}
    for first in (1, 4):
        run = subprocess.run(
            [sys.executable, "producer.py"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (run.stdout, run.stderr) == (f"published from number {first}\n", "")
    assert hub.bodies("0") == ["event 0", "event 1", "event 2"] * 2
