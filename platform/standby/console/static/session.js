// The key lives in this tab's sessionStorage only: it ends with the tab, on sign out, and when it is refused.

const NAME = "standby-session";
// What an administrator gives as the tenant to see all of them.
export const ALL = "all";

export function load() {
  try {
    const found = JSON.parse(sessionStorage.getItem(NAME));
    return found && typeof found.key === "string" ? { key: found.key, tenant: String(found.tenant || "") } : null;
  } catch {
    return null;
  }
}

export function save(session) {
  try {
    sessionStorage.setItem(NAME, JSON.stringify(session));
  } catch {
    // Storage is switched off: the key then lasts until the page is loaded anew.
  }
  return session;
}

export function clear() {
  try {
    sessionStorage.removeItem(NAME);
  } catch {
    // Nothing could be kept, so nothing is left.
  }
}

export function headers(session, more = {}) {
  const found = { authorization: `Bearer ${session.key}`, ...more };
  if (session.tenant && session.tenant !== ALL) found["x-standby-tenant"] = session.tenant;
  return found;
}

// Relative to the page, so that a proxy may serve the gateway below a path of its own.
export const address = (path) => new URL(`../${path}`, document.baseURI).href;
