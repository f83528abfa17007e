# SPDX-License-Identifier: Apache-2.0
"""What deploy/ holds for operators, with the real Prometheus: it scrapes a running server, every
query of the dashboard answers with data, and the alerts' rules evaluate, and fire when they should."""

import json
import math
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import yaml

import harness

pytestmark = pytest.mark.builds("dev")  # what is new here runs in Prometheus
DEPLOY = harness.ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "regla_rules.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "regla.json").read_text())
UNPACKED = harness.ROOT / "tests" / ".prometheus" / "usr" / "bin"
LENGTHS = ["64", "128", "256", "512", "1024", "2048", "4096", "8192", "inf"]
WAIT_SECONDS = 120


def program(name):
    found = shutil.which(name, path=f"{UNPACKED}{os.pathsep}{os.environ['PATH']}")
    assert found, f"no {name}: deploy/deps.sh test unpacks it into tests/.prometheus"
    return found


def promtool(*arguments, **options):
    """Exits 0 and says nothing of problems, or its output is in the failure."""
    done = subprocess.run([program("promtool"), *map(str, arguments)], capture_output=True,
                          text=True, timeout=WAIT_SECONDS, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Prometheus:
    """Prometheus with deploy/'s configuration, aimed at one server and in a greater hurry."""

    def __init__(self, folder, server):
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        config["global"].update(scrape_interval="500ms", evaluation_interval="500ms")
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{server.port}"]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(RULES, folder)
        port = harness.unused_port()
        self.log_path = folder / "prometheus.log"
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
                 f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS,
                                 trust_env=False)

    def stop(self):
        self.http.close()
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def api(self, path, **parameters):
        """The data of an answer, None while Prometheus does not answer yet."""
        assert self.process.poll() is None, self.log_path.read_text(errors="replace")[-4000:]
        try:
            reply = self.http.get(f"/api/v1/{path}", params=parameters)
        except httpx.TransportError:
            return None
        if reply.status_code == 503:
            return None
        assert reply.status_code == 200, f"{parameters}: {reply.text}"
        return reply.json()["data"]

    def value(self, query):
        """The value of a query with one series, or None."""
        data = self.api("query", query=query)
        return float(data["result"][0]["value"][1]) if data and data["result"] else None

    def wait(self, what, condition):
        harness.wait_until(condition, lambda: what + self.log_path.read_text(errors="replace")[-4000:],
                           WAIT_SECONDS)


def traffic(server):
    """Requests of every length, the least that it holds; one that finds its prompt in the
    cache, sessions, and errors. How many they are."""
    with ThreadPoolExecutor(len(LENGTHS)) as pool:
        for reply in [pool.submit(server.complete, prompt=[40, 41, 42], ignore_eos=True,
                                  max_tokens=8193 if length == "inf" else int(length) // 2 + 1)
                      for length in LENGTHS]:
            reply.result()
    for _ in range(2):
        server.complete(prompt=[50] * 100, max_tokens=2, session_id="a")
    server.refuse(400, prompt="x", temperature=9)
    return len(LENGTHS) + 3


@pytest.fixture(scope="module")
def prometheus(server, tmp_path_factory):
    """One that has seen the server at rest, then its traffic."""
    server.refuse(400, prompt="x", temperature=9)  # its series begins before the first scrape
    running = Prometheus(tmp_path_factory.mktemp("prometheus"), server)
    try:
        running.wait("no scrape", lambda: running.value('up{job="regla"}') == 1)
        ended = server.metric("regla_requests_total") + traffic(server)
        server.wait_metric(ended, "regla_requests_total")
        running.wait("the traffic was not seen",
                     lambda: running.value("sum(regla_requests_total)") == ended)
        yield running
    finally:
        running.stop()


def substituted(query):
    """As Grafana sends it, with everything chosen in the dashboard's lists."""
    for name, value in {"$model": ".*", "$instance": ".*", "$__rate_interval": "1m",
                        "$__range": "5m"}.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


def targets():
    """(panel, target) of everything that the dashboard draws."""
    return [(panel, target) for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]


def numbers(prometheus, target):
    """{labels: the last finite number} of the series that a target draws."""
    query = substituted(target["expr"])
    if target.get("instant"):
        data = prometheus.api("query", query=query)
    else:
        now = time.time()
        data = prometheus.api("query_range", query=query, start=now - 60, end=now, step=1)
    drawn = {}
    for series in data["result"] if data else []:
        finite = [float(text) for _, text in series.get("values") or [series["value"]]
                  if math.isfinite(float(text))]
        if finite:
            drawn[frozenset(series["metric"].items())] = finite[-1]
    return drawn


@pytest.mark.long
def test_the_metrics_are_clean(prometheus, server):
    assert promtool("check", "metrics", input=server.get("/metrics").text) == ""


def test_the_configuration_and_the_rules_are_clean():
    for name in ("prometheus.yml", "prometheus-replicas.yml"):
        assert "SUCCESS" in promtool("check", "config", DEPLOY / "prometheus" / name)
    assert "SUCCESS" in promtool("check", "rules", RULES)


def test_alerts_fire_when_they_should():
    cases = harness.ROOT / "tests" / "data" / "prometheus" / "regla_rules_test.yml"
    tested = {check["alertname"] for case in yaml.safe_load(cases.read_text())["tests"]
              for check in case["alert_rule_test"] if check.get("exp_alerts")}
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    assert tested == {rule["alert"] for rule in rules}
    promtool("test", "rules", cases)


def test_rules_evaluate_on_a_running_server(prometheus, server):
    def rules():
        groups = (prometheus.api("rules") or {"groups": []})["groups"]
        return [rule for group in groups for rule in group["rules"]]
    prometheus.wait("rules were not evaluated", lambda: rules() and all(
        rule["health"] != "unknown" for rule in rules()))
    assert {rule["name"]: rule.get("lastError") for rule in rules()
            if rule["health"] != "ok"} == {}
    known = {name for name, _ in server.metrics()}
    assert set(re.findall(r"\bregla_\w+", " ".join(rule["query"] for rule in rules()))) <= known


def test_every_query_of_the_dashboard_returns_data(prometheus):
    assert len(targets()) > 30
    missing = targets()

    def all_have():
        nonlocal missing
        missing = [(panel, target) for panel, target in missing
                   if not numbers(prometheus, target)]
        return not missing
    harness.wait_until(
        all_have, lambda: [(panel["title"], target["expr"]) for panel, target in missing],
        WAIT_SECONDS)


def test_the_lists_of_the_dashboard_have_choices(prometheus, server):
    for variable in DASHBOARD["templating"]["list"][1:]:
        metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)",
                                     variable["query"]["query"]).groups()
        found = prometheus.api("series", **{"match[]": substituted(metric)})
        assert {series[label] for series in found} == {
            server.model_id if label == "model" else f"127.0.0.1:{server.port}"}


def test_curves_over_length_are_the_servers(prometheus, server):
    """Both are drawn against length and over time, with all classes, in order, as they are."""
    peak, speed = {}, {}
    for length in LENGTHS:
        peak[length] = server.metric("regla_generation_peak_memory_bytes", length=length)
        total, count = (server.metric(f"regla_generation_tokens_per_second_{part}", length=length)
                        for part in ("sum", "count"))
        speed[length] = total / count
    for name, expected in (("regla_generation_peak_memory_bytes", peak),
                           ("regla_generation_tokens_per_second", speed)):
        panels = [panel for panel in DASHBOARD["panels"] if any(
            name in target["expr"] for target in panel.get("targets", []))]
        assert [panel["type"] for panel in panels] == ["bargauge", "timeseries"]
        against, over_time = panels
        assert [target["legendFormat"] for target in against["targets"]] == LENGTHS
        for target in against["targets"]:
            value, = numbers(prometheus, target).values()
            assert value == pytest.approx(expected[target["legendFormat"]], rel=1e-6)
        drawn = numbers(prometheus, over_time["targets"][0])
        assert {dict(labels)["length"] for labels in drawn} == set(LENGTHS)


def test_classes_say_what_requests_held_and_how_fast_they_were(server_factory):
    """A text holds its slot, and pages of 64 tokens for all but the last token."""
    server = server_factory()
    model = server.get("/v1/models").json()["data"][0]
    def change(name, **labels):
        return server.metric(name, **labels) - before.get(name, 0)

    for length, generated in (("64", 1), ("64", 64), ("128", 65), ("512", 257), ("inf", 8193)):
        speed, latency = "regla_generation_tokens_per_second_sum", "regla_inter_token_latency_seconds_sum"
        before = {speed: server.metric(speed, length=length), latency: server.metric(latency)}
        server.complete(prompt=[40] * 10, max_tokens=generated, ignore_eos=True)
        pages = math.ceil((10 + generated - 1) / 64)
        assert server.metric("regla_generation_peak_memory_bytes", length=length) == \
            model["state_bytes_per_text"] + pages * 64 * model["kv_bytes_per_token"]
        if generated > 1:  # the first token belongs to the prompt's time; latencies are whole µs
            assert change(speed, length=length) == pytest.approx(
                (generated - 1) / change(latency), rel=0.02)
    for length, count in (("64", 1), ("128", 1), ("256", 0), ("512", 1), ("inf", 1)):
        assert server.metric("regla_generation_tokens_per_second_count", length=length) == count
    assert server.metric("regla_generation_peak_memory_bytes", length="256") == 0
