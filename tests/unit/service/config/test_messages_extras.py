"""What an extra needs is installed by the names that package indexes have."""

import tomllib
from pathlib import Path

from leasehold.service.config.messages import command_of

REQUIREMENTS = ["click>=8.1", 'b>=2; extra == "otel"', "a>=1 ; extra == 'otel'", 'c[d]==3; extra == "connect"']


def test_the_command_names_the_requirements_of_the_extra_alone() -> None:
    assert command_of("otel", REQUIREMENTS) == "pip install 'a>=1' 'b>=2'"
    assert command_of("connect", REQUIREMENTS) == "pip install 'c[d]==3'"


def test_without_metadata_the_extra_itself_is_named() -> None:
    assert command_of("otel", []) == "pip install 'leasehold[otel]'"


def test_the_docs_name_what_the_extras_require() -> None:
    root = Path(__file__).parents[4]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (root / "docs/configuration.md").read_text()
    for each in (*extras["connect"], *extras["delta"], *extras["otel"]):
        assert f"'{each}'" in page
