"""Chart, settings and image say the same: ports, paths, variables, the user, and the time that a stop may take."""

import json
import re
import subprocess
import tomllib
from pathlib import Path, PurePosixPath

import helm_python
import pytest
import yaml
from unit.chart.dockerfile import ROOT, dockerfile
from unit.chart.releases import BANK, CHART, ENVIRONMENT, EXECUTORS, SCRAPED, SERVER, SQLITE, STATEFUL, Values

from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.service import dashboard
from leasehold.service.api import OPEN, create_app, schemas
from leasehold.service.config.load import parse
from leasehold.service.config.settings import Api, Settings
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

OTHERS: dict[str, Values] = {
    "usual": {},
    "SQLite": {"replicas": 1, **SQLITE},
    "another port": {"api": {"port": 9090, "readersKey": "tokens", "address": "::"}, "stopTimeoutSeconds": 100},
    "Spark Connect": {"sparkConnect": "sc://spark:15002"},
    "a server of Spark Connect": SERVER,
    "executors of each pod": EXECUTORS,
    "notifications": {"config": {"notifications": "my_notifications:Watch"}},
    "traces": {"config": {"telemetry": dict.fromkeys(("traces", "metrics", "logs"), "http://otel:4318")}},
}
SHAPES = {
    "LEASES_BLOB": "DefaultEndpointsProtocol=https;AccountName=bank;AccountKey=YmFuaw==;EndpointSuffix=core.windows.net",
    "BANK_EVENTHUBS": "Endpoint=sb://bank.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=YmFuaw==",
    "BANK_POSTGRES": "postgresql://bank@postgres/bank",
}
AFTER_STOP_S = 10 + 5 + 1
"""What a host does once the stop timeout is over: it ends Spark, leaves the group, and closes its API."""


def settings_of(objects) -> Settings:
    """As the pod's container reads them."""
    names = {each["name"] for each in container(objects)["env"]}
    text = objects["ConfigMap"]["data"]["leasehold.yaml"]
    environment = {**dict.fromkeys(names, "bank-leasehold-5d4f8c7b9-x2x4z"), **ENVIRONMENT}
    return parse(text, environment, folder=Path("/etc/leasehold"))


def container(objects):
    (only,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    return only


def secrets_of(objects) -> dict[str, str]:
    volumes = objects["Deployment"]["spec"]["template"]["spec"]["volumes"]
    return {volume["name"]: volume["secret"]["secretName"] for volume in volumes if "secret" in volume}


def mounts(objects) -> dict[str, PurePosixPath]:
    return {each["name"]: PurePosixPath(each["mountPath"]) for each in container(objects)["volumeMounts"]}


@pytest.fixture(params=OTHERS)
def objects(render, request):
    return render(OTHERS[request.param])


def test_a_pod_takes_its_settings(objects) -> None:
    settings = settings_of(objects)
    assert settings.host.name == "bank-leasehold-5d4f8c7b9-x2x4z"
    assert settings.host.buffer_bytes_max == 268435456
    assert settings.log.format == "json"
    assert [each.name for each in settings.pipelines] == ["balances"]


OWN = {"settings": {"api"}, "host": {"name", "stop_timeout_s"}, "spark": {"remote"}}
"""Of each section, what the chart itself writes."""


def test_every_other_setting_may_be_given() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["definitions"]["config"]["properties"]
    offered = {"settings": set(schema)}
    for name in ("host", "spark", "log"):
        offered[name] = set(schema[name]["propertyNames"]["enum"])
    offered["telemetry"] = set(schema["telemetry"]["properties"])
    known = {name: set(Settings.model_fields[name].annotation.model_fields) for name in offered if name != "settings"}  # type: ignore[union-attr]
    known["settings"] = set(Settings.model_fields)
    assert offered == {name: fields - OWN.get(name, set()) for name, fields in known.items()}


def test_the_host_is_named_after_its_pod(objects) -> None:
    (name,) = (each for each in container(objects)["env"] if each["name"] == "POD_NAME")
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_the_api_listens_where_the_service_and_the_probes_look(objects) -> None:
    api, (port, *_) = settings_of(objects).api, container(objects)["ports"]
    (offered,) = objects["Service"]["spec"]["ports"]
    probes = [container(objects)[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert api.port == port["containerPort"] == offered["port"]
    assert {port["name"]} == {offered["name"], offered["targetPort"]} | {probe["port"] for probe in probes}
    assert {probe["path"] for probe in probes} == OPEN - set(dashboard.PATHS)
    assert api.host in ("0.0.0.0", "::")


def test_the_tokens_are_where_the_settings_look(objects) -> None:
    readers = settings_of(objects).api.readers
    assert readers is not None
    assert PurePosixPath(readers).parent == mounts(objects)["readers"]
    assert secrets_of(objects)["readers"] == BANK["api"]["readersSecret"]


def test_whoever_may_operate_has_tokens_of_their_own_or_there_is_nobody(render) -> None:
    objects = render()
    assert settings_of(objects).api.operators is None
    assert "operators" not in mounts(objects)
    objects = render({"api": {"operatorsSecret": "leasehold-operators", "operatorsKey": "tokens"}})
    operators = settings_of(objects).api.operators
    assert operators is not None
    assert PurePosixPath(operators) == mounts(objects)["operators"] / "tokens"
    assert secrets_of(objects)["operators"] == "leasehold-operators"
    assert len(set(mounts(objects).values())) == len(mounts(objects))


@pytest.mark.parametrize("mask", [None, [], ["account", "*phone*"]])
def test_taps_are_off_unless_the_values_have_a_mask(render, mask: list[str] | None) -> None:
    found = settings_of(render({} if mask is None else {"api": {"tapMask": mask}})).api.tap_mask
    assert found == (None if mask is None else tuple(mask))


def test_every_setting_of_the_api_may_be_given(render) -> None:
    given = {"operatorsSecret": "leasehold-operators", "tapMask": [], "metricsPartitions": 20}
    found = settings_of(render({"api": given})).api
    assert found.model_fields_set == Api.model_fields.keys() - {"enabled"}, "probes need the API"
    assert found.metrics_partitions == 20
    assert settings_of(render()).api.metrics_partitions == 0


def test_kubernetes_waits_for_longer_than_a_stop_takes(objects) -> None:
    grace_s = objects["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= settings_of(objects).host.stop_timeout_s + AFTER_STOP_S


def test_a_new_pod_is_given_time_to_take_its_share(objects) -> None:
    assert objects["Deployment"]["spec"]["minReadySeconds"] >= settings_of(objects).leases.timing.balance_s


def test_the_settings_are_mounted_where_the_image_and_the_arguments_look(objects) -> None:
    arguments = container(objects)["args"]
    assert arguments == dockerfile()[""].words("CMD")
    assert PurePosixPath(arguments[-1]) == mounts(objects)["settings"] / "leasehold.yaml"


def test_what_is_written_lies_in_volumes(render) -> None:
    objects = render(OTHERS["SQLite"])
    written = [PurePosixPath(settings_of(objects).leases.path), PurePosixPath(dockerfile()[""].last("WORKDIR")) / "x"]  # type: ignore[union-attr]
    assert all(path.is_relative_to(mounts(objects)["data"]) for path in written)
    assert {PurePosixPath("/tmp"), PurePosixPath("/dev/shm")} <= set(mounts(objects).values())


def test_the_values_of_the_docs_are_taken(chart) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    examples = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (monitoring,) = (each for each in examples if "monitoring" in each)
    secrets = re.findall(r"--from-literal=([A-Z_]+)=", page)
    assert set(secrets) == SHAPES.keys()
    for example, leases, feed, known in (
        (examples[0], "postgres", "files", {"BANK_POSTGRES"}),
        (examples[1], "blob", "eventhubs", SHAPES.keys()),
    ):
        given = {**example, **monitoring}
        chart.validate_schema(given)
        assert helm_python.lint(CHART, given, strict=True)["errors"] == []
        files = chart.render(given, name="bank", namespace="bank")
        settings = yaml.safe_load(files["leasehold/templates/configmap.yaml"])["data"]["leasehold.yaml"]
        found = parse(settings, {**SHAPES, "POD_NAME": "a-pod"}, folder=Path("/etc/leasehold"))
        assert set(re.findall(r"\${(\w+)}", settings)) - {"POD_NAME"} == known
        assert (found.leases.type, [each.feed.type for each in found.pipelines]) == (leases, [feed])  # type: ignore[union-attr]


def test_a_release_without_azure_names_it_nowhere_and_reaches_postgresql_alone(chart) -> None:
    example = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)[0])
    files = {name: text for name, text in chart.render(example).items() if name.endswith(".yaml")}
    objects = [each for text in files.values() for each in yaml.safe_load_all(text) if each]
    assert re.findall("(?i)azure|blob|cosmos|eventhub|servicebus", json.dumps(objects)) == []
    (policy,) = (each for each in objects if each["kind"] == "NetworkPolicy" and "egress" in each["spec"])
    ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert ports == {53, 5353, 5432}


@pytest.mark.parametrize("name", ["a server of Spark Connect", "executors of each pod"])
def test_all_pods_reach_dns_at_both_ports(render, name: str) -> None:
    """OpenShift's DNS pods listen on 5353, and OVN-Kubernetes compares the port after the Service's address is translated."""
    policies = [each for each in render(OTHERS[name]).values() if "egress" in each.get("spec", {})]
    dns = {(port, protocol) for port in (53, 5353) for protocol in ("UDP", "TCP")}
    assert len(policies) == (3 if OTHERS[name] is SERVER else 2)
    for policy in policies:
        anywhere = [rule["ports"] for rule in policy["spec"]["egress"] if "to" not in rule]
        assert dns <= {(port["port"], port.get("protocol", "TCP")) for ports in anywhere for port in ports}


def test_the_examples_of_scaling_from_zero_are_taken(render) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text().partition("### From zero")[2].partition("## ")[0]
    hub, query = (render(yaml.safe_load(text)) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    for objects, kind in ((hub, "azure-eventhub"), (query, "postgresql")):
        scaled = objects["ScaledObject"]["spec"]
        assert ([each["type"] for each in scaled["triggers"]], scaled["minReplicaCount"]) == ([kind], 0)


def test_the_query_over_leases_goes_to_their_database(render) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    (text,) = (each for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "FROM leasehold_leases" in each)
    (trigger,) = render(yaml.safe_load(text))["ScaledObject"]["spec"]["triggers"]
    leases = yaml.safe_load(text)["config"]["leases"]
    assert BANK["config"]["pipelines"][0]["sink"]["type"] == "postgres", "the sink has a database of its own"
    assert (leases["type"], leases["dsn"]) == ("postgres", f"${{{trigger['metadata']['connectionFromEnv']}}}")


def test_a_host_of_a_stateful_set_has_the_name_of_its_pod(render) -> None:
    (only,) = render(STATEFUL)["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    (name,) = (each for each in only["env"] if each["name"] == "POD_NAME")
    assert name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_spark_runs_in_one_place(render) -> None:
    inside, connected = settings_of(render()).spark, settings_of(render(OTHERS["Spark Connect"])).spark
    assert (inside.master, inside.remote) == ("local[2]", None)
    assert connected.remote == "sc://spark:15002"
    own, driving = settings_of(render(SERVER)).spark, settings_of(render(EXECUTORS)).spark
    assert own.remote == "sc://bank-leasehold-spark:15002"
    assert (driving.master, driving.remote) == ("k8s://https://kubernetes.default.svc", None)


def test_what_operators_ask_is_there(render) -> None:
    pipeline = PipelineParts(name="bank", feed=MemoryChangeFeed(["a"]), sink=MemoryOutputSink(MemoryDestination()))
    app = create_app(ProcessorCore([pipeline], MemoryStore(), host="host-a").view)
    routes = {getattr(route, "path", "") for route in app.routes} | set(app.openapi()["paths"])
    objects = render({"autoscaling": {"by": "lag"}, "monitoring": {"serviceMonitor": True}, **SCRAPED})
    (trigger,) = objects["ScaledObject"]["spec"]["triggers"]
    (endpoint,) = objects["ServiceMonitor"]["spec"]["endpoints"]
    assert "/" + trigger["metadata"]["url"].split("/", 3)[3] in routes
    assert trigger["metadata"]["valueLocation"] in app.openapi()["components"]["schemas"]["LagReport"]["properties"]
    assert endpoint["path"] in routes
    assert endpoint["port"] == container(objects)["ports"][0]["name"]


def test_an_autoscaler_by_age_asks_for_seconds_and_does_not_divide_them(render) -> None:
    found = render({"autoscaling": {"by": "lag", "lagSeconds": 60, "pipeline": "balances"}, **SCRAPED})
    (trigger,) = found["ScaledObject"]["spec"]["triggers"]
    (plain,) = render({"autoscaling": {"by": "lag"}, **SCRAPED})["ScaledObject"]["spec"]["triggers"]
    assert trigger["metadata"]["url"].endswith("/api/lag?unit=seconds&pipeline=balances")
    assert (trigger["metadata"]["valueLocation"], trigger["metadata"]["targetValue"]) == ("seconds", "60")
    assert (trigger["metricType"], plain.get("metricType")) == ("Value", None)
    fields = schemas.LagReport.model_fields.keys() & {"lag", "seconds"}
    assert {trigger["metadata"]["valueLocation"], plain["metadata"]["valueLocation"]} == fields


def test_the_image_runs_as_whom_the_chart_says(objects) -> None:
    security = objects["Deployment"]["spec"]["template"]["spec"]["securityContext"]
    user, group = dockerfile()[""].last("USER").split(":")
    assert (int(user), int(group)) == (security["runAsUser"], security["runAsGroup"])
    assert f"--uid {user} " in " ".join(dockerfile()["base"].all("RUN"))


def test_the_image_offers_and_checks_the_default_port() -> None:
    image, port = dockerfile()[""], Api().port
    assert image.last("EXPOSE") == str(port)
    (check,) = re.findall(r"http://127\.0\.0\.1:(\d+)([\w/]+)", image.last("HEALTHCHECK"))
    assert check == (str(port), "/health/live")
    assert image.words("ENTRYPOINT") == ["/opt/leasehold/bin/leasehold"]


def test_both_images_have_one_base_and_one_place() -> None:
    found = dockerfile()
    assert found["base"].base == "${BASE}"
    assert {found[stage].base for stage in ("environment", "base-thin", "java", "")} == {"base"}
    assert {found[stage].base for stage in ("environment-full", "environment-thin")} == {"environment"}
    assert found[""].all("COPY") == [
        f"--from=environment-full {each} {each}" for each in ("/opt/java", "/opt/leasehold")
    ]
    assert found["thin"].all("COPY")[-1] == "--from=environment-thin /opt/leasehold /opt/leasehold"
    assert "UV_PROJECT_ENVIRONMENT=/opt/leasehold" in " ".join(found["environment"].all("ENV"))


def test_both_images_are_run_in_the_same_way() -> None:
    """But for what Spark's JVM needs."""
    full, thin = dockerfile()[""], dockerfile()["thin"]
    for instruction in ("LABEL", "WORKDIR", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"):
        assert full.all(instruction) == thin.all(instruction) != [], instruction


def published() -> list[str]:
    """The images that a release pushes, as in release.yml."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    (pushed,) = (step for step in workflow["jobs"]["image"]["steps"] if step.get("id") == "push")
    (name,) = re.findall(r"(?<=name=)[^,]+", pushed["with"]["outputs"])
    owner = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"].split("/")[-2]
    name = name.replace("${{ env.REGISTRY }}", workflow["env"]["REGISTRY"])
    name = name.replace("${{ github.repository_owner }}", owner)
    images = workflow["jobs"]["image"]["strategy"]["matrix"]["image"]
    assert images == workflow["jobs"]["sign"]["strategy"]["matrix"]["image"]
    return [name.replace("${{ matrix.image }}", each) for each in images]


def test_the_image_of_the_chart_is_the_one_that_a_release_pushes(render) -> None:
    full, thin = published()
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert container(render())["image"] == f"{full}:{version}"
    named = set(re.findall(r"[\w./-]*/leasehold-thin\b", (CHART / "values.yaml").read_text()))
    assert named == {thin}


@pytest.mark.parametrize("path", ["docs/kubernetes.md", "helm/README.md"])
def test_pages_name_what_a_release_publishes_and_signs(path: str) -> None:
    page, full = (ROOT / path).read_text(), published()[0]
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    (push,) = (step for step in workflow["jobs"]["chart"]["steps"] if "cosign sign" in step.get("run", ""))
    charts = push["env"]["CHARTS"].replace(
        "${{ env.REGISTRY }}/${{ github.repository_owner }}", full.rpartition("/")[0]
    )
    source = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    assert f"$ docker pull {full}:$VERSION\n" in page
    assert f"$ helm upgrade --install bank oci://{charts}/leasehold --version $VERSION " in page
    assert f"--certificate-identity {source}/.github/workflows/release.yml@refs/tags/v$VERSION " in page
    assert workflow[True] == {"push": {"tags": ["v*"]}}, "YAML 1.1 reads `on` as true"
    (names,) = re.findall(r"for NAME in (.*); do\n +cosign verify (\S+)/\$NAME:\$VERSION ", page)
    signed = {f"{names[1]}/{each}" for each in names[0].split()}
    assert signed == {*(published() if path.startswith("docs/") else published()[:1]), f"{charts}/leasehold"}


@pytest.mark.parametrize("name", ["README.md", "values.yaml", "Chart.yaml"])
def test_links_of_the_package_lead_out_of_it_by_address(name: str) -> None:
    """The package of the chart has no other files of the repository."""
    text = (CHART / name).read_text()
    assert re.findall(r"\]\((?!https://|#)[^)]*\)|\bdocs/[\w-]+\.md", text) == []


def test_what_the_image_is_built_from_is_let_in() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    steps = [step for stage in dockerfile().values() for step in stage.all("COPY") if not step.startswith("--from=")]
    copied = {word for step in steps for word in step.split()[:-1]}
    assert {"pyproject.toml", "pipeline", "tests/java_archive.py", "image"} <= copied
    assert {word for word in copied if word not in let_in and word.partition("/")[0] not in let_in} == set()
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("stage", ["", "thin"])
def test_an_image_is_labelled_with_what_it_is_made_of(stage: str) -> None:
    label = dockerfile()[stage].last("LABEL")
    named = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="(.*?)"', label))
    assert named.keys() == {"title", "description", "licenses", "source", "base.name", "version", "revision"}
    assert named["source"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    given = {name for each in dockerfile()[stage].all("ARG") for name in [each.partition("=")[0]]}
    assert {"${" + name + "}" for name in given} == {named[name] for name in ("base.name", "version", "revision")}


def test_the_base_that_is_made_of_packages_is_the_one_that_a_registry_has() -> None:
    (line,) = re.findall(r"^base=.*", (ROOT / "image/build").read_text(), re.MULTILINE)
    found = subprocess.run(("bash", "-c", f"{line}; echo $base"), cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout == "debian:trixie-slim\n"
