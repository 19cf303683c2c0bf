// What happened, newest first; kinds can be left out.

import { html, useState } from "./vendor/preact-htm.js";
import { clock } from "./format.js";
import { useStore } from "./hooks.js";
import { Panel } from "./panel.js";
import { endpointKey } from "./store.js";
import { kindClass } from "./words.js";

export function Events({ store, chosen }) {
  useStore(store, "events");
  const [kind, setKind] = useState("");
  const kinds = [...new Set(store.events.map((one) => one.kind))].sort();
  const shown = store.events.filter((one) => (!kind || one.kind === kind) && (!chosen || endpointKey(one) === chosen));
  const filter = html`<div class="filters" role="group" aria-label="Kinds of events">
    ${["", ...kinds].map(
      (one) => html`<button key=${one} type="button" class="toggle" aria-pressed=${kind === one} onClick=${() => setKind(one)}>${one || "all"}</button>`,
    )}
  </div>`;
  return html`<${Panel} id="events" title=${chosen ? `Events of ${store.endpoints.get(chosen)?.name}` : "Events"} wide aside=${filter}>
    <ul class="lines scroll" tabindex="0" aria-label="Events, newest first">
      ${shown.map(
        (one) => html`<li key=${one.id}>
          <time class="muted mono">${clock(one.at)}</time>
          <div><span class=${`kind ${kindClass(one.kind)}`}>${one.kind}</span> <bdi class="subject">${one.endpoint}</bdi> <span>${one.text}</span></div>
        </li>`,
      )}
    </ul>
    ${shown.length === 0 && html`<p class="empty-word">Nothing has happened yet.</p>`}
  <//>`;
}
