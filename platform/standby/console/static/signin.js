// The form that stands before everything: a key, and for administrators the tenant whose names are meant.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

export function SignIn({ state, waiting, signIn, cancel }) {
  const key = useRef(null);
  const tenant = useRef(null);
  const [empty, setEmpty] = useState(false);
  useEffect(() => {
    // The button that was pressed has lost the focus while it was switched off.
    if (state.phase === "refused") key.current.focus();
  }, [state]);
  const send = (submit) => {
    submit.preventDefault();
    const given = key.current.value.trim();
    setEmpty(given === "");
    if (given === "") key.current.focus();
    else signIn(given, tenant.current.value.trim());
  };
  const connecting = waiting && state.phase !== "lost";
  return html`<main class="signin">
    <h1 class="brand"><img src="icon.svg" alt="" width="36" height="36" />standby</h1>
    <p class="muted">Every instance on the warm ladder, live.</p>
    <form onSubmit=${send} aria-describedby="signin-status">
      <label for="key">API key</label>
      <input id="key" ref=${key} type="password" autocomplete="off" spellcheck=${false} placeholder="sk-standby-…"
        aria-invalid=${state.phase === "refused" || empty} disabled=${waiting} autofocus />
      <label for="tenant">Tenant <span class="muted">(administrators only)</span></label>
      <input id="tenant" ref=${tenant} autocomplete="off" spellcheck=${false} placeholder="the key’s own; or 12 digits, or all" disabled=${waiting} />
      <div class="buttons">
        <button class="primary" type="submit" disabled=${waiting}>Sign in</button>
        ${waiting && html`<button type="button" onClick=${cancel}>Cancel</button>`}
      </div>
      <p id="signin-status" role="alert" class=${state.phase === "refused" || state.phase === "lost" || empty ? "bad" : "muted"}>
        ${empty
          ? "A key is needed: standby keys create makes one."
          : state.phase === "refused"
            ? `Not signed in: ${state.message}`
            : state.phase === "lost" && waiting
              ? `No connection to the gateway (${state.message}); trying again…`
              : connecting
                ? "Signing in…"
                : ""}
      </p>
    </form>
    <p class="muted small">The key stays in this tab and goes to this gateway only.</p>
  </main>`;
}
