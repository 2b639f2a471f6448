"""The dashboard: one page of plain HTML, CSS and JavaScript modules, which any host serves unchanged.

It holds no data: its scripts ask the API, with the token that their reader typed, so the files themselves need no protection.
Nothing comes from elsewhere, and `POLICY` has the browser refuse whatever would: inline scripts and styles, other origins, and
text made into markup (Trusted Types), in case a name in a document tries that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files as resources

MEDIA_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
NAMES = (
    *("index.html", "style.css", "icon.svg"),
    *("app.js", "api.js", "model.js", "dom.js", "palette.js", "map.js", "charts.js", "tables.js", "detail.js"),
)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


@dataclass(frozen=True, slots=True)
class File:
    content: bytes
    media_type: str


def path_of(name: str) -> str:
    """The path at which the API serves a file."""
    return "/" if name == "index.html" else f"/dashboard/{name}"


PATHS = frozenset(map(path_of, NAMES))


def files() -> Mapping[str, File]:
    """The files, by path."""
    folder = resources(__name__)
    return {
        path_of(name): File(folder.joinpath(name).read_bytes(), MEDIA_TYPES[name.rpartition(".")[2]]) for name in NAMES
    }
