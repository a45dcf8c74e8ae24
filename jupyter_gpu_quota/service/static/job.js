// One job: its log as it is written, and its loss as it falls.
import { eventsUrl } from "./api.js";

const LONGEST_SHOWN = 400000;
const SILENT_TOO_LONG_MS = 12000;
const log = document.getElementById("log");
const says = document.getElementById("log-says");

function append(text) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.append(text);
  while (log.textContent.length > LONGEST_SHOWN && log.childNodes.length > 1) log.firstChild.remove();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function follow(attempt, offset, backoff = 1000) {
  const query = attempt > 0 ? { follow: 1, offset } : { follow: 1 };
  const stream = new EventSource(eventsUrl(`jobs/${log.dataset.job}/logs`, query));
  let here = attempt, at = offset, pause = backoff, silence = 0;
  const alive = () => {
    clearTimeout(silence);
    silence = setTimeout(() => stream.onerror(), SILENT_TOO_LONG_MS);
  };
  alive();
  stream.addEventListener("beat", alive);
  stream.addEventListener("log", (event) => {
    const part = JSON.parse(event.data);
    alive();
    if (part.attempt !== here) {
      if (here > 0) append(`\n── attempt ${part.attempt} ──\n`);
      here = part.attempt;
    }
    at = part.offset;
    pause = 1000;
    says.textContent = `attempt ${here}, live`;
    append(part.text);
  });
  stream.addEventListener("end", (event) => {
    clearTimeout(silence);
    stream.close();
    says.textContent = `attempt ${here}, ${JSON.parse(event.data).state}`;
  });
  stream.onerror = () => {
    clearTimeout(silence);
    stream.close();
    setTimeout(() => follow(here, at, Math.min(30000, pause * 2)), pause);
  };
}

log.scrollTop = log.scrollHeight;
if (!log.dataset.over) follow(Number(log.dataset.attempt), Number(log.dataset.offset));

// --- loss ---------------------------------------------------------------------------------------------------------
const chart = document.getElementById("chart");
const key = `gpu-quota:loss:${chart.dataset.job}`;
const points = new Map(JSON.parse(sessionStorage.getItem(key) || "[]"));
const SVG = "http://www.w3.org/2000/svg";

function draw() {
  const seen = [...points].sort((a, b) => a[0] - b[0]);
  chart.hidden = seen.length < 2;
  if (chart.hidden) return;
  const [left, right, top, bottom] = [52, 590, 12, 150];
  const values = seen.map(([, loss]) => loss);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const [from, to] = [seen[0][0], seen.at(-1)[0]];
  const x = (done) => left + ((done - from) / (to - from || 1)) * (right - left);
  const y = (loss) => bottom - ((loss - low) / (high - low || 1)) * (bottom - top);
  document.getElementById("chart-line").setAttribute("points", seen.map(([d, l]) => `${x(d).toFixed(1)},${y(l).toFixed(1)}`).join(" "));
  const grid = document.getElementById("chart-grid");
  grid.replaceChildren();
  for (const value of [low, (low + high) / 2, high]) {
    const line = document.createElementNS(SVG, "line");
    for (const [name, at] of Object.entries({ x1: left, x2: right, y1: y(value), y2: y(value) })) line.setAttribute(name, at);
    grid.append(line, label(left - 6, y(value) + 4, "end", value.toPrecision(3)));
  }
  grid.append(label(left, bottom + 20, "start", String(from)), label(right, bottom + 20, "end", String(to)));
  document.getElementById("chart-says").textContent =
    `Loss from ${values[0].toPrecision(3)} at ${from} to ${values.at(-1).toPrecision(3)} at ${to}.`;
}

function label(x, y, anchor, text) {
  const node = document.createElementNS(SVG, "text");
  node.setAttribute("x", x);
  node.setAttribute("y", y);
  node.setAttribute("text-anchor", anchor);
  node.textContent = text;
  return node;
}

document.addEventListener("gpu-quota:changed", (event) => {
  const job = (event.detail.jobs || []).find((one) => one.id === chart.dataset.job);
  if (!job || typeof job.metrics.loss !== "number" || !job.progress) return;
  points.set(job.progress.done, job.metrics.loss);
  sessionStorage.setItem(key, JSON.stringify([...points].slice(-500)));
  draw();
});
draw();
