// The quota page of an admin: preview, then apply exactly what was previewed.
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
let previewed = null; // the text that was looked at, and whether it fits

// Why it cannot be applied now, beside the button; nothing where it can.
function whyNot() {
  if (previewed === null) return "Preview it first.";
  if (text.value !== previewed.text) return "The text was changed after the preview: preview it again.";
  if (!previewed.readable) return "It cannot be read; see below.";
  if (previewed.stale) return "Another revision is in force by now: load the page anew, and make the edit there.";
  if (!previewed.acceptable) return "Its quotas contradict each other; see below.";
  if (!previewed.fits && !overcommit.checked) return "It does not fit: lower a quota, or accept that it does not.";
  if (!previewed.keeps && !removal.checked) return "It takes out what has work: leave that in, or accept it.";
  return previewed.stopsNothing || stops.checked ? "" : "It ends work that runs: ask for less, or accept it.";
}

function judge() {
  const reason = whyNot();
  apply.disabled = reason !== "";
  if (why.textContent !== reason) why.textContent = reason;
}

const madeFrom = () => ({ "If-Match": `"${form.dataset.revision}"` });
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
    const asked = edit();
    const view = await call("POST", "quota/preview", asked, madeFrom());
    const moved = view.affected.map((one) => one.message);
    show([
      ...list("Was made from another revision", view.stale ? [view.stale] : []),
      ...list("Does not fit", view.refusals),
      ...list("Takes out what has work", view.removals),
      ...list("Ends work that runs", view.stops),
      ...list("Warnings: they refuse nothing", view.warnings),
      ...list("Arithmetic", view.arithmetic),
      ...list("What changes in the calendar", view.calendar),
      ...list("Whose work it touches", moved.length ? moved : ["Nobody's."]),
    ]);
    const fits = !view.refusals.length;
    const keeps = !view.removals.length;
    const stopsNothing = !view.stops.length;
    const { stale, acceptable } = view;
    previewed = { text: asked.text, readable: true, stale, fits, keeps, stopsNothing, acceptable };
  } catch (error) {
    show(list("This cannot be read", error.message.split("\n")));
    previewed = { text: text.value, readable: false, fits: false };
  }
  judge();
});

text.addEventListener("input", judge);
overcommit.addEventListener("change", judge);
removal.addEventListener("change", judge);
stops.addEventListener("change", judge);
judge();

apply.addEventListener("click", async () => {
  try {
    const view = await call("PUT", "quota", edit(), madeFrom());
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
