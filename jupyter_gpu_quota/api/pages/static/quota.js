// The quota page of an admin: preview an edit, then apply exactly that edit.
import { call, say } from "./api.js";

const form = document.getElementById("quota-form");
const text = document.getElementById("quota-text");
const apply = document.getElementById("quota-apply");
const shown = document.getElementById("preview");
const says = document.getElementById("preview-says");
const why = document.getElementById("quota-why");
const overcommit = document.getElementById("quota-overcommit");
const removal = document.getElementById("quota-removal");
const stops = document.getElementById("quota-stops");
let previewed = null; // the previewed text, and the results that allow applying it

// Why the edit cannot be applied now; empty if it can.
function whyNot() {
  if (previewed === null) return "Preview it first.";
  if (text.value !== previewed.text) return "The text was changed after the preview: preview it again.";
  if (!previewed.readable) return "It cannot be read; see below.";
  if (previewed.stale) return "Another revision is in force by now: reload the page and edit that one.";
  if (!previewed.acceptable) return "Its quotas contradict each other; see below.";
  if (!previewed.fits && !overcommit.checked) return "It does not fit: lower a quota, or accept that.";
  if (!previewed.keeps && !removal.checked) return "It removes projects or pools that have work: restore them, or accept that.";
  return previewed.stopsNothing || stops.checked ? "" : "It stops running work: require a weaker enforcement, or accept that.";
}

function update() {
  const reason = whyNot();
  apply.disabled = reason !== "";
  if (why.textContent !== reason) why.textContent = reason;
}

const ifMatch = () => ({ "If-Match": `"${form.dataset.revision}"` });
const edit = () => ({
  text: text.value,
  comment: document.getElementById("quota-comment").value,
  accept_overcommit: overcommit.checked,
  accept_removal: removal.checked,
  accept_stops: stops.checked,
});

function list(heading, lines) {
  if (!lines.length) return [];
  const title = document.createElement("h3");
  title.textContent = heading;
  const items = document.createElement("ul");
  for (const line of lines) {
    const item = document.createElement("li");
    item.textContent = line;
    items.append(item);
  }
  return [title, items];
}

function show(parts) {
  shown.hidden = false;
  says.replaceChildren(...parts);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    const previewing = edit();
    const view = await call("POST", "quota/preview", previewing, ifMatch());
    const affected = view.affected.map((one) => one.message);
    show([
      ...list("Changes", view.unchanged ? ["The file is the same as the one in force."] : view.changes),
      ...list("Based on another revision", view.stale ? [view.stale] : []),
      ...list("Does not fit", view.refusals),
      ...list("Removes projects or pools with work", view.removals),
      ...list("Stops running work", view.stops),
      ...list("Warnings (the edit can be applied)", view.warnings),
      ...list("Arithmetic", view.arithmetic),
      ...list("Changes in the calendar", view.calendar),
      ...list("Affected work", affected.length ? affected : ["none"]),
    ]);
    const fits = !view.refusals.length;
    const keeps = !view.removals.length;
    const stopsNothing = !view.stops.length;
    const { stale, acceptable } = view;
    previewed = { text: previewing.text, readable: true, stale, fits, keeps, stopsNothing, acceptable };
  } catch (error) {
    show(list("This cannot be read", error.message.split("\n")));
    previewed = { text: text.value, readable: false, fits: false };
  }
  update();
});

text.addEventListener("input", update);
overcommit.addEventListener("change", update);
removal.addEventListener("change", update);
stops.addEventListener("change", update);
update();

apply.addEventListener("click", async () => {
  try {
    const view = await call("PUT", "quota", edit(), ifMatch());
    say([`Revision ${view.revision} is in force.`, ...view.warnings].join(" "));
    setTimeout(() => location.reload(), view.warnings.length ? 10_000 : 700);
  } catch (error) {
    say(error.message);
  }
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-revert]");
  if (!button || !window.confirm(`Put revision ${button.dataset.revert} in force again?`)) return;
  const flags = [...(removal.checked ? ["accept_removal=1"] : []), ...(stops.checked ? ["accept_stops=1"] : [])];
  const accepts = flags.length ? `?${flags.join("&")}` : "";
  try {
    await call("POST", `quota/revisions/${button.dataset.revert}/actions/revert${accepts}`);
    location.reload();
  } catch (error) {
    say(error.message);
  }
});
