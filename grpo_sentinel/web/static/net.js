// Follows the sidecar: server-sent events read with fetch, because EventSource cannot send a token.

import { age, byId } from "./base.js";

export const live = { news: null, incidents: { of: "", heads: [] }, run: "", token: sessionStorage.getItem("token") || "", connected: false, heard: 0, lost: 0 };
const SILENT_MS = 25000; // the server says something at least every 15 s
let control = null;

// #token=... in the address is taken once and removed, so that it does not stay in the history of the browser
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  live.token = given;
  sessionStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname);
}
takeToken();
window.addEventListener("hashchange", takeToken);

const bearer = () => (live.token ? { Authorization: `Bearer ${live.token}` } : {});

function needsToken(needed) {
  byId("login").hidden = !needed;
  for (const id of ["main", "nav"]) byId(id).hidden = needed;
}

export async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: { ...bearer(), ...(options.headers || {}) } });
  if (answer.status === 401 && !options.method) needsToken(true);
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || `the sidecar answered ${answer.status}`);
  return body;
}

export const get = (path, parameters) => ask(`/api/v1/${path}?${new URLSearchParams(parameters)}`);

async function follow(receive) {
  control = new AbortController();
  const answer = await fetch(`/api/v1/stream?run=${encodeURIComponent(live.run)}`, { headers: bearer(), signal: control.signal });
  if (answer.status === 401) { needsToken(true); throw new Error("this page needs the read token"); }
  if (!answer.ok) throw new Error((await answer.json()).error);
  needsToken(false);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the sidecar has gone");
    live.heard = Date.now();
    const blocks = (text + value).split("\n\n");
    text = blocks.pop();
    const newest = blocks.reverse().find((block) => block.startsWith("event: summary"));
    if (newest) receive(JSON.parse(newest.slice(newest.indexOf("data: ") + 6)));
  }
}

function show(connected, why) {
  if (connected === live.connected && connected) return;
  if (live.connected || !live.lost) live.lost = Date.now();
  live.connected = connected;
  document.documentElement.dataset.link = connected ? "live" : "lost";
  byId("link").textContent = connected ? "live" : "not connected";
  byId("link").className = `badge ${connected ? "ok" : "critical"}`;
  byId("link").title = why;
  sayStale(why);
}

let reason = "";
function sayStale(why = reason) {
  reason = why;
  byId("stale").hidden = live.connected;
  if (!live.connected) {
    const text = `Not connected: ${/fetch|network/i.test(why) ? "the sidecar does not answer" : why}. ` +
      (live.news ? `What you see is ${age((Date.now() - live.heard) / 1000)} old. ` : "") + "Trying again.";
    if (byId("stale").textContent !== text) byId("stale").textContent = text;
  }
}

export function otherRun(run) {
  live.run = run;
  live.news = null;
  if (control) control.abort();
}

// Connects, and connects again for as long as the page is open; `receive` is handed every summary.
export async function stay(receive) {
  setInterval(() => {
    if (live.connected && Date.now() - live.heard > SILENT_MS && control) { show(false, "nothing has been heard"); control.abort(); }
    if (!live.connected) sayStale();
  }, 5000);
  for (let waits = 500; ; waits = Math.min(5000, waits * 1.6)) {
    try {
      await follow((news) => { waits = 500; live.news = news; show(true, ""); receive(news); });
    } catch (error) {
      if (error.name === "AbortError") continue;
      show(false, error.message);
    }
    await new Promise((resolve) => setTimeout(resolve, waits));
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  live.token = byId("read-token").value;
  sessionStorage.setItem("token", live.token);
});
