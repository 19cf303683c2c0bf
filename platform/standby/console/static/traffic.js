// The totals in one strip, and how they went in the last minutes.

import { html } from "./vendor/preact-htm.js";
import { Chart } from "./chart.js";
import { bytes, count, dollars, rate } from "./format.js";
import { useStore } from "./hooks.js";
import { Panel } from "./panel.js";

const REQUESTS = [
  { label: "requests/s", color: "--accent", fill: "--accent-soft", value: rate },
  { label: "in flight", color: "--ready", value: count },
  { label: "queued", color: "--warn", value: count },
];
const TOKENS = [{ label: "tokens/s", color: "--zygote", fill: "--zygote-soft", value: rate }];

export function Totals({ store }) {
  useStore(store, "totals", "savings");
  const { totals, savings } = store;
  const boxes = [
    ["Requests/s", rate(totals.rps), `${count(totals.requests)} so far`],
    ["Tokens/s", rate(totals.tokens_per_s), ""],
    ["In flight", count(totals.in_flight), `${count(totals.queued)} queued`],
    ["Ready", count(totals.by_rung?.ready ?? 0), `of ${count(totals.endpoints)} endpoints`],
    ["Memory held", bytes(totals.resident_bytes), `${count(totals.instances)} instances`],
    ["Errors", count(totals.errors), totals.requests > 0 ? `${((100 * totals.errors) / totals.requests).toFixed(2)} % of all` : ""],
    ["Saved", dollars(savings?.saved_usd), "against always on"],
  ];
  return html`<dl class="totals wide" aria-label="Totals">
    ${boxes.map(
      ([word, value, more]) => html`<div key=${word}><dt>${word}</dt><dd class=${word === "Errors" && totals.errors > 0 ? "bad" : ""}>${value}</dd><dd class="muted small">${more}</dd></div>`,
    )}
  </dl>`;
}

export function Traffic({ store }) {
  const version = useStore(store, "history");
  const { at, rps, in_flight, queued, tokens } = store.history;
  return html`<${Panel} id="traffic" title="Traffic" wide aside=${html`<span class="muted small">the last minute, and on while this page is open</span>`}>
    <div class="charts">
      <${Chart} label="Requests" lines=${REQUESTS} columns=${[at, rps, in_flight, queued]} version=${version} />
      <${Chart} label="Tokens" lines=${TOKENS} columns=${[at, tokens]} version=${version} />
    </div>
  <//>`;
}
