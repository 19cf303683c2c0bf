// What was not spent: memory held against the same endpoints always on, and against a published price.

import { html } from "./vendor/preact-htm.js";
import { amount, clock, dollars, percent, share } from "./format.js";
import { useStore } from "./hooks.js";
import { Panel } from "./panel.js";

export function Savings({ store }) {
  useStore(store, "savings");
  const { savings } = store;
  if (!savings) return null;
  const bars = [
    ["standby, held", savings.held_usd, "bar-held"],
    ["always on", savings.always_on_usd, "bar-always"],
    ["SageMaker Serverless, published price", savings.sagemaker_serverless_usd, "bar-published"],
  ];
  const most = Math.max(...bars.map(([, value]) => value ?? 0), 1e-12);
  return html`<${Panel} id="savings" title="Savings" aside=${html`<span class="muted small">since ${clock(savings.since)}</span>`}>
    <p class="big"><strong>${dollars(savings.saved_usd)}</strong> saved against always on, <strong>${percent(share(savings.saved_usd, savings.always_on_usd))}</strong></p>
    <dl class="bars">
      ${bars.map(
        ([word, value, name]) => html`<div key=${name}>
          <dt>${word}</dt>
          <dd><span class="bar-track" aria-hidden="true"><span class=${name} style=${{ width: `${(share(value ?? 0, most) * 100).toFixed(1)}%` }}></span></span><span class="num">${dollars(value)}</span></dd>
        </div>`,
      )}
    </dl>
    <p class="small">${amount(savings.held_gb_s)} GB·s held, ${amount(savings.saved_gb_s)} GB·s not held.</p>
    <p class="muted small">${savings.words}</p>
    <details>
      <summary>Prices used</summary>
      <dl class="facts">${Object.entries(savings.prices ?? {}).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    </details>
  <//>`;
}
