"""Adds to the documentation site what lies outside docs/: a hook of MkDocs, see mkdocs.yml.

Links in Markdown lead to files of the repository, so that they work there too. For the site they are rewritten.
Pages at the top of the repository have pages of the site (PAGES). Any other file or directory that a page links to gets one
below source/. The Python API is generated from docstrings, for the names that
docs/handlers.md and docs/plugins.md list, and from the settings in docs/configuration.md. Decisions are listed in the
order of their numbers.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Pages at the top of the repository -> of the site."""
API = "api.md"
FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?=[#)])")
IMPORTABLE = {"docs/handlers.md": "For programs", "docs/plugins.md": "For feeds, sinks and lease stores of your own"}
"""Pages with tables of what may be imported -> the title of these names on the page of the API."""
LEASES = [f"{kind}Leases" for kind in ("Sqlite", "Postgres", "Cosmos", "Blob", "Memory")]
SECTIONS = {
    "HostSettings": ("host", None),
    "LogSettings": ("log", None),
    "TelemetrySettings": ("telemetry", None),
    "Spark": ("spark", None),
    "Api": ("api", None),
    "Pipeline": ("pipelines[]", None),
    "leases": ("leases", None),
    **{name: ("leases", name.removesuffix("Leases").lower()) for name in LEASES},
    **{
        f"{kind}{part}": (f"pipelines[].{place}", kind.lower())
        for kind in ("Files", "Log", "Cosmos", "EventHubs", "Kafka", "Nats", "Pulsar", "Postgres", "Http")
        for part, place in (("Feed", "feed"), ("Sink", "sink"), ("Letters", "dead_letters"))
    },
}
"""The class of a section -> its place in a file, and its type. `leases` are the settings that all kinds of leases have."""
SECTION_OPTIONS = "\n    options: {members: false, show_bases: false, show_signature: false}"
PUBLIC = re.compile(r"^\| from `(leasehold[.\w]*)` \|.*\n\| --- .*\n((?:\|.*\n)+)", re.MULTILINE)

KEYS = re.compile(r"^\| Key \|.*\n\| --- .*\n((?:\|.*\n)+)", re.MULTILINE)
KEY = re.compile(
    r"^\| `((?:pipelines\[\]\.(?:feed|sink|dead_letters)(?=\.)|pipelines\[\]|\w+))\.([\w.]+)", re.MULTILINE
)
KIND = re.compile(r"^\| `([^`]+)\.type` \| `(\w+)`", re.MULTILINE)


# Paths, as posixpath has them, relative to ROOT or to the site


def repository_path(page: str) -> str:
    """Where the text of a page of the site lies: "index.md" -> "README.md", "rest.md" -> "docs/rest.md"."""
    return next((path for path, known in PAGES.items() if known == page), f"docs/{page}")


def site_path(path: str) -> str | None:
    """Which page or file of the site shows a path of the repository. None if there is no such path."""
    if path in PAGES:
        return PAGES[path]
    if not (ROOT / path).exists() or path.startswith(".."):
        return None
    if path.startswith("docs/") and (ROOT / path).is_file():
        return path.removeprefix("docs/")
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def replace_links(text: str, new: Callable[[str], str]) -> str:
    """Each relative link outside code blocks, replaced."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(lambda found: new(found["path"]), text[end : fence.start()]), fence.group()]
        end = fence.end()
    return "".join([*parts, LINK.sub(lambda found: new(found["path"]), text[end:])])


def rewrite(text: str, page: str) -> str:
    """The text of a page with links that work on the site. A link that leads nowhere stays: MkDocs reports it."""
    folder = posixpath.dirname(repository_path(page))

    def new(link: str) -> str:
        shown = site_path(posixpath.normpath(posixpath.join(folder, link)))
        return posixpath.relpath(shown, posixpath.dirname(page) or ".") if shown else link

    return replace_links(text, new)


def linked_sources(text: str, page: str) -> set[str]:
    """The paths of the repository that a page links to and that need a page below source/."""
    folder = posixpath.dirname(repository_path(page))
    linked: set[str] = set()

    def collect(link: str) -> str:
        path = posixpath.normpath(posixpath.join(folder, link))
        if (site_path(path) or "").startswith("source/"):
            linked.add(path)
        return link

    replace_links(text, collect)
    return linked


# Generated pages


def source_pages(path: str) -> Iterator[tuple[str, str]]:
    """The site paths and texts of a source: a file in a code block, a directory as a list of its files, which follow."""
    shown = site_path(path)
    assert shown is not None
    if (ROOT / path).is_dir():
        inside = [each.name for each in sorted((ROOT / path).iterdir()) if each.is_file()]
        pages = {name: str(site_path(f"{path}/{name}")) for name in inside}
        links = {name: posixpath.relpath(page, posixpath.dirname(shown)) for name, page in pages.items()}
        yield shown, f"# {path}\n\n" + "".join(f"- [{name}]({link})\n" for name, link in links.items())
        for name in (name for name, page in pages.items() if page.startswith("source/")):  # docs/ is there already
            yield from source_pages(f"{path}/{name}")
    else:
        suffix = Path(path).suffix.removeprefix(".") or "text"
        yield shown, f"# {path}\n\n~~~~~~ {suffix}\n{(ROOT / path).read_text()}\n~~~~~~\n"


def public_names(page: str) -> list[str]:
    """The names that a page of IMPORTABLE allows others to import, as in `leasehold.Processor`."""
    tables = PUBLIC.findall((ROOT / page).read_text())
    rows = [(package, row.split("|")[1]) for package, table in tables for row in table.splitlines()]
    return [f"{package}.{name}" for package, cell in rows for name in re.findall(r"`(\w+)`", cell)]


def settings() -> dict[str, list[str]]:
    """The class of each section -> the rows of its settings, as docs/configuration.md has them in tables."""
    found: dict[str, list[str]] = {}
    for table in KEYS.findall((ROOT / "docs/configuration.md").read_text()):
        if (first := KEY.match(table)) is None or (first[2] == "type" and not KIND.match(table)):
            continue  # the sections of a file, and `type: module:Class`
        place, kinds = first[1], dict(KIND.findall(table))
        rows = [KEY.sub(r"| `\2", row) for row in table.splitlines() if not KIND.match(row)]
        found |= {name: rows for name, of in SECTIONS.items() if of == (place, kinds.get(place))}
    return found | {name: [*found[name], *found["leases"]] for name in LEASES}


def api_page() -> str:
    rows = settings()
    parts = ["# Python API", "What others may import. All else may change with any release."]
    for page, title in IMPORTABLE.items():
        parts += [f"## {title}", f"[{page.removeprefix('docs/')}]({page.removeprefix('docs/')}) shows them in use."]
        for name in public_names(page):
            table = rows.get(name.rpartition(".")[2])
            parts.append(f"::: {name}" + (SECTION_OPTIONS if table else ""))
            if table:
                parts.append(
                    "\n".join(["| Argument | Type | Default | Meaning |", "| --- | --- | --- | --- |", *table])
                )
    return "\n\n".join([*parts, ""])


def decisions() -> list[str]:
    return sorted(f"decisions/{path.name}" for path in (ROOT / "docs/decisions").glob("*.md"))


def generated() -> dict[str, str]:
    """The site path and the text of every page that does not lie in docs/."""
    pages = {API: api_page()} | {shown: (ROOT / path).read_text() for path, shown in PAGES.items()}
    texts = dict(pages)
    for path in (ROOT / "docs").rglob("*.md"):
        texts[path.relative_to(ROOT / "docs").as_posix()] = path.read_text()
    for source in sorted({each for page, text in texts.items() for each in linked_sources(text, page)}):
        pages |= dict(source_pages(source))
    return pages


# Events of MkDocs


def unique_anchor(name: str, taken: set[str], *_: object) -> str:
    """As GitHub numbers headings of the same text: type-log, type-log-1. Python-Markdown would say type-log_1."""
    anchor = next(each for each in (name, *(f"{name}-{n}" for n in range(1, len(taken) + 2))) if each not in taken)
    taken.add(anchor)
    return anchor


def on_config(config: MkDocsConfig) -> None:
    from markdown.extensions import toc  # MkDocs is not in .venv, where tests import this module

    toc.unique = unique_anchor  # it has no setting for this
    nav: list[dict[str, Any]] = config.nav or []
    nav[-1]["Contribute"].append({"Decisions": decisions()})


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    from mkdocs.structure.files import File

    for path, text in generated().items():
        files.append(File.generated(config, path, content=text))


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    path = page.file.src_uri
    return markdown if path == API or path.startswith("source/") else rewrite(markdown, path)
