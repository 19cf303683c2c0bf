// The page behind the form: which panels there are and what they share, which is the chosen endpoint.

import { html, useCallback, useState } from "./vendor/preact-htm.js";
import { Announcer } from "./announce.js";
import { Decisions } from "./decisions.js";
import { Endpoints } from "./endpoints.js";
import { Events } from "./events.js";
import { Banner, Header } from "./header.js";
import { useStore } from "./hooks.js";
import { Ladder } from "./ladder.js";
import { Nodes } from "./nodes.js";
import { Savings } from "./savings.js";
import { Totals, Traffic } from "./traffic.js";
import { TryIt } from "./tryit.js";
import { Waterfall } from "./waterfall.js";

export function Board({ feed, store, session, state, signOut }) {
  useStore(store, "who", "endpoints-names");
  const [wanted, choose] = useState("");
  // An endpoint that is deleted while it is chosen must not leave the other panels empty.
  const chosen = store.endpoints.has(wanted) ? wanted : "";
  const pick = useCallback((key) => choose((before) => (before === key ? "" : key)), []);
  return html`<div class="board">
    <${Header} store=${store} state=${state} session=${session} signOut=${signOut} />
    <${Banner} store=${store} state=${state} feed=${feed} />
    <main>
      <h1 class="hidden">standby console</h1>
      <${Totals} store=${store} />
      <${Ladder} store=${store} chosen=${chosen} pick=${pick} />
      <${TryIt} store=${store} session=${session} chosen=${chosen} />
      <${Waterfall} store=${store} chosen=${chosen} />
      <${Endpoints} store=${store} chosen=${chosen} pick=${pick} />
      <${Traffic} store=${store} />
      <${Decisions} store=${store} chosen=${chosen} />
      <${Savings} store=${store} />
      ${store.who.admin && html`<${Nodes} store=${store} />`}
      <${Events} store=${store} chosen=${chosen} />
    </main>
    <${Announcer} store=${store} state=${state} />
  </div>`;
}
