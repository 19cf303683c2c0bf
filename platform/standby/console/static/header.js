// The bar on top: who is signed in, whether the data are live, the theme, and the way out.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { clock } from "./format.js";
import { useStore } from "./hooks.js";
import { ALL } from "./session.js";

const THEMES = { auto: "light", light: "dark", dark: "auto" };
const NAME = "standby-theme";

const SECTIONS = [
  ["ladder", "Ladder"],
  ["tryit", "Try it"],
  ["activations", "Activations"],
  ["endpoints", "Endpoints"],
  ["traffic", "Traffic"],
  ["decisions", "Decisions"],
  ["savings", "Savings"],
  ["nodes", "Nodes"],
  ["events", "Events"],
];

export function Header({ store, state, session, signOut }) {
  useStore(store, "who", "bus", "at");
  const live = state.phase === "live" && store.bus.connected !== false;
  const tenant = session.tenant === ALL ? "all tenants" : session.tenant || store.who.tenant;
  return html`<header class="top">
    <a class="skip" href="#ladder">Skip to the ladder</a>
    <span class="brand"><img src="icon.svg" alt="" width="24" height="24" />standby</span>
    <nav aria-label="Sections">
      ${SECTIONS.filter(([id]) => id !== "nodes" || store.who.admin).map(
        ([id, word]) => html`<a key=${id} href=${`#${id}`}>${word}</a>`,
      )}
    </nav>
    <span class=${`live ${live ? "is-live" : "is-lost"}`}>
      <span class="dot" aria-hidden="true"></span>${live ? "live" : state.phase === "live" ? "no bus" : "lost"}
      <time class="muted">${clock(store.at)}</time>
    </span>
    <span class="who" title=${`gateway ${store.who.gateway}`}>
      ${store.who.admin ? "admin" : "tenant"} <bdi class="mono">${tenant}</bdi>
    </span>
    <${ThemeToggle} />
    <button type="button" onClick=${signOut}>Sign out</button>
  </header>`;
}

export function Banner({ store, state, feed }) {
  useStore(store, "bus", "at");
  const lost = state.phase !== "live";
  const away = !lost && store.bus.connected === false;
  return html`<div role="status" aria-live="polite" class=${lost || away ? "banner" : "banner empty"}>
    ${lost &&
    html`<span>Connection lost, data from ${clock(store.at)}. Trying again… <span class="muted">(${state.message})</span></span>
      <button type="button" onClick=${() => feed.retry()}>Try now</button>`}
    ${away && html`<span>The gateway has lost its bus: it goes on serving what is warm, and what is shown may be old.</span>`}
  </div>`;
}

function ThemeToggle() {
  const [theme, setTheme] = useState(stored);
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
      localStorage.setItem(NAME, theme);
    } catch {
      // Without storage the choice lasts for this page only.
    }
    dispatchEvent(new Event("standby-theme"));
  }, [theme]);
  return html`<button type="button" class="theme" aria-label=${`Theme: ${theme}. Change`} title="Theme: automatic, light, dark"
    onClick=${() => setTheme(THEMES[theme])}>
    <span aria-hidden="true">${{ auto: "◐", light: "☀", dark: "☾" }[theme]}</span><span class="theme-word">${theme}</span>
  </button>`;
}

function stored() {
  try {
    const found = localStorage.getItem(NAME);
    return found in THEMES ? found : "auto";
  } catch {
    return "auto";
  }
}
