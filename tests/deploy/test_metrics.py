"""How Prometheus finds the servers, and the dashboard that shows what it has: both know a server by its `instance`."""

import json
import re
from typing import Any

import yaml

from tests.deploy.recipes import DEPLOY, manifest

DOCS = DEPLOY.parent / "docs" / "deploying.md"


def jobs() -> dict[str, dict[str, Any]]:
    written = yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))
    return {one["job_name"]: one for one in written["scrape_configs"]}


def test_the_dashboard_asks_for_the_servers_that_are_chosen() -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text("utf-8"))
    (chosen,) = [one for one in dashboard["templating"]["list"] if one["name"] == "instance"]
    assert (chosen["multi"], chosen["includeAll"]) == (True, True)
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            selectors = re.findall(r"pyllmcancel_\w+(\{[^}]*\})?", target["expr"])
            assert selectors, panel["title"]
            assert all('instance=~"$instance"' in one for one in selectors), panel["title"]


def test_prometheus_loads_the_alerts() -> None:
    assert yaml.safe_load((DEPLOY / "prometheus.yml").read_text("utf-8"))["rule_files"] == ["alerts.yml"]
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))["groups"]
    needed = {"alert", "expr", "for", "labels", "annotations"}
    assert all(set(rule) == needed and rule["labels"]["severity"] in ("critical", "warning") for rule in group["rules"])
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names)) > 10


def test_the_alerts_know_every_job() -> None:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text("utf-8"))["groups"]
    (down,) = [rule["expr"] for rule in group["rules"] if rule["alert"] == "PyllmcancelDown"]
    found = re.search(r'job=~"([^"]+)"', down)
    assert all(re.fullmatch(found[1], job) for job in jobs())


def test_every_job_scrapes_servers_by_themselves_with_a_key() -> None:
    kinds = {key for job in jobs().values() for key in job if key.endswith("_configs")}
    assert kinds >= {"static_configs", "dns_sd_configs", "kubernetes_sd_configs"}
    for job in jobs().values():
        assert job["authorization"] == {"credentials_file": "/etc/prometheus/pyllmcancel-admin-key"}
        assert job.get("metrics_path", "/metrics") == "/metrics"
    names = [one["labels"]["instance"] for one in jobs()["pyllmcancel"]["static_configs"]]
    assert len(names) == len(set(names)) > 1


def test_the_pods_are_those_of_the_manifests_and_have_their_names() -> None:
    job = jobs()["pyllmcancel-kubernetes"]
    kept, named = job["relabel_configs"]
    service = manifest("Service", "pyllmcancel-replicas")
    assert kept["regex"] == f"{service['metadata']['name']};{service['spec']['ports'][0]['name']}"
    assert job["kubernetes_sd_configs"][0]["namespaces"]["names"] == [service["metadata"]["namespace"]]
    assert (named["source_labels"], named["target_label"]) == (["__meta_kubernetes_pod_name"], "instance")


def test_the_monitor_of_the_operator_finds_the_same_pods() -> None:
    texts = re.findall(r"```yaml\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    (monitor,) = [one for one in map(yaml.safe_load, texts) if one.get("kind") == "PodMonitor"]
    labels = manifest("StatefulSet", "pyllmcancel")["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_name"], "targetLabel": "instance"}]
