// One reading of the GPUs or of the host over the last hours; a line per device.

import { byId } from "./base.js";
import { get, live } from "./net.js";
import { Plot } from "./plot.js";

const MOST_LINES = 8;
const plot = new Plot(byId("readings"), { height: 220, time: true });
let shown = null; // what is drawn: { name, title, entities: [[label, entity]] }

export function showReading(name, title, entities) {
  shown = { name, title, entities: entities.slice(0, MOST_LINES) };
  return refreshReading();
}

export async function refreshReading() {
  if (!shown || !live.news || document.hidden) return;
  const { name, title, entities } = shown, minutes = byId("minutes").value;
  for (const id of ["readings", "readings-span"]) byId(id).hidden = false;
  try {
    const answers = await Promise.all(entities.map(([, entity]) => get("readings", { run: live.news.run_id, entity, signal: name, minutes })));
    if (name !== shown.name) return;
    plot.draw(answers.map((one, index) => ({ label: entities[index][0], steps: one.seconds, low: one.low, high: one.high, bad: one.seconds.filter((_, at) => one.nonfinite[at] > 0) })));
    byId("readings").dataset.signal = name;
    byId("readings").setAttribute("aria-label", `${title} over the last ${minutes} minutes`);
    byId("readings-title").textContent = answers.some((one) => one.seconds.length) ? title : `${title}: the history holds no reading of the last ${minutes} minutes.`;
  } catch (error) {
    byId("readings-title").textContent = error.message;
  }
}

byId("minutes").addEventListener("change", refreshReading);
