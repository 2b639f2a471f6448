"""Adds to the documentation site what lies outside docs/: a hook of MkDocs, see mkdocs.yml.

Links in Markdown lead to files of the repository, so that they work there too. For the site they are rewritten.
Pages at the top of the repository have pages of the site (PAGES). Any other file or directory that a page links to gets one
below source/. The Python API is generated from the tables of docs/handlers.md and docs/plugins.md. Decisions are listed in the
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
IMPORTABLE = ("docs/handlers.md", "docs/plugins.md")
"""Pages with tables of what may be imported."""
PUBLIC = re.compile(r"^\| from `(leasehold[.\w]*)` \|.*\n\| --- .*\n((?:\|.*\n)+)", re.MULTILINE)


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
    if path.startswith("docs/"):
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
        yield shown, f"# {path}\n\n" + "".join(f"- [{name}]({name}.md)\n" for name in inside)
        for name in inside:
            yield from source_pages(f"{path}/{name}")
    else:
        suffix = Path(path).suffix.removeprefix(".") or "text"
        yield shown, f"# {path}\n\n~~~~~~ {suffix}\n{(ROOT / path).read_text()}\n~~~~~~\n"


def public_names() -> list[str]:
    """What docs/handlers.md and docs/plugins.md allow others to import, as in `leasehold.Processor`."""
    tables = [found for page in IMPORTABLE for found in PUBLIC.findall((ROOT / page).read_text())]
    rows = [(package, row.split("|")[1]) for package, table in tables for row in table.splitlines()]
    return [f"{package}.{name}" for package, cell in rows for name in re.findall(r"`(\w+)`", cell)]


def api_page() -> str:
    opening = "What [programs](handlers.md) and [your own parts](plugins.md) may import. All else may change with any release."
    return f"# Python API\n\n{opening}\n\n" + "".join(f"::: {name}\n\n" for name in public_names())


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
