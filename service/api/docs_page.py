"""The API's page for people, at /docs: routes and parameters out of the OpenAPI document, in plain HTML.

FastAPI's own page loads its scripts from elsewhere; a host may be where there is no elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
  body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }}
  code {{ font-size: 0.95em }} h2 {{ margin: 2rem 0 0 }} dd {{ margin: 0 0 0.5rem 1.5rem }}
</style>
<h1>{title}</h1>
<p>{description} The full description, for programs: <a href="/openapi.json">/openapi.json</a>.</p>
{routes}
</html>
"""


def docs_page(openapi: Mapping[str, Any]) -> str:
    info = openapi["info"]
    routes = [
        _route(method, path, operation)
        for path, operations in openapi["paths"].items()
        for method, operation in operations.items()
    ]
    title = escape(f"{info['title']} {info['version']}")
    return _PAGE.format(title=title, description=escape(info.get("description", "")), routes="\n".join(routes))


def _route(method: str, path: str, operation: Mapping[str, Any]) -> str:
    parameters = "".join(map(_parameter, operation.get("parameters", ())))
    return (
        f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2>\n"
        f"<p>{escape(operation.get('description') or operation.get('summary', ''))}</p>\n"
        + (f"<dl>{parameters}</dl>" if parameters else "")
    )


def _parameter(parameter: Mapping[str, Any]) -> str:
    name, where = escape(parameter["name"]), escape(parameter["in"])
    return f"<dt><code>{name}</code> ({where})</dt><dd>{escape(parameter.get('description', ''))}</dd>\n"
