// The REST door from a page: one place that knows its address, the login's token and how errors look.
const { api, xsrf } = document.body.dataset;

export const eventsUrl = (path, query = {}) =>
  `${api}${path}?${new URLSearchParams({ ...query, _xsrf: xsrf })}`;

export async function call(method, path, body, headers = {}) {
  const answer = await fetch(api + path, {
    method,
    headers: { "X-XSRFToken": xsrf, "Content-Type": "application/json", ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const found = await answer.json().catch(() => ({ message: `The service answered ${answer.status}.` }));
  if (!answer.ok) throw new Error(found.message);
  return found;
}

export const page = (url) => fetch(url, { headers: { "X-XSRFToken": xsrf, Accept: "text/html" } });

export function say(text) {
  const place = document.getElementById("said");
  place.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (place.textContent = ""), 6000);
}
