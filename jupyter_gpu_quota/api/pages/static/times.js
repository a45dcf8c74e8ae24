// Instants as relative times, with the exact local time as tooltip.
const STEPS = [[60, "second", 1], [3600, "minute", 60], [86400, "hour", 3600], [Infinity, "day", 86400]];
const relative = new Intl.RelativeTimeFormat(document.documentElement.lang, { numeric: "auto" });

export function showTimes() {
  for (const time of document.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    const seconds = (at - Date.now()) / 1000;
    const [, unit, size] = STEPS.find(([below]) => Math.abs(seconds) < below);
    const words = relative.format(Math.round(seconds / size), unit);
    if (time.textContent !== words) time.textContent = words;
    time.title = at.toLocaleString();
  }
}

setInterval(showTimes, 15000);
