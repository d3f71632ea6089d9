"""Write the Grafana dashboards from the tables in `dashboards_content.py`: `build_dashboards.py [--check]`.

The JSON is committed, so that nobody needs the SDK to use it (grafana-foundation-sdk, Python 3.11 or newer). The SDK
sets neither panel ids nor refIds nor positions; that is done here.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
from pathlib import Path
from typing import Any

from dashboards_content import DASHBOARDS, NODE, Dashboard, Panel
from grafana_foundation_sdk.builders import dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    ScaleDistributionConfig,
    StackingConfig,
    TableSortByFieldState,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

OUT = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "dashboards"
SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
COLUMNS = 24
LABELS = {"run_id": "Run", "node": "Node", "rank": "Rank"}
OF = {"run_id": "", "node": '{run_id="$run_id"}', "rank": '{run_id="$run_id", node=~"$node"}'}
METRIC = {"run_id": "grpo_sentinel_run_info", "node": "grpo_sentinel_run_info", "rank": "grpo_sentinel_rank_step"}
KINDS = {"timeseries": timeseries, "stat": stat, "table": table, "state": statetimeline}
FIRING = f"max by (rule, layer, severity, rank) (grpo_sentinel_findings{{{NODE}}}) > 0"


def built(content: Dashboard) -> str:
    """Build one dashboard and give its JSON."""
    made = (
        dashboard.Dashboard(f"grpo-sentinel / {content.title}")
        .uid(content.uid).description(content.about).tags(["grpo-sentinel"]).editable().readonly().refresh("30s")
        .time("now-6h", "now").timezone("browser").tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(dashboard.DashboardLink("grpo-sentinel").type(models.DashboardLinkType.DASHBOARDS)
              .tags(["grpo-sentinel"]).as_dropdown(True).keep_time(True).include_vars(True))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )  # fmt: skip
    for name in content.variables:
        made = made.with_variable(_variable(name))
    if "node" in content.variables:
        made = made.annotation(
            dashboard.AnnotationQuery().name("Findings").enable(True).hide(False).icon_color("red")
            .datasource(SOURCE)
        )  # fmt: skip
    number, y = 1, 0
    for title, panels in content.rows:
        made = made.with_row(dashboard.Row(title).id(number).grid_pos(models.GridPos(h=1, w=COLUMNS, x=0, y=y)))
        number, y, x, tallest = number + 1, y + 1, 0, 0
        for panel in panels:
            if x + panel.width > COLUMNS:
                x, y, tallest = 0, y + tallest, 0
            made = made.with_panel(_panel(panel).id(number).grid_pos(models.GridPos(panel.height, panel.width, x, y)))
            number, x, tallest = number + 1, x + panel.width, max(tallest, panel.height)
        y += tallest
    body = json.loads(JSONEncoder(sort_keys=True).encode(made.build()))
    return json.dumps(_tidy(body), sort_keys=True, indent=1) + "\n"


def _tidy(body: dict[str, Any]) -> dict[str, Any]:
    """Take out what Grafana 11 does not know and put in what the SDK has no word for."""
    for variable in body["templating"]["list"]:
        for key in ("auto", "auto_count", "auto_min"):  # of interval variables only
            variable.pop(key, None)
    annotations = body.setdefault("annotations", {}).setdefault("list", [])
    for one in [*body["links"], *annotations]:
        one.pop("placement", None)
    for one in annotations:
        one["target"] = {"expr": FIRING, "refId": "Anno"}
        one |= {"titleFormat": "{{rule}}", "textFormat": "{{layer}}, rank {{rank}}", "tagKeys": "severity,layer"}
    return body


def _variable(name: str) -> Any:
    every = name != "run_id"
    made = (
        dashboard.QueryVariable(name).label(LABELS[name]).datasource(SOURCE)
        .query(f"label_values({METRIC[name]}{OF[name]}, {name})").refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.NUMERICAL_ASC).multi(every).include_all(every)
    )  # fmt: skip
    if not every:
        return made
    return made.all_value(".*").current(models.VariableOption(selected=True, text="All", value="$__all"))


def _panel(panel: Panel) -> Any:
    made = KINDS[panel.kind].Panel().title(panel.title).datasource(SOURCE).unit(panel.unit)
    if panel.about:
        made = made.description(panel.about)
    for ref, query in zip(string.ascii_uppercase, panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).ref_id(ref).datasource(SOURCE)
        if query.legend:
            target = target.legend_format(query.legend)
        if panel.kind == "table":
            target = target.instant().format("table")
        made = made.with_target(target.range() if panel.kind != "table" else target)
    return _shaped(made, panel)


def _shaped(made: Any, panel: Panel) -> Any:
    if panel.kind == "timeseries":
        made = made.line_width(1).fill_opacity(30 if panel.stack else 5).show_points(common.VisibilityMode.NEVER)
        if panel.stack:
            made = made.stacking(StackingConfig().mode(common.StackingMode.NORMAL))
        if panel.log:
            made = made.scale_distribution(ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10))
    if panel.kind == "stat":
        made = made.reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
    if panel.kind == "state":
        options = {
            number: models.ValueMappingResult(text=text, color=color, index=index)
            for index, (number, (text, color)) in enumerate(panel.values.items())
        }
        made = made.mappings([models.ValueMap(options=options)]).no_value("nothing fires")
    if panel.kind == "table":
        made = made.sort_by([TableSortByFieldState().display_name("root").desc(True)])  # causes first
        columns = {"excludeByName": dict.fromkeys(panel.hidden, True), "renameByName": panel.named}
        if len(panel.queries) > 1:
            made = made.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
        made = made.with_transformation(models.DataTransformerConfig(id_val="organize", options=columns))
    return made


def stale() -> list[str]:
    """Name the files that do not say what the tables say."""
    wanted = {f"{content.uid}.json": built(content) for content in DASHBOARDS}
    found = {path.name: path.read_text(encoding="utf-8") for path in OUT.glob("*.json")}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a file is stale")
    if parser.parse_args().check:
        old = stale()
        if old:
            print(f"stale: {', '.join(old)}; run make dashboards", file=sys.stderr)
        return 1 if old else 0
    OUT.mkdir(parents=True, exist_ok=True)
    for content in DASHBOARDS:
        (OUT / f"{content.uid}.json").write_text(built(content), encoding="utf-8")
        print(f"wrote {content.uid}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
