// Follows the sidecar: server-sent events read with fetch, because EventSource cannot send a token.
"use strict";

const live = { news: null, token: sessionStorage.getItem("token") || "", run: "", arrived: 0, control: null };

// #token=... in the address is taken once and removed, so that it does not stay in the history of the browser
const hash = new URLSearchParams(location.hash.slice(1));
if (hash.get("token")) {
  live.token = hash.get("token");
  sessionStorage.setItem("token", live.token);
  history.replaceState(null, "", location.pathname);
}

async function ask(path, options = {}) {
  const headers = { ...(live.token ? { Authorization: `Bearer ${live.token}` } : {}), ...(options.headers || {}) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401 && !options.method) { byId("login").hidden = false; document.querySelector("main").hidden = true; }
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || `${answer.status}`);
  return body;
}

function link(text, state) {
  byId("link").textContent = text;
  byId("link").className = `badge ${state}`;
}

async function follow() {
  live.control = new AbortController();
  const headers = live.token ? { Authorization: `Bearer ${live.token}` } : {};
  const answer = await fetch(`/api/v1/stream?run=${encodeURIComponent(live.run)}`, { headers, signal: live.control.signal });
  if (answer.status === 401) { byId("login").hidden = false; document.querySelector("main").hidden = true; throw new Error("needs the read token"); }
  if (!answer.ok) throw new Error((await answer.json()).error);
  byId("login").hidden = true;
  document.querySelector("main").hidden = false;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    const newest = blocks.reverse().find((block) => block.startsWith("event: summary"));
    if (newest) receive(JSON.parse(newest.slice(newest.indexOf("data: ") + 6)));
    live.arrived = Date.now();
  }
}

function receive(news) {
  const first = !live.news || live.news.run_id !== news.run_id;
  live.news = news;
  link("live", "ok");
  draw(news);
  if (first) refreshChart();
}

async function stay() {
  for (;;) {
    try {
      await follow();
    } catch (error) {
      if (error.name !== "AbortError") link(`not connected: ${error.message}`, "critical");
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

byId("run").addEventListener("change", (event) => { live.run = event.target.value; live.news = null; chart.zoom = null; live.control.abort(); });
byId("signal").addEventListener("change", refreshChart);
byId("mode").addEventListener("change", refreshChart);
byId("reset-zoom").addEventListener("click", () => { chart.zoom = null; refreshChart(); });
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  live.token = byId("read-token").value;
  sessionStorage.setItem("token", live.token);
});
byId("act").addEventListener("submit", async (event) => {
  event.preventDefault();
  const action = event.submitter.value, run = live.news && live.news.run_id;
  if (!run || !confirm(`${action} for run ${run}?`)) return;
  const body = JSON.stringify({ action, run_id: run, reason: byId("reason").value });
  const headers = { Authorization: `Bearer ${byId("act-token").value}`, "Content-Type": "application/json" };
  try {
    const answer = await ask("/api/v1/requests", { method: "POST", headers, body });
    byId("act-answer").textContent = `Asked: request ${answer.request_id}.`;
  } catch (error) {
    byId("act-answer").textContent = `Refused: ${error.message}`;
  }
});
new ResizeObserver(() => chart.plot && chart.plot.setSize({ width: byId("chart").clientWidth, height: 260 })).observe(byId("chart"));
setInterval(refreshChart, 5000);
setInterval(() => { if (live.arrived && Date.now() - live.arrived > 20000) link(`no news for ${age((Date.now() - live.arrived) / 1000)}`, "critical"); }, 2000);
stay();
