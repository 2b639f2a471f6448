"""The API asked all that its OpenAPI document allows, and much that it does not, with either token and with none: no answer is a
5xx, and none is undocumented. `make fuzz` asks for longer."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests
import schemathesis
import structlog
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from patience import PATIENCE_S
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from leasehold.leases.lease import Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.service.api import create_app
from leasehold.service.api.auth import Access, Tokens
from leasehold.service.api.masking import Mask
from leasehold.service.api.server import serve
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

READER, OPERATOR = "reader-" + "r" * 32, "operator-" + "o" * 32
TOKENS = {"nobody": None, "reader": READER, "operator": OPERATOR}
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "6"))
PLACES = {"pipeline": "bank", "name": "bank", "partition": "a"}
"""What is there, so that not every request ends with a 404."""
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]


class Served:
    """A host that has not begun, on a socket of its own, in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.url = ""
        self._folder = folder
        self._bound = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="served")

    def __enter__(self) -> Served:
        self._thread.start()
        assert self._bound.wait(PATIENCE_S)
        return self

    def __exit__(self, *error: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        feed = MemoryChangeFeed(["a", "b"])
        feed.append("a", [b"{}"] * 3)
        pipeline = PipelineParts(name="bank", feed=feed, sink=MemoryOutputSink(MemoryDestination()))
        processor = ProcessorCore([pipeline], MemoryStore(), host="host-a")
        for partition in ("a", "b", "c/d"):
            await processor.keeper.create(Lease(pipeline="bank", partition=partition))
        for name, token in (("readers", READER), ("operators", OPERATOR)):
            (self._folder / name).write_text(token)
        access = Access(readers=Tokens(self._folder / "readers"), operators=Tokens(self._folder / "operators"))
        app = create_app(processor.view, access, tap_mask=Mask(()))
        async with serve(app, host="127.0.0.1", port=0, log=structlog.get_logger()) as port:
            self.url = f"http://127.0.0.1:{port}"
            self._bound.set()
            await self._stop.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as served:
        yield served


@pytest.fixture(scope="module")
def schema(served: Served):
    load_all_checks()
    document = requests.get(
        f"{served.url}/openapi.json", headers={"authorization": f"Bearer {READER}"}, timeout=PATIENCE_S
    )
    return schemathesis.openapi.from_dict(document.json())


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_answer_is_documented_and_none_is_a_fault_of_ours(
    served: Served, schema, session: requests.Session, mode: GenerationMode
) -> None:
    """Each request is made once and sent with every token: making them takes longer than asking."""
    answered: dict[str, set[int]] = {whose: set() for whose in TOKENS}

    def ask(case: Case) -> None:
        if case.path == "/api/events" or case.path.startswith("/api/tap/"):
            case.query = {**(case.query or {}), "seconds": 0}
        if mode is GenerationMode.POSITIVE:
            case.path_parameters = {name: PLACES[name] for name in case.path_parameters or {}}
        for whose, token in TOKENS.items():
            headers = {} if token is None else {"authorization": f"Bearer {token}"}
            answer = case.call(served.url, session, headers, timeout=PATIENCE_S)
            answered[whose].add(answer.status_code)
            assert answer.status_code != 500, answer.text
            case.validate_response(answer, checks=CHECKS)

    for found in schema.get_all_operations():
        examples = settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            derandomize="FUZZ_EXAMPLES" not in os.environ,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        with (
            suppress(Unsatisfiable) if mode is GenerationMode.NEGATIVE else nullcontext()
        ):  # nothing can be wrong about it
            examples(given(case=found.ok().as_strategy(generation_mode=mode))(ask))()
    assert 200 in answered["operator"]
    assert answered["reader"] >= {200, 403}
    assert 401 in answered["nobody"]


def test_every_route_says_whose_token_it_wants_and_what_every_answer_is(schema) -> None:
    for path, methods in schema.raw_schema["paths"].items():
        for method, operation in methods.items():
            wanted = {name for each in operation.get("security", ()) for name in each}
            is_open = path.startswith("/health")
            operates = method != "get" or path.endswith("/export") or path.startswith("/api/tap/")
            assert wanted == (set() if is_open else {"operator"} if operates else {"reader"}), (method, path)
            assert operation["description"], (method, path)
            for status, answer in operation["responses"].items():
                assert answer["description"], (method, path, status)
                for kind, content in answer.get("content", {}).items():
                    assert content.get("schema"), (method, path, status, kind)


def test_the_page_about_rest_tells_of_every_route(schema) -> None:
    page = (Path(__file__).parents[4] / "docs" / "rest.md").read_text()
    routes = [(method.upper(), path) for path, methods in schema.raw_schema["paths"].items() for method in methods]
    untold = [route for route in routes if f"`{' '.join(route)}" not in page and f"`{route[1]}" not in page]
    assert untold == [("POST", "/api/pipelines/{name}/resume")], "which stands beside pause"


def test_every_action_has_an_example_of_what_to_send(schema) -> None:
    components = schema.raw_schema["components"]["schemas"]
    for path, methods in schema.raw_schema["paths"].items():
        for method, operation in methods.items():
            if method == "get":
                continue
            for kind, content in operation["requestBody"]["content"].items():
                name = content["schema"].get("$ref", "").rpartition("/")[2]
                fields = components[name].get("properties", {}) if name else {}
                assert content.get("example") or all("examples" in field for field in fields.values()), (path, kind)


def test_every_answer_is_shown_by_examples_that_its_own_description_allows(schema) -> None:
    document = schema.raw_schema
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                for kind, content in answer.get("content", {}).items():
                    if kind == "text/event-stream":  # its description is of one event
                        continue
                    shown = content.get("example") or example_of(content["schema"], document, (method, path, status))
                    whole = {**content["schema"], "components": document["components"]}
                    jsonschema.Draft202012Validator(whole).validate(shown)


def example_of(schema: Mapping[str, Any], document: Mapping[str, Any], where: object) -> Any:
    """Put together from the examples of its fields."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return example_of(document["components"]["schemas"][name], document, (where, name))
    for told in ("examples", "enum"):
        if told in schema:
            return schema[told][0]
    if "anyOf" in schema:
        return example_of(schema["anyOf"][0], document, where)
    match schema.get("type"):
        case "object":
            fields = schema.get("properties", {})
            return {name: example_of(field, document, (where, name)) for name, field in fields.items()}
        case "array":
            return [example_of(schema["items"], document, where)]
        case "boolean":
            return True
    return schema["default"] if "default" in schema else pytest.fail(f"there is no example of {where}: {schema}")
