// The chosen endpoint: in words, its last minute, and its instances.

import { html } from "./vendor/preact-htm.js";
import { Chart } from "./chart.js";
import { bytes, clock, count, duration, rate } from "./format.js";
import { useStore } from "./hooks.js";
import { endpointKey } from "./store.js";
import { rungClass, rungOf } from "./words.js";

const LINES = [{ label: "requests/s", color: "--accent", fill: "--accent-soft", value: rate }];

export function Detail({ store, chosen, pick }) {
  const version = useStore(store, "endpoints", "instances");
  const row = store.endpoints.get(chosen);
  if (row === undefined) return null;
  const spark = Array.isArray(row.spark) ? row.spark : [];
  const times = spark.map((_, index) => store.at - spark.length + index + 1);
  const instances = [...store.instances.values()].filter((one) => endpointKey(one) === chosen && one.state !== "gone");
  return html`<div class="detail">
    <div class="panel-head">
      <h3><bdi>${row.name}</bdi> <span class=${`badge ${rungClass(row.rung)}`}>${rungOf(row.rung)}</span></h3>
      <button type="button" onClick=${() => pick(chosen)} aria-label="Close the endpoint">Close</button>
    </div>
    <p>${row.words}</p>
    <div class="detail-body">
      <${Chart} key=${chosen} label="Requests a second, last minute" lines=${LINES} columns=${[times, spark]} version=${version} height=${120} />
      <dl class="facts">
        <div><dt>TTFT P50 · P95 · P99</dt><dd>${duration(row.ttft_ms?.p50)} · ${duration(row.ttft_ms?.p95)} · ${duration(row.ttft_ms?.p99)}</dd></div>
        <div><dt>Requests</dt><dd>${count(row.requests)}, ${count(row.errors)} failed</dd></div>
        <div><dt>Status</dt><dd>${row.status}</dd></div>
      </dl>
    </div>
    <ul class="instances" aria-label="Instances">
      ${instances.map(
        (one) => html`<li key=${one.id}>
          <span class=${`badge ${rungClass(one.rung)}`}>${one.state}</span> <bdi class="mono small">${one.id}</bdi>
          ${one.node && html`<span class="muted">on <bdi>${one.node}</bdi></span>`}
          <span class="muted">${one.engine}${one.backend ? `, ${one.backend}` : ""} · ${count(one.in_flight)}/${count(one.slots)} · ${bytes(one.resident_bytes)} · since ${clock(one.rung_since)}</span>
          <span>${one.words}</span>
        </li>`,
      )}
      ${instances.length === 0 && html`<li class="muted">No instance: the next request wakes one.</li>`}
    </ul>
  </div>`;
}
