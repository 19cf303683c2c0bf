// Activations, newest first: what each climb to ready spent its time on, side by side on one scale.

import { html, useMemo, useState } from "./vendor/preact-htm.js";
import { clock, duration, share } from "./format.js";
import { useRoving, useStore } from "./hooks.js";
import { Panel } from "./panel.js";
import { endpointKey } from "./store.js";
import { PHASES, phaseClass, phaseWord, rungOf } from "./words.js";

export function Waterfall({ store, chosen }) {
  const version = useStore(store, "activations");
  const [looked, setLooked] = useState("");
  const roving = useRoving();
  const shown = useMemo(
    () => store.activations.filter((one) => !chosen || endpointKey(one) === chosen),
    [store, version, chosen],
  );
  const longest = Math.max(1, ...shown.map(total));
  const used = PHASES.filter((phase) => shown.some((one) => one.phases_ms?.[phase] > 0));
  const spoken = shown.find((one) => one.id === looked) ?? shown[0];
  return html`<${Panel} id="activations" title=${chosen ? `Activations of ${store.endpoints.get(chosen)?.name}` : "Activations"} aside=${html`<span class="muted small">the longest takes the whole width: ${duration(longest)}</span>`}>
    <ul class="legend" aria-label="Phases">
      ${used.map((phase) => html`<li key=${phase}><span class=${`swatch ${phaseClass(phase)}`} aria-hidden="true"></span>${phaseWord(phase)}</li>`)}
    </ul>
    <ul class="waterfall scroll" aria-label="Activations, newest first" onKeyDown=${roving}>
      ${shown.map(
        (one, index) => html`<li key=${one.id} data-item tabindex=${index === 0 ? 0 : -1} class=${one.ok ? "" : "failed"}
          aria-label=${inWords(one)} onFocus=${() => setLooked(one.id)} onPointerEnter=${() => setLooked(one.id)}>
          <span class="fall-name"><bdi>${one.endpoint}</bdi> <span class="muted small">from ${rungOf(one.from_rung)} · ${clock(one.at)}</span></span>
          <span class="fall-bar" aria-hidden="true">
            ${phases(one).map(
              ([phase, ms]) => html`<span key=${phase} class=${`segment ${phaseClass(phase)}`} data-phase=${PHASES.includes(phase) ? phase : "other"}
                title=${`${phaseWord(phase)} ${duration(ms)}`} style=${{ width: `${(share(ms, longest) * 100).toFixed(2)}%` }}></span>`,
            )}
          </span>
          <span class="num">${one.ok ? duration(total(one)) : "failed"}</span>
        </li>`,
      )}
    </ul>
    ${shown.length === 0
      ? html`<p class="empty-word">Nothing has been woken yet.</p>`
      : html`<p class="spoken" aria-hidden="true">${inWords(spoken)}</p>`}
  <//>`;
}

const total = (one) => one.total_ms ?? phases(one).reduce((sum, [, ms]) => sum + ms, 0);

function phases(one) {
  const told = one.phases_ms ?? {};
  const known = PHASES.filter((phase) => told[phase] > 0).map((phase) => [phase, told[phase]]);
  const others = Object.keys(told).filter((phase) => !PHASES.includes(phase) && told[phase] > 0);
  return [...known, ...others.map((phase) => [phase, told[phase]])];
}

function inWords(one) {
  const parts = phases(one).map(([phase, ms]) => `${phaseWord(phase)} ${duration(ms)}`);
  const end = one.ok ? `ready after ${duration(total(one))}` : `failed: ${one.error || "no reason given"}`;
  return `${one.endpoint} from ${rungOf(one.from_rung)} at ${clock(one.at)}: ${[...parts, end].join(", ")}`;
}
