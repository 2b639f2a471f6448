"""A standalone Spark master is tried by its addresses before a JVM is started for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from patience import PATIENCE_S

from leasehold.pipeline.errors import EngineUnavailable
from leasehold.pipeline.spark import master
from leasehold.pipeline.spark.master import Address, addresses, defaults, read_version, require_image, require_master


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("spark://a:7077", [("a", 7077)]),
        ("spark://a:1,b.example:2", [("a", 1), ("b.example", 2)]),
        ("spark://[::1]:7077", [("::1", 7077)]),
        ("local[2]", []),
        ("yarn", []),
        ("k8s://https://a:443", []),
    ],
)
def test_the_addresses_of_standalone_masters_alone_are_read(url: str, found: list[Address]) -> None:
    assert addresses(url) == found


@pytest.mark.parametrize("url", ["spark://nohost", "spark://", "spark://a:1,b", "spark://a:port", "spark://a:99999"])
def test_a_master_without_a_port_is_refused_with_the_form_that_is_wanted(url: str) -> None:
    with pytest.raises(EngineUnavailable, match="write it as spark://HOST:PORT"):
        require_master(url)


def test_one_address_that_answers_is_enough() -> None:
    require_master("spark://a:1,b:2", lambda address: None if address[0] == "b" else "connection refused")


def test_if_no_address_answers_each_is_named_with_its_reason() -> None:
    with pytest.raises(EngineUnavailable) as refused:
        require_master("spark://a:1,b:2", lambda address: f"no {address[0]}")
    assert str(refused.value) == (
        "the Spark master at 'spark://a:1,b:2' cannot be reached (a:1: no a; b:2: no b): start it, or correct `spark.master`"
    )


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nohost.invalid:7077", "nohost.invalid:7077: .*(not known|name resolution|no address)"),
        (f"{'x' * 64}.invalid:1", "too long"),
    ],
)
def test_an_address_that_leads_nowhere_is_a_reason_and_no_traceback(address: str, reason: str) -> None:
    with pytest.raises(EngineUnavailable, match=reason):
        require_master(f"spark://{address}")


@pytest.mark.parametrize(
    ("address", "is_away"),
    [("127.0.0.1:1", True), (f"{'x' * 64}.invalid:1", False), (f"{'x' * 64}.invalid:1,127.0.0.1:1", True)],
)
def test_only_a_master_that_may_answer_later_is_away(address: str, is_away: bool) -> None:
    with pytest.raises(EngineUnavailable) as refused:
        require_master(f"spark://{address}")
    assert refused.value.is_away is is_away


def test_a_listener_that_answers_as_a_master_does_is_reached_and_a_closed_port_is_not() -> None:
    with listener(b"\0\0\0\0\0\0\0\x17\x08") as address:
        require_master(f"spark://{address}")
    with pytest.raises(EngineUnavailable, match=f"{address}: connection refused"):
        require_master(f"spark://{address}")


def test_a_listener_that_closes_the_connection_may_be_a_master_with_tls() -> None:
    with listener(b"") as address:
        require_master(f"spark://{address}")


def test_a_listener_that_answers_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "ANSWER_S", 0.2)
    with listener(None) as address, pytest.raises(EngineUnavailable, match=r"but answers nothing within 0\.2 s"):
        require_master(f"spark://{address}")


def test_a_web_page_is_no_master() -> None:
    with (
        listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address,
        pytest.raises(EngineUnavailable, match=f"{address}: it speaks HTTP"),
    ):
        require_master(f"spark://{address}")


def test_a_master_s_web_page_is_a_wrong_address_and_a_silent_master_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "ANSWER_S", 0.2)
    for answer, is_away in ((b"HTTP/1.1 400 Bad Request\r\n\r\n", False), (None, True)):
        with listener(answer) as address, pytest.raises(EngineUnavailable) as refused:
            require_master(f"spark://{address}")
        assert refused.value.is_away is is_away


def test_a_name_server_that_never_answers_does_not_delay_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master, "REACH_S", 0.1)
    monkeypatch.setattr(master, "ANSWER_S", 0.1)
    silence = threading.Event()

    def probe(address: Address) -> str | None:
        silence.wait()
        return None

    try:
        with pytest.raises(EngineUnavailable, match=r"a:1: no answer within 0\.2 s; b:2: no answer within 0\.2 s"):
            require_master("spark://a:1,b:2", probe)
    finally:
        silence.set()


@contextmanager
def listener(answer: bytes | None) -> Iterator[str]:
    """The address of one that answers a request with these bytes and closes the connection; with None it keeps silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                if answer is not None:
                    connection.sendall(answer)
                else:
                    connection.recv(1)  # until the other side gives up

        serving = threading.Thread(target=serve)
        serving.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        serving.join(PATIENCE_S)


@pytest.mark.parametrize("span", ['class="version me-3"', 'class="version" style="margin-right: 15px;"'])
def test_the_version_of_a_master_is_read_off_its_page(span: str) -> None:
    """As Spark 4.2 writes it, and as Spark 3.5 does."""
    page = f'HTTP/1.1 200 OK\r\n\r\n<img alt="Spark Logo"/>\n  <span {span}>4.2.1</span>\n'
    assert version_on(page.encode()) == "4.2.1"


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 200 OK\r\n\r\n<span class="version"><b>4.2.1</b></span>',
        b"HTTP/1.1 404 Not Found\r\n\r\n",
        b"garbage",
        b"",
    ],
)
def test_a_page_without_a_version_has_none(answer: bytes) -> None:
    assert version_on(answer) is None


def test_a_page_that_is_not_there_has_no_version() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    assert read_version("127.0.0.1", port) is None


def version_on(answer: bytes) -> str | None:
    with listener(answer) as address:
        host, _, port = address.partition(":")
        return read_version(host, int(port))


KUBERNETES = "k8s://https://kubernetes.default.svc"


def test_a_master_of_kubernetes_is_a_cluster_whose_driver_is_no_loopback() -> None:
    conf = defaults(KUBERNETES, "1g", 1)
    assert conf["spark.master"] == KUBERNETES
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.executorEnv.PYTHONPATH"} & conf.keys()
    assert "spark.driver.host" in defaults("local[2]", "1g", 1)


def test_the_start_of_a_driver_does_not_wait_for_executors() -> None:
    """Jobs do, and show it."""
    assert defaults(KUBERNETES, "1g", 1)["spark.scheduler.minRegisteredResourcesRatio"] == "0"


@pytest.mark.parametrize("conf", [{}, {"spark.kubernetes.container.image": ""}])
def test_executors_on_kubernetes_need_an_image(conf: dict[str, str]) -> None:
    with pytest.raises(EngineUnavailable, match=r"no `spark\.kubernetes\.container\.image`: name an image"):
        require_image({"spark.master": KUBERNETES, **conf})


@pytest.mark.parametrize(
    "conf",
    [
        {"spark.master": "local[2]"},
        {"spark.master": "spark://a:7077"},
        {"spark.master": KUBERNETES, "spark.kubernetes.container.image": "spark"},
        {"spark.master": KUBERNETES, "spark.kubernetes.executor.container.image": "spark"},
    ],
)
def test_others_need_none_and_either_setting_names_it(conf: dict[str, str]) -> None:
    require_image(conf)
