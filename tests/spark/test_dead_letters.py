"""docs/dead-letters.md, run as it is written: two orders are dead, one of them is processed once the transform is mended."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import yaml
from plugins_cli import Commands, events_in
from plugins_cluster import spark_settings

PAGE = (Path(__file__).parents[2] / "docs/dead-letters.md").read_text()


def test_the_orders_of_the_page_die_are_looked_at_and_replayed(tmp_path: Path, leasehold: Commands) -> None:
    for name, text in re.findall(r"<!-- example: (\S+) -->\n```yaml\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / name).write_text(text)
    lines = [line.partition("  #")[0] for line in re.findall(r"^\$ (.*)", PAGE, re.MULTILINE)]
    subprocess.run(lines[0], shell=True, cwd=tmp_path, check=True)
    run, listed, show, replay, discard = (line.split()[1:] for line in lines[1:])
    settings = tmp_path / "orders.yaml"
    spec = yaml.safe_load(settings.read_text())
    settings.write_text(yaml.safe_dump(spec | {"spark": spark_settings(spec["spark"])}))

    def said(*arguments: str) -> str:
        command = leasehold(*arguments)
        assert command.ended() == 0, command.err
        return command.out

    command = leasehold(*run)
    assert (command.ended(), command.err.count(" dead letters ")) == (0, 1), command.err
    assert events_in(tmp_path / "state/orders") == {"orders-1.jsonl": [{"share": 12.5}, {"share": 20.0}]}
    letters = [json.loads(line) for line in said(*listed, "--json").splitlines()]
    assert [(one["number"], one["sequence"], one["body"]) for one in letters] == [
        (0, 1, '{"customer": "bob", "amount": 1.239}'),
        (1, 2, '{"customer": "cat", "amount": 0}'),
    ]
    assert json.loads(said(*show)) == letters[0]
    assert [one["state"] for one in letters] == ["open", "open"]
    assert "column 'amount' does not fit DECIMAL(18,2): '1.239'" in said(*listed)
    settings.write_text(settings.read_text().replace("100 / amount", "100 / greatest(amount, 1)"))
    out = said(*replay)
    assert out.splitlines()[-1] == "2 dead letters of pipeline 'orders' replayed: 1 processed, 1 dead again"
    assert events_in(tmp_path / "state/orders")["orders-1.jsonl"][-1] == {"share": 100.0}
    letters = [json.loads(line) for line in said(*listed, "--json").splitlines()]
    assert [(one["number"], one["sequence"], one["by"]) for one in letters][2:] == [(2, 1, "orders.replay")]
    assert [(one["state"], one["failed_again_as"]) for one in letters] == [
        ("failed_again", 2),
        ("replayed", None),
        ("open", None),
    ]
    assert [re.split(r"\s{2,}", line.strip())[1] for line in said(*listed).splitlines()[2:]] == [
        "failed again (2)",
        "replayed",
        "open",
    ]
    still_open = [json.loads(line) for line in said(*listed, "--open", "--json").splitlines()]
    assert still_open == letters[2:]
    settings.write_text(settings.read_text().replace("DECIMAL(18,2)", "DECIMAL(18,3)"))
    assert said(*replay).splitlines()[-1] == "1 dead letter of pipeline 'orders' replayed: 1 processed, 0 dead again"
    assert said(*listed, "--open", "--json") == ""
    with (tmp_path / "orders-1.jsonl").open("a") as file:
        file.write('{"customer": "eve", "amount": "none"}\n')
    said(*run)
    output = events_in(tmp_path / "state/orders")
    refused = leasehold(*[word for word in discard if word != "--yes"])
    assert refused.ended() == 2
    assert '"none"' in refused.err or "'none'" in refused.err
    assert refused.err.endswith("nothing was changed: to discard 1 dead letter, add --yes\n")
    assert len(said(*listed, "--open", "--json").splitlines()) == 1
    assert said(*discard) == "1 dead letter of pipeline 'orders' discarded\n"
    assert said(*listed, "--open", "--json") == ""
    assert len(said(*listed, "--json").splitlines()) == 4
    assert said(*discard) == "pipeline 'orders' has no open dead letters: nothing to discard\n"
    nothing_left = leasehold(*replay)
    assert nothing_left.ended() == 0
    assert nothing_left.out == "pipeline 'orders' has no open dead letters: nothing to replay\n"
    assert nothing_left.err == "", "Spark is not started for it"
    assert events_in(tmp_path / "state/orders") == output
