"""The public interface of Leasehold: `from leasehold import Processor, Pipeline, CosmosFeed`.

`__init__.pyi` lists its names. Each is imported when it is first used, so `import leasehold` loads neither Spark nor Arrow.
Contract suites are in `leasehold.testing`, because they need pytest.
"""

from __future__ import annotations


def _homes() -> dict[str, tuple[str, str]]:
    """Each name -> its module, and its name there."""
    import ast
    from importlib.resources import files

    listed = ast.parse(files(__name__).joinpath("__init__.pyi").read_text(encoding="utf-8")).body
    return {
        str(each.asname): (str(node.module), each.name)
        for node in listed
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }


def __getattr__(name: str) -> object:
    """Import the name and keep it. Raises AttributeError with the most similar name."""
    value: object
    if name == "__version__":
        from leasehold.common.distribution import own_version

        value = own_version()
    elif name == "_HOMES":
        value = _homes()
    elif name == "__all__":
        value = sorted(__getattr__("_HOMES"))  # type: ignore[call-overload]
    elif name.startswith("_"):
        raise AttributeError(f"module 'leasehold' has no attribute {name!r}", name=name)
    else:
        value = _imported(name)
    globals()[name] = value
    return value


def _imported(name: str) -> object:
    """Raises AttributeError."""
    from importlib import import_module

    homes: dict[str, tuple[str, str]] = globals().get("_HOMES") or __getattr__("_HOMES")  # type: ignore[assignment]
    if name in homes:
        module, defined = homes[name]
        found: object = getattr(import_module(module), defined)
        return found
    from difflib import get_close_matches

    similar = "".join(f", did you mean {each!r}?" for each in get_close_matches(name, homes, n=1))
    # With `obj`, tracebacks of Python would add the same advice.
    raise AttributeError(f"module 'leasehold' has no attribute {name!r}{similar}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__"), "__version__"})  # type: ignore[misc]
