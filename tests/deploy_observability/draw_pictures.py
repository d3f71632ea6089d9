"""Draw the dashboards for docs/grafana.md from a real Prometheus with the recorded run: `python draw_pictures.py`.

Grafana itself is not needed: each panel's own queries are asked for, and drawn with the chart library of the page (uPlot)
in headless Chromium, in the places and sizes of the dashboard.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from metric_names import filled
from real_servers import DEPLOY, ask, prometheus
from recording import openmetrics

ROOT = DEPLOY.parent
OUT = ROOT / "docs" / "pictures"
STATIC = ROOT / "grpo_sentinel" / "web" / "static"
VARIABLES = {
    "run_id": "demo",
    "node": "vm",
    "rank": ".*",
    "datasource": "x",
    "__rate_interval": "30s",
    "__interval": "2s",
}
PICTURES = {  # rows of the grid
    "overview": (0, 28), "ranks": (0, 27), "rewards": (0, 33), "devices": (17, 43), "incidents": (0, 30),
}  # fmt: skip
WIDTH, UNIT, STEP = 1160, 19, 1
SHOWN_SECONDS = 88  # of the run: the fault has begun and goes on
COLOURS = ["#2f7ed8", "#d9730d", "#3a9d5d", "#b5449b", "#8a6d1a", "#c0392b", "#5b5ea6", "#128a8a", "#777", "#94bd39"]
STATES = {"blue": "#5794f2", "orange": "#ff9830", "red": "#e02f44", "green": "#56a64b", "text": "#c7ccd6"}


def query(url: str, panel: dict[str, Any], first: float, last: float) -> list[dict[str, Any]]:
    """Ask for every target of a panel; gives its series with their legends."""
    out = []
    for target in panel["targets"]:
        expression = filled(target["expr"], VARIABLES)
        instant = panel["type"] in ("table", "stat")
        for series in ask(url, "query_range", query=expression, start=last if instant else first, end=last, step=STEP):
            legend = target.get("legendFormat", "")
            for name, value in series["metric"].items():
                legend = legend.replace("{{" + name + "}}", value)
            legend = re.sub(r"\{\{\w+\}\}", "", legend)
            points = {round(at): float(value) for at, value in series["values"]}
            out.append({"legend": legend or panel["title"], "labels": series["metric"], "points": points})
    return out


def drawn(panel: dict[str, Any], series: list[dict[str, Any]], times: list[int]) -> str:
    """Draw one panel as HTML; charts are filled in by the script of the page."""
    at = panel["gridPos"]
    style = f"left:{at['x'] * WIDTH / 24:.0f}px;top:{at['y'] * UNIT}px;width:{at['w'] * WIDTH / 24 - 8:.0f}px;height:{at['h'] * UNIT - 8}px"
    title = html.escape(panel["title"])
    if panel["type"] == "row":
        return f'<h2 style="{style}">{title}</h2>'
    body = {"timeseries": _chart, "stat": _number, "table": _table, "state-timeline": _bars}[panel["type"]](
        panel, series, times
    )
    return f'<section style="{style}"><h3>{title}</h3>{body}</section>'


def _chart(panel: dict[str, Any], series: list[dict[str, Any]], times: list[int]) -> str:
    kept = series[:10]
    data = [times, *([one["points"].get(at) for at in times] for one in kept)]
    legend = "".join(
        f'<i style="background:{COLOURS[index]}"></i>{html.escape(one["legend"])} ' for index, one in enumerate(kept)
    )
    log = panel["fieldConfig"]["defaults"]["custom"].get("scaleDistribution", {}).get("type") == "log"
    at = panel["gridPos"]
    size = [at["w"] * WIDTH / 24 - 20, at["h"] * UNIT - 52]
    what = json.dumps(
        {"data": data, "log": log, "unit": panel["fieldConfig"]["defaults"]["unit"], "size": size, "colours": COLOURS}
    )
    return f"<div class=chart data-what='{html.escape(what, quote=True)}'></div><p>{legend}</p>"


def _number(panel: dict[str, Any], series: list[dict[str, Any]], times: list[int]) -> str:
    value = next((one["points"][max(one["points"])] for one in series), None)
    unit = " s" if panel["fieldConfig"]["defaults"]["unit"] == "s" else ""
    return f"<b>{'-' if value is None else f'{value:.4g}{unit}'}</b>"


def _table(panel: dict[str, Any], series: list[dict[str, Any]], times: list[int]) -> str:
    names = sorted({name for one in series for name in one["labels"]})
    value = "Value" not in _columns(panel, "excludeByName")
    head = "".join(f"<th>{name}" for name in names) + (
        f"<th>{_columns(panel, 'renameByName').get('Value', 'value')}" if value else ""
    )
    rows = []
    for one in sorted(series, key=lambda one: one["labels"].get("root", ""), reverse=True)[:8]:
        cells = "".join(f"<td>{html.escape(one['labels'].get(name, ''))}" for name in names)
        rows.append(f"<tr>{cells}" + (f"<td>{one['points'][max(one['points'])]:g}" if value else ""))
    return f"<table><tr>{head}{''.join(rows)}</table>"


def _columns(panel: dict[str, Any], what: str) -> dict[str, Any]:
    """What a table says of its columns: which are left out, or what stands above them."""
    return {
        name: said
        for one in panel.get("transformations", [])
        for name, said in one.get("options", {}).get(what, {}).items()
    }


def _bars(panel: dict[str, Any], series: list[dict[str, Any]], times: list[int]) -> str:
    meaning = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    rows = []
    for one in sorted(series, key=lambda one: one["legend"])[:12]:
        parts, width = [], 100 / len(times)
        for index, at in enumerate(times):
            value = one["points"].get(at)
            colour = (
                STATES[meaning[f"{value:g}"]["color"]]
                if value is not None and f"{value:g}" in meaning
                else "transparent"
            )
            if parts and parts[-1][2] == colour:
                parts[-1][1] += width
            else:
                parts.append([index * width, width, colour])
        bars = "".join(
            f'<s style="left:{x:.2f}%;width:{w:.2f}%;background:{c}"></s>' for x, w, c in parts if c != "transparent"
        )
        rows.append(f"<li><span>{html.escape(one['legend'])}</span><em>{bars}</em></li>")
    key = "".join(f'<i style="background:{STATES[one["color"]]}"></i>{one["text"]} ' for one in meaning.values())
    return f"<ul>{''.join(rows)}</ul><p>{key}</p>"


PAGE = """<!doctype html><meta charset=utf-8><style>%(css)s
body{margin:0;background:#f4f5f8;font:12px/1.35 "DejaVu Sans",sans-serif;color:#24292e;position:relative;height:%(height)dpx;overflow:hidden}
section,h2{position:absolute;box-sizing:border-box;margin:4px;overflow:hidden} section{background:#fff;border:1px solid #dcdfe4;padding:4px 6px}
h2{font-size:13px;font-weight:600;margin:1px 6px;overflow:visible;line-height:17px} h3{font-size:12px;font-weight:600;margin:0 0 2px} p{margin:0;font-size:10.5px;white-space:nowrap}
i{display:inline-block;width:10px;height:3px;margin:3px 4px 3px 8px} b{font-size:22px;font-weight:500;display:block;text-align:center}
table{border-collapse:collapse;width:100%%} td,th{text-align:left;border-bottom:1px solid #e6e8eb;padding:1px 6px;font-size:11px}
ul{list-style:none;margin:0;padding:0} li{display:flex;height:13px;margin-bottom:2px} li span{width:160px;font-size:10.5px;white-space:nowrap;overflow:hidden}
em{flex:1;position:relative;background:#eef0f3} s{position:absolute;top:0;bottom:0}
</style>%(panels)s<script>%(js)s
const num=(v,u)=>v==null?"":u==="bytes"?(v/2**30>=1?(v/2**30).toPrecision(3)+" GiB":(v/2**20).toPrecision(3)+" MiB"):u==="percentunit"?+(v*100).toPrecision(3)+" %%":u==="s"?+v.toPrecision(3)+" s":u==="hertz"?v/1e9+" GHz":u==="celsius"?v+" °C":u==="watt"?v+" W":u==="sci"||(v&&Math.abs(v)<1e-3)?v.toExponential(0):+v.toPrecision(4);
for(const el of document.querySelectorAll(".chart")){const w=JSON.parse(el.dataset.what);new uPlot({width:w.size[0],height:w.size[1],legend:{show:false},cursor:{show:false},
scales:{x:{time:false},y:w.log?{distr:3}:{range:(u,a,b)=>a===b?[a-(Math.abs(a)||1)*.1,b+(Math.abs(b)||1)*.1]:uPlot.rangeNum(a,b,.1,true)}},
padding:[8,10,0,0],axes:[{size:30,values:(u,v)=>v.map(x=>x-w.data[0][0]+" s"),grid:{stroke:"#eceef1"}},{size:70,space:24,grid:{stroke:"#eceef1"},values:(u,v)=>v.map(x=>num(x,w.unit))}],
series:[{},...w.data.slice(1).map((_,i)=>({stroke:w.colours[i],width:1.2,points:{show:false}}))]},w.data,el)}
</script>"""


def main() -> int:
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text, first, last = openmetrics(time.time() - 3600)
        (folder / "run.om").write_text(text)
        argv = ["promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "run.om", folder / "tsdb"]
        subprocess.run(argv, check=True, capture_output=True, timeout=120)
        (folder / "prometheus.yml").write_text("global: {}\n")
        with prometheus(folder / "prometheus.yml", folder / "tsdb", None, "--query.lookback-delta=3s") as url:
            for stem, (top, bottom) in PICTURES.items():
                draw(url, stem, top, bottom, folder, first, min(last, first + SHOWN_SECONDS))
    return 0


def draw(url: str, stem: str, top: int, bottom: int, folder: Path, first: float, last: float) -> None:
    """Draw some rows of one dashboard."""
    board = json.loads((DEPLOY / "grafana" / "dashboards" / f"grpo-sentinel-{stem}.json").read_text())
    times = list(range(round(first) + 1, round(last), STEP))
    shown = [panel for panel in board["panels"] if top <= panel["gridPos"]["y"] <= bottom - panel["gridPos"]["h"]]
    for panel in shown:
        panel["gridPos"]["y"] -= top
    parts = [
        drawn(panel, query(url, panel, times[0], times[-1]) if panel["type"] != "row" else [], times) for panel in shown
    ]
    height = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown) * UNIT + 8
    page = folder / f"{stem}.html"
    given = {"css": (STATIC / "uplot.css").read_text(), "js": (STATIC / "uplot.js").read_text(), "height": height}
    page.write_text(PAGE % {**given, "panels": "".join(parts)})
    target = OUT / f"grafana-{stem}.png"
    chromium = shutil.which("chromium") or "chromium"
    argv = [
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--user-data-dir={folder / 'chromium'}",
    ]
    argv += [
        f"--window-size={WIDTH + 8},{height}",
        "--virtual-time-budget=3000",
        f"--screenshot={target}",
        page.as_uri(),
    ]
    subprocess.run(argv, check=True, capture_output=True, timeout=120)
    print(f"{target.name}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    sys.exit(main())
