// Calls of the REST API from a page: its address, the token of the login, and the format of errors.
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
  const toast = document.getElementById("said");
  toast.textContent = text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (toast.textContent = ""), 6000);
}
