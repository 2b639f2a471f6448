"""The chart, rendered by Helm itself."""

from collections.abc import Callable, Iterator
from typing import Any

import helm_python
import pytest
import yaml
from unit.chart.releases import BANK, CHART, Values, merged

Objects = dict[str, dict[str, Any]]


@pytest.fixture(scope="session")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(CHART) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def render(chart: helm_python.Chart) -> Callable[..., Objects]:
    """The objects of a release `bank` in the namespace `prod`, by kind; two of a kind are told apart by the name's end."""

    def rendered(values: Values | None = None) -> Objects:
        given = merged(BANK, values or {})
        chart.validate_schema(given)
        files = chart.render(given, name="bank", namespace="prod")
        texts = [text for name, text in files.items() if name.endswith(".yaml")]
        objects = [each for text in texts for each in yaml.safe_load_all(text) if each]
        return {each["kind"] + each["metadata"]["name"].removeprefix("bank-leasehold"): each for each in objects}

    return rendered
