# SPDX-License-Identifier: Apache-2.0
"""deploy/'s manifests as their readers would take them, without a cluster, Docker or Envoy: by the schemas
of Kubernetes, the Compose specification and Envoy's own definitions. In an environment of its own
(tests/scripts/venv.sh tests/deploy). tests/http/test_deploy.py holds what they pass to regla against its
flags."""

import copy
import re
import warnings
from pathlib import Path

import pytest
import yaml

warnings.filterwarnings("ignore", category=DeprecationWarning)
import compose_spec  # noqa: E402
import kubernetes_validate  # noqa: E402
from google.protobuf import json_format  # noqa: E402

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
# The oldest that is looked after, and the newest that the schemas know.
KUBERNETES = ["1.33", kubernetes_validate.latest_version()]
RESOURCES = [DEPLOY / "kubernetes.yaml", *(DEPLOY / "kubernetes" / name for name in ("replicas.yaml",
                                                                                    "store.yaml"))]
PATCHES = sorted((DEPLOY / "kubernetes").glob("*-patch.yaml"))


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def merged(base, patch):
    """As kubectl's strategic merge has it, as far as the patches need: lists of named things by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        both = {key: merged(base[key], patch[key]) for key in base.keys() & patch.keys()}
        return {**base, **copy.deepcopy(patch), **both}
    if isinstance(base, list) and all(isinstance(item, dict) and "name" in item for item in [*base, *patch]):
        by_name = {item["name"]: item for item in base}
        for item in patch:
            by_name[item["name"]] = merged(by_name.get(item["name"], {}), item)
        return list(by_name.values())
    return copy.deepcopy(patch)


def deployment():
    found, = [each for each in documents(RESOURCES[1]) if each["kind"] == "Deployment"]
    return found


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("path", RESOURCES, ids=lambda path: path.name)
def test_kubernetes_takes_the_resources(path, version):
    for document in documents(path):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.name)
def test_kubernetes_takes_what_the_patches_make(path, version):
    patch, = documents(path)
    patched = merged(deployment(), patch)
    assert patched != deployment()
    kubernetes_validate.validate(patched, version, strict=True)
    container, = patched["spec"]["template"]["spec"]["containers"]
    assert {"REGLA_STORE", "REGLA_STATE_DIR"} <= {each["name"] for each in container["env"]}


def test_what_kubernetes_does_not_know_is_found():
    for path, value in ((["spec", "strategie"], {}), (["spec", "strategy", "type"], 3)):
        wrong = deployment()
        place = wrong
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, KUBERNETES[0], strict=True)


def test_what_is_named_is_there():
    """Services, budgets, policies and the scaler mean pods that there are."""
    resources = [each for path in RESOURCES[1:] for each in documents(path)]
    pods = [each["spec"]["template"]["metadata"]["labels"] for each in resources
            if each["kind"] in ("Deployment", "StatefulSet")]
    for each in resources:
        spec = each["spec"]
        selector = spec["podSelector"]["matchLabels"] if each["kind"] == "NetworkPolicy" else \
            spec["selector"] if each["kind"] == "Service" else spec.get("selector", {}).get("matchLabels")
        assert selector is None or selector in pods, each["metadata"]["name"]
    names = {(each["kind"], each["metadata"]["name"]) for each in resources}
    scaler, = [each for each in resources if each["kind"] == "HorizontalPodAutoscaler"]
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) in names
    metric = scaler["spec"]["metrics"][0]["pods"]["metric"]["name"]
    adapter = yaml.safe_load((DEPLOY / "kubernetes" / "prometheus-adapter.yaml").read_text())
    assert metric in [rule["name"]["as"] for rule in adapter["rules"]["custom"]]


def test_with_tls_all_who_ask_a_pod_speak_it():
    """The kubelet, by the probes, and Prometheus, by the annotations; and only then."""
    patch, = documents(DEPLOY / "kubernetes" / "tls-patch.yaml")
    for each, scheme in ((deployment(), "HTTP"), (merged(deployment(), patch), "HTTPS")):
        template = each["spec"]["template"]
        annotations = template["metadata"]["annotations"]
        assert annotations["prometheus.io/scrape"] == "true"
        assert annotations.get("prometheus.io/scheme", "http") == scheme.lower()
        container, = template["spec"]["containers"]
        ports = {str(port["containerPort"]) for port in container["ports"]}
        assert annotations["prometheus.io/port"] in ports
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"].get("scheme", "HTTP") == scheme


def test_the_policy_lets_in_who_asks():
    """Pods of its namespace, the Ingress controller, and Prometheus where the adapter looks for it."""
    policy, = [each for each in documents(RESOURCES[1]) if each["kind"] == "NetworkPolicy"]
    rule, = policy["spec"]["ingress"]
    container, = deployment()["spec"]["template"]["spec"]["containers"]
    assert {port["port"] for port in rule["ports"]} == {port["containerPort"] for port in container["ports"]}
    assert {"podSelector": {}} in rule["from"]
    spaces = [each["namespaceSelector"] for each in rule["from"] if "namespaceSelector" in each]
    names = {name for space in spaces for label in space["matchExpressions"]
             if (label["key"], label["operator"]) == ("kubernetes.io/metadata.name", "In")
             for name in label["values"]}
    adapter = yaml.safe_load((DEPLOY / "kubernetes" / "prometheus-adapter.yaml").read_text())
    prometheus = adapter["prometheus"]["url"].split("//")[1].split(".")[1]
    assert names == {"ingress-nginx", prometheus}


def test_an_update_loses_no_turn():
    """The next pod is ready before one is told to end, and that one has the time that it takes."""
    spec = deployment()["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    container, = spec["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert container["lifecycle"]["preStop"]["exec"]["command"][0] == "sleep"


# ---- compose ----

COMPOSE = sorted(DEPLOY.glob("compose*.yaml"))


def read_compose(text):
    """With what variables stand for if they are not set; and without anchors, which YAML has put in place."""
    file = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    return compose_spec.PyCompose.from_yaml(yaml.safe_dump(
        {key: value for key, value in file.items() if not key.startswith("x-")}))


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_compose_takes_the_files(path):
    file = read_compose(path.read_text())
    file.validate()
    assert set(file.service_names()) == set(yaml.safe_load(path.read_text())["services"])


@pytest.mark.parametrize("right, wrong", [
    ("restart: unless-stopped", "restarts: unless-stopped"), ("cap_drop: [ALL]", "cap_drop: {}"),
    ("stop_grace_period: 60s", "stop_grace_period: long"), ("127.0.0.1:8080:8080", "127.0.0.1:http")])
def test_what_compose_does_not_know_is_found(right, wrong):
    text = (DEPLOY / "compose.replicas.yaml").read_text()
    assert right in text
    with pytest.raises(ValueError):
        read_compose(text.replace(right, wrong)).validate()


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.name)
def test_images_have_versions_and_names_lead_somewhere(path):
    file = yaml.safe_load(path.read_text())
    services = file["services"]
    for name, service in services.items():
        if "build" not in service:
            assert service["image"].rsplit(":", 1)[1][:1] in "v0123456789", name
        assert set(service.get("depends_on", [])) <= set(services), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (path.parent / source).exists(), source
            elif not source.startswith("$"):
                assert source in file["volumes"], source


# ---- Envoy ----

def read_envoy(text):
    from envoy.config.bootstrap.v3 import bootstrap_pb2
    from envoy.extensions.filters.http.router.v3 import router_pb2  # noqa: F401
    from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2  # noqa: F401
    from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2  # noqa: F401
    from envoy.extensions.transport_sockets.tls.v3 import tls_pb2  # noqa: F401
    from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2  # noqa: F401
    return json_format.ParseDict(yaml.safe_load(text), bootstrap_pb2.Bootstrap())


def test_envoy_has_the_fields():
    text = (DEPLOY / "proxy" / "envoy-replicas.yaml").read_text()
    cluster, = read_envoy(text).static_resources.clusters
    assert cluster.common_lb_config.consistent_hashing_lb_config.hash_balance_factor.value == 200
    assert cluster.health_checks[0].http_health_check.path == "/ready"
    assert len(cluster.load_assignment.endpoints[0].lb_endpoints) == 3
    for right, wrong in (("num_retries: 2", "num_retry: 2"), ("RING_HASH", "RING"),
                         ("header_name:", "name:")):
        assert right in text
        with pytest.raises(json_format.ParseError):
            read_envoy(text.replace(right, wrong))
