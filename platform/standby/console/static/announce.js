// What somebody who does not see the ladder should hear: who became ready and who failed, a sentence at a time.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

const SPOKEN = { ready: "is ready", failed: "failed", asleep: "fell asleep" };
const MOST = 3;
const PAUSE_MS = 2000;

export function Announcer({ store, state }) {
  const [text, setText] = useState("");
  const before = useRef(new Map());
  const waiting = useRef([]);
  useEffect(() => {
    before.current = states(store);
    const end = store.subscribe(["instances"], () => {
      const now = states(store);
      for (const [id, { state: after, endpoint }] of now) {
        const was = before.current.get(id);
        if (was && was.state !== after && SPOKEN[after]) waiting.current.push(`${endpoint} ${SPOKEN[after]}`);
      }
      before.current = now;
    });
    const timer = setInterval(() => {
      if (waiting.current.length === 0) return;
      const said = waiting.current.slice(0, MOST).join(", ");
      const more = waiting.current.length - MOST;
      waiting.current = [];
      setText(more > 0 ? `${said} and ${more} more` : said);
    }, PAUSE_MS);
    return () => {
      end();
      clearInterval(timer);
    };
  }, [store]);
  return html`<div class="hidden" aria-live="polite">${state.phase === "live" ? text : ""}</div>`;
}

const states = (store) =>
  new Map([...store.instances].map(([id, { state, endpoint }]) => [id, { state, endpoint }]));
