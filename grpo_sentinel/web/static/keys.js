// Single keys, their list, and the colours of the page.

import { openAct } from "./act.js";
import { byId, make } from "./base.js";
import { stepFindings } from "./findings.js";
import { search } from "./signals.js";

const SECTIONS = ["overview", "findings", "ranks", "signals", "incidents", "devices", "sentinel"];
const KEYS = [
  ["1 … 7", "to a section: overview, findings, ranks, signals, incidents, devices, sentinel"],
  ["n  p", "next and previous finding"],
  ["/", "search the signals"],
  ["c", "ask for a checkpoint (asks first)"],
  ["h", "ask for a checkpoint and a halt (asks first)"],
  ["?", "this list"],
  ["arrows, Enter", "on the map of ranks: move over the cells, draw a cell's signal"],
  ["+ − ← → 0", "on the chart: zoom, move, whole run"],
];
const THEMES = ["", "light", "dark"];

function go(id) {
  byId(id).scrollIntoView({ block: "start" });
  byId(id).tabIndex = -1;
  byId(id).focus({ preventScroll: true });
}

function pressed(event) {
  const typing = event.target.closest("input, select, textarea, dialog");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !byId("keys-on").checked || byId("main").hidden) return;
  const section = SECTIONS[Number(event.key) - 1];
  const does = { "?": () => byId("help").showModal(), "/": () => search(""), n: () => stepFindings(1), p: () => stepFindings(-1), c: () => openAct("checkpoint"), h: () => openAct("checkpoint-and-halt") }[event.key];
  if (section) go(section); else if (does) does(); else return;
  event.preventDefault();
}

function theme(name) {
  if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme;
  localStorage.setItem("theme", name);
  byId("theme").setAttribute("aria-label", `Colours: ${name || "as the system"}`);
  document.dispatchEvent(new CustomEvent("look"));
}

export function startKeys() {
  byId("help-table").replaceChildren(make("tbody", null, "", ...KEYS.map(([keys, what]) => make("tr", null, "", make("th", null, "left", make("kbd", keys)), make("td", what, "text")))));
  document.addEventListener("keydown", pressed);
  byId("help-open").addEventListener("click", () => byId("help").showModal());
  byId("keys-on").checked = localStorage.getItem("keys") !== "off";
  byId("keys-on").addEventListener("change", (event) => localStorage.setItem("keys", event.target.checked ? "on" : "off"));
  byId("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || "") + 1) % THEMES.length]));
  theme(localStorage.getItem("theme") || "");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new CustomEvent("look")));
}
