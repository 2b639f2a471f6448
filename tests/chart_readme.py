"""Writes helm/README.md from the comments in helm/values.yaml.

.venv/bin/python tests/chart_readme.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHART = Path(__file__).parents[1] / "helm"
HEAD = """<!-- Written by tests/chart_readme.py from values.yaml: change the comments there, and run it again. -->

# The chart leasehold

A lease-based change-feed processor: every pod takes leases on partitions of a feed, and delivers their events exactly once.
[On Kubernetes](https://leasehold.github.io/leasehold/latest/kubernetes.html) explains it step by step.

From the first release on, the chart and its image are in GitHub's registry. The workflow of the release signs both:

```console
$ VERSION=X.Y.Z
$ for NAME in leasehold charts/leasehold; do
    cosign verify ghcr.io/leasehold/$NAME:$VERSION \\
      --certificate-identity https://github.com/leasehold/leasehold/.github/workflows/release.yml@refs/tags/v$VERSION \\
      --certificate-oidc-issuer https://token.actions.githubusercontent.com
  done
$ docker pull ghcr.io/leasehold/leasehold:$VERSION
$ helm upgrade --install bank oci://ghcr.io/leasehold/charts/leasehold --version $VERSION \\
    --namespace bank --values bank-values.yaml
$ helm test bank --namespace bank
```

In a clone of the [repository](https://github.com/leasehold/leasehold), the chart is the directory `helm`.
Build the image there, and name it in the values:

```console
$ helm upgrade --install bank helm --set image.repository=registry.example/leasehold --namespace bank --values bank-values.yaml
```

## Values
"""
KEY = re.compile(r"(?P<indent> *)(?P<key>\w+):(?: +(?P<value>[^#\s].*?))?(?: +# (?P<comment>.*))?")


@dataclass(frozen=True, kw_only=True)
class Value:
    """value: None for a section, whose values follow."""

    path: str
    value: str | None
    comment: str


def values(paragraph: str) -> Iterator[Value]:
    """The values of a paragraph, each with the comments before and after it."""
    path: list[str] = []
    before: list[str] = []
    for line in paragraph.splitlines():
        if (comment := re.fullmatch(r" +# ?(.*)", line)) is not None:
            before.append(comment[1])
        elif (found := KEY.fullmatch(line)) is not None:
            path = [*path[: len(found["indent"]) // 2], found["key"]]
            comments = filter(None, [*before, found["comment"]])
            yield Value(path=".".join(path), value=found["value"], comment=" ".join(comments))
            before = []


def prose(paragraph: str) -> str:
    """The comment at the start of a paragraph. Indented lines are code."""
    lines = [line.removeprefix("#").removeprefix(" ") for line in paragraph.splitlines() if line.startswith("#")]
    return re.sub(
        r"(?:^ +.*\n?)+", lambda code: f"\n```text\n{code[0].rstrip()}\n```\n\n", "\n".join(lines), flags=re.MULTILINE
    )


def table(found: list[Value]) -> list[str]:
    """The rows of a table. Sections without a comment have no row."""
    shown = [each for each in found if each.value is not None or each.comment]
    cells = [(f"`{each.path}`", f"`{each.value}`" if each.value else "", each.comment) for each in shown]
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells]
    return ["| value | default | meaning |", "| --- | --- | --- |", *rows] if rows else []


def readme(source: str) -> str:
    paragraphs = [[prose(each), "\n".join(table(list(values(each))))] for each in source.strip().split("\n\n")]
    return "\n".join([HEAD, *(f"{part.strip()}\n" for parts in paragraphs for part in parts if part)])


if __name__ == "__main__":
    (CHART / "README.md").write_text(readme((CHART / "values.yaml").read_text()))
