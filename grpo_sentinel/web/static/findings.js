// What fires: every root with its chain, why it matters and what to try.

import { byId, make, number, plural, ranksText, whenChanged } from "./base.js";
import { chainsOf } from "./verdict.js";

const showing = (signal, step) => document.dispatchEvent(new CustomEvent("show-signal", { detail: { signal, step } }));

function facts(finding) {
  const out = [`${finding.layer} layer`, ranksText(finding.ranks), `since step ${finding.onset_step}`];
  if (finding.step !== finding.onset_step) out.push(`told at step ${finding.step}`);
  if (finding.subject) out.push(finding.subject);
  if (finding.value !== null) out.push(`${finding.signal} = ${number(finding.value)}` + (finding.limit === null ? "" : `, limit ${number(finding.limit)}`));
  return out.join(" · ");
}

export function findingElement(finding, followers, open = new Set()) {
  const title = make("div", null, "finding-title", make("span", finding.severity, `badge ${finding.severity}`), " ", make("strong", finding.message));
  const box = make("article", null, `finding ${finding.severity}`, title, make("div", facts(finding), "quiet"));
  box.tabIndex = -1;
  box.dataset.id = finding.finding_id;
  if (finding.signal) {
    const button = make("button", "Show in the chart", "small");
    button.type = "button";
    button.setAttribute("aria-label", `Show ${finding.signal} in the chart`);
    button.addEventListener("click", () => showing(finding.signal, finding.onset_step));
    box.append(button);
  }
  if (finding.why || finding.remedies.length) {
    const more = make("details", null, "", make("summary", "Why it matters and what to try"));
    more.dataset.key = finding.finding_id;
    more.open = open.has(finding.finding_id);
    if (finding.why) more.append(make("p", finding.why));
    if (finding.remedies.length) more.append(make("ul", null, "", ...finding.remedies.map((text) => make("li", text))));
    more.append(make("p", `rule ${finding.rule}`, "quiet"));
    box.append(more);
  }
  if (followers.length) {
    const chain = make("div", null, "chain", make("h3", `What followed from it`));
    followers.forEach((one) => chain.append(findingElement(one, [], open)));
    box.append(chain);
  }
  return box;
}

export function drawFindings(news) {
  whenChanged("findings", [news.run_id, news.findings], () => {
    const target = byId("findings-list"), told = chainsOf(news);
    const open = new Set([...target.querySelectorAll("details[open]")].map((one) => one.dataset.key));
    if (!target.childElementCount && told.length) open.add(told[0].root.finding_id); // the first one is read without a click
    target.replaceChildren(...(told.length
      ? told.map(({ root, followers }) => findingElement(root, followers, open))
      : [make("p", "Nothing fires.", "quiet")]));
    byId("findings-title").textContent = news.findings.length ? `Findings: ${plural(news.findings.length, "fires", "fire")}` : "Findings";
  });
}

// Moves the focus to the next or previous finding.
export function stepFindings(by) {
  const all = [...byId("findings-list").querySelectorAll(".finding")];
  const at = all.findIndex((one) => one.contains(document.activeElement));
  const next = all[Math.max(0, Math.min(all.length - 1, at + by))];
  if (next) { next.focus(); next.scrollIntoView({ block: "nearest" }); }
}
