// Updates a page: the event stream reports a change, and the parts marked data-live are replaced from a fresh copy of
// the page. Unchanged nodes are not replaced, so that focus, selection and scrolling are preserved.
import { eventsUrl, page } from "./api.js";
import { showTimes } from "./times.js";

const AT_MOST_EVERY_MS = 1500;
const REST_WHEN_HIDDEN_MS = 30000;
const LONGEST_BACKOFF_MS = 30000;
const SILENT_TOO_LONG_MS = 12000; // A heartbeat comes every 5 s; a proxy may keep a connection open whose other end is gone.

const banner = document.getElementById("banner-stream");
const says = document.getElementById("banner-says");
const again = document.getElementById("try-again");
const state = { stream: null, lastId: document.body.dataset.version, backoff: 1000, due: 0, fetching: false, again: false, resting: 0, over: false };

export function replaceKeyed(now, fresh) {
  if (now.isEqualNode(fresh)) return;
  const keyed = (node) => [...node.children].filter((child) => child.id);
  const freshById = new Map(keyed(fresh).map((child) => [child.id, child]));
  const same = keyed(now).length > 0 && keyed(now).length === now.children.length
    && keyed(fresh).length === fresh.children.length && now.cloneNode(false).isEqualNode(fresh.cloneNode(false))
    && keyed(now).length === freshById.size && keyed(now).every((child, at) => fresh.children[at].id === child.id);
  if (same) {
    for (const child of keyed(now)) replaceKeyed(child, freshById.get(child.id));
    return;
  }
  const rows = now.tBodies || now.tagName === "TBODY";
  const inner = !rows && now.cloneNode(false).isEqualNode(fresh.cloneNode(false)) && now.children.length === fresh.children.length
    && [...now.childNodes].every((node) => node.nodeType === 1 || !node.textContent.trim());
  if (inner && now.children.length) {
    const others = [...fresh.children]; // a copy: a node that replaces a child is removed from the fresh list
    [...now.children].forEach((child, at) => replaceKeyed(child, others[at]));
    return;
  }
  const focused = now.contains(document.activeElement) ? document.activeElement : null;
  if (focused === now && now.id === fresh.id && now.tagName === fresh.tagName) { become(now, fresh); return; }
  now.replaceWith(fresh);
  if (focused) (document.getElementById(focused.id) ?? document.getElementById(focused.dataset.after))?.focus();
}

// The focused control is updated in place, so that it keeps the focus.
function become(now, fresh) {
  for (const name of now.getAttributeNames()) if (!fresh.hasAttribute(name)) now.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) now.setAttribute(name, fresh.getAttribute(name));
  now.replaceChildren(...fresh.childNodes);
}

async function refresh() {
  if (state.over) return;
  if (state.fetching || document.hidden) { state.again = true; return; }
  state.fetching = true;
  try {
    const answer = await page(location.href);
    if (answer.ok) {
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live]")) {
        const other = fresh.getElementById(part.id);
        if (other) replaceKeyed(part, document.importNode(other, true));
      }
      showTimes();
    } else if (answer.status === 401 || answer.redirected) {
      stop("Your login has ended. Load the page again to log in.");
    } else if (answer.status < 500) {
      stop("This page no longer exists, or you may not see it now.");
    }
  } catch {
    // The banner of the stream reports a service that cannot be reached.
  } finally {
    state.fetching = false;
    if (state.again) { state.again = false; soon(); }
  }
}

function soon() {
  if (state.due) return;
  state.due = setTimeout(() => { state.due = 0; refresh(); }, AT_MOST_EVERY_MS);
}

function show(text) {
  banner.hidden = !text;
  if (says.textContent !== text) says.textContent = text;
}

// The service would refuse the next request as well, so the page stops until the user tries again.
function stop(text) {
  state.over = true;
  state.stream?.close();
  state.stream = null;
  show(text);
  again.hidden = false;
}

function open() {
  if (state.over) return;
  const query = state.lastId ? { since: state.lastId } : {};
  const stream = new EventSource(eventsUrl("events", query));
  state.stream = stream;
  let first = true, silence = 0;
  const alive = () => {
    clearTimeout(silence);
    silence = setTimeout(() => stream.onerror(), SILENT_TOO_LONG_MS);
  };
  const changed = (event) => {
    alive();
    const change = JSON.parse(event.data);
    if (!first || !banner.hidden || [change.jobs, change.notebooks, change.devices].some((part) => part?.length)) soon();
    first = false;
    state.backoff = 1000;
    show("");
    state.lastId = event.lastEventId || state.lastId;
    document.dispatchEvent(new CustomEvent("gpu-quota:changed", { detail: change }));
  };
  stream.addEventListener("changed", changed);
  stream.addEventListener("reset", (event) => { changed(event); soon(); });
  stream.addEventListener("beat", alive);
  alive();
  stream.onerror = () => {
    clearTimeout(silence);
    stream.close();
    if (state.stream !== stream) return;
    state.stream = null;
    show("The connection to the service is lost; this page may be outdated. Trying again.");
    setTimeout(() => { if (!state.stream && !document.hidden) open(); }, state.backoff);
    state.backoff = Math.min(LONGEST_BACKOFF_MS, state.backoff * 2);
  };
}

function rest() {
  if (document.hidden) {
    state.resting = setTimeout(() => { state.stream?.close(); state.stream = null; }, REST_WHEN_HIDDEN_MS);
    return;
  }
  clearTimeout(state.resting);
  if (!state.stream) open();
  soon();
}

document.documentElement.classList.add("scripted");
document.addEventListener("click", (event) => { if (event.target.closest("[data-try-again]")) location.reload(); });
if (document.body.dataset.xsrf && !("still" in document.body.dataset)) {
  document.addEventListener("visibilitychange", rest);
  document.addEventListener("gpu-quota:acted", () => refresh());
  open();
}
showTimes();
