// One job: its log and its loss, live.
import { eventsUrl } from "./api.js";

const LONGEST_SHOWN = 400000;
const SHOWN_AT_FIRST = 262144; // bytes of an earlier log, from its end
const SILENT_TOO_LONG_MS = 12000;
const log = document.getElementById("log");
const says = document.getElementById("log-says");
const which = document.getElementById("log-which");
const cut = document.getElementById("log-cut"); // says that the beginning is not shown
const state = { stream: null, newest: Number(log.dataset.newest), onward: true, ended: false, attempt: 0, rank: 0 };

function append(text) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.append(text);
  while (log.textContent.length > LONGEST_SHOWN && log.childNodes.length > 1) {
    log.firstChild.remove();
    cut.hidden = false;
  }
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function status(text) {
  if (says.textContent !== text) says.textContent = text;
}

function reached(attempt) {
  if (attempt === state.attempt) return;
  offer(attempt);
  if (state.attempt > 0) append(`\n── attempt ${attempt} ──\n`);
  state.attempt = attempt;
  which.value = `${attempt}.${state.rank}`;
  name();
}

// The command that prints the shown log.
function name() {
  document.getElementById("log-cut-of").textContent = `--attempt ${state.attempt} --rank ${state.rank}`;
}

// One log at a time: a later call replaces the stream of an earlier one.
function follow(offset, backoff = 1000) {
  state.stream?.close();
  const query = { follow: 1, rank: state.rank, offset, ...(state.attempt > 0 && { attempt: state.attempt }) };
  const stream = new EventSource(eventsUrl(`jobs/${log.dataset.job}/logs`, query));
  Object.assign(state, { stream, ended: false });
  let at = offset, pause = backoff, silence = 0;
  const alive = () => {
    clearTimeout(silence);
    silence = setTimeout(() => stream.onerror(), SILENT_TOO_LONG_MS);
  };
  const current = (handle) => (event) => { if (state.stream === stream) handle(event); };
  alive();
  stream.addEventListener("beat", alive);
  stream.addEventListener("log", current((event) => {
    const part = JSON.parse(event.data);
    alive();
    if (log.childNodes.length === 0) cut.hidden = part.begins === 0;
    reached(part.attempt);
    at = part.offset;
    pause = 1000;
    status("live");
    append(part.text);
  }));
  stream.addEventListener("end", current((event) => {
    clearTimeout(silence);
    stream.close();
    const end = JSON.parse(event.data);
    const last = state.attempt >= Math.max(state.newest, end.attempt);
    state.ended = true;
    const result = ["succeeded", "failed"].includes(end.state) ? end.state : `is ${end.state}`;
    status(last ? `the job ${result}` : "this attempt has ended");
    onward();
  }));
  stream.onerror = () => {
    clearTimeout(silence);
    stream.close();
    if (state.stream === stream) setTimeout(() => { if (state.stream === stream) follow(at, Math.min(30000, pause * 2)); }, pause);
  };
}

// The log of the newest attempt continues with the next one; that of an earlier attempt does not.
function onward() {
  if (!state.onward || !state.ended || state.attempt >= state.newest) return;
  if (state.rank >= Number(log.dataset.ranks)) state.rank = 0;  // an elastic job may continue with fewer
  reached(state.attempt + 1);
  follow(0);
}

function offer(attempt) {
  state.newest = Math.max(state.newest, attempt);
  document.getElementById("log-form").hidden = false;
  const ranks = Number(log.dataset.ranks);
  for (let rank = ranks - 1; rank >= 0; rank--) {
    if ([...which.options].some((option) => option.value === `${attempt}.${rank}`)) continue;
    which.prepend(new Option(`attempt ${attempt}${ranks > 1 ? `, rank ${rank}` : ""}`, `${attempt}.${rank}`));
  }
}

which.addEventListener("change", () => {
  [state.attempt, state.rank] = which.value.split(".").map(Number);
  state.onward = state.attempt === state.newest;
  log.replaceChildren();
  cut.hidden = true;
  name();
  status("");
  history.replaceState(null, "", `?log=${which.value}`);
  follow(-SHOWN_AT_FIRST);
});

document.addEventListener("gpu-quota:changed", (event) => {
  const job = (event.detail.jobs || []).find((one) => one.id === log.dataset.job);
  if (!job || job.attempt <= state.newest) return;
  log.dataset.ranks = job.held_ranks || job.ranks;
  offer(job.attempt);
  if (state.attempt > 0) which.value = `${state.attempt}.${state.rank}`;
  onward();
});

log.scrollTop = log.scrollHeight;
Object.assign(state, { attempt: Number(log.dataset.attempt), rank: Number(log.dataset.rank) });
state.onward = state.attempt === state.newest;
if (!log.dataset.over) follow(Number(log.dataset.offset));

// --- loss ---------------------------------------------------------------------------------------------------------
const chart = document.getElementById("chart");
const key = `gpu-quota:loss:${chart.dataset.job}`;
const points = new Map(JSON.parse(sessionStorage.getItem(key) || "[]"));
const SVG = "http://www.w3.org/2000/svg";

function draw() {
  const seen = [...points].sort((a, b) => a[0] - b[0]);
  chart.hidden = seen.length < 2;
  if (chart.hidden) return;
  const [left, right, top, bottom] = [84, 590, 12, 150];
  const values = seen.map(([, loss]) => loss);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const margin = most > least ? 0 : Math.abs(most) / 10 || 1;  // a flat line runs through the middle
  const [low, high] = [least - margin, most + margin];
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
