"""Alerts as the mixins have them, a dashboard for Grafana; test_running holds both against what is served."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compose.deployment import COMPOSE, services
from tests.compose.promql import DASHBOARD, PANELS, RULES, asked_by

_UNITS = {"s", "ops", "none", "bytes", "percentunit"}


def test_an_expression_that_is_no_promql_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\S"):
        asked_by("sum by (le (rate(x[5m]))")


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_is_as_the_mixins_have_it(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"Outbox(Relay|Consumer)[A-Z][A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert rule["annotations"].keys() == {"summary", "description"}
    # What is the same for every firing: it names the alert in a list.
    assert rule["annotations"]["summary"].endswith(".")
    assert "{{" not in rule["annotations"]["summary"]
    assert rule["alert"] in (COMPOSE.parent / "docs" / "how-to" / "metrics.md").read_text()


def test_alerts_fire_when_they_should_and_not_before() -> None:
    """By Prometheus's own tool, where it is installed."""
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    for words in (
        ["check", "config", str(COMPOSE / "prometheus" / "prometheus.yml")],
        ["test", "rules", str(Path(__file__).with_name("alerts_test.yml"))],
    ):
        done = subprocess.run([tool, *words], capture_output=True, text=True, check=False, timeout=30)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_is_one_that_grafana_can_show() -> None:
    assert DASHBOARD["schemaVersion"] >= 39
    assert "id" not in DASHBOARD  # the server's to give
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    source = yaml.safe_load((COMPOSE / "grafana" / "provisioning" / "datasources" / "prometheus.yml").read_text())
    uids = {one["uid"] for one in source["datasources"]}
    for panel in PANELS:
        assert panel["fieldConfig"]["defaults"]["unit"] in _UNITS, panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references))
        assert {panel["datasource"]["uid"], *(one["datasource"]["uid"] for one in panel["targets"])} <= uids


def test_no_panel_lies_over_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_grafana_finds_what_is_provisioned() -> None:
    grafana = services()["grafana"]
    provider = yaml.safe_load((COMPOSE / "grafana" / "provisioning" / "dashboards" / "fairpost.yml").read_text())
    mounted = {target: source for source, target, _ in grafana.mounts}
    for one in provider["providers"]:
        assert (mounted[one["options"]["path"]] / "fairpost.json").exists()
    home = Path(grafana.environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (mounted[str(home.parent)] / home.name).exists()
    assert "/etc/grafana/provisioning" in mounted
