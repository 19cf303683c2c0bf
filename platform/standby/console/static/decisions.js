// What the controller decided and why, in its own words.

import { html } from "./vendor/preact-htm.js";
import { clock } from "./format.js";
import { useStore } from "./hooks.js";
import { Panel } from "./panel.js";
import { endpointKey } from "./store.js";

export function Decisions({ store, chosen }) {
  useStore(store, "decisions");
  const shown = store.decisions.filter((one) => !chosen || endpointKey(one) === chosen);
  return html`<${Panel} id="decisions" title=${chosen ? `Decisions of ${store.endpoints.get(chosen)?.name}` : "Decisions"} aside=${html`<span class="muted small">newest first</span>`}>
    <ul class="lines scroll" tabindex="0" aria-label="Decisions, newest first">
      ${shown.map(
        (one) => html`<li key=${one.id}>
          <time class="muted mono">${clock(one.at)}</time>
          <div><strong>${one.action}</strong> <bdi class="subject">${one.endpoint}</bdi><p>${one.reason}</p></div>
        </li>`,
      )}
    </ul>
    ${shown.length === 0 && html`<p class="empty-word">No decision yet.</p>`}
  <//>`;
}
