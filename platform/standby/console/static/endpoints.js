// Endpoints in a table that draws only the rows in sight, so that a thousand of them cost what twenty do.

import { Component, html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { Detail } from "./detail.js";
import { bytes, count, dollars, duration, rate } from "./format.js";
import { useMedia, useStore } from "./hooks.js";
import { Panel } from "./panel.js";
import { Sparkline } from "./sparkline.js";
import { endpointKey, RUNGS } from "./store.js";
import { rungClass, rungOf } from "./words.js";

const ROW_PX = 44;
const NARROW_ROW_PX = 86;
const MOST_ROWS_IN_SIGHT = 12;
const SPARE_ROWS = 3;

const COLUMNS = [
  ["name", "Endpoint", (row) => row.name, true],
  ["rung", "Rung", (row) => RUNGS.indexOf(rungOf(row.rung))],
  ["rps", "Requests/s", (row) => row.rps],
  ["in_flight", "In flight", (row) => row.in_flight],
  ["queued", "Queue", (row) => row.queued],
  ["ttft", "TTFT P50 · P95", (row) => row.ttft_ms?.p95],
  ["tokens", "Tokens/s", (row) => row.tokens_per_s],
  ["memory", "Memory", (row) => row.resident_bytes],
  ["errors", "Errors", (row) => row.errors],
  ["saved", "Saved", (row) => row.saved_usd],
];

export function Endpoints({ store, chosen, pick }) {
  const version = useStore(store, "endpoints");
  const [sort, setSort] = useState({ by: "name", up: true });
  const [wanted, setWanted] = useState("");
  const [rung, setRung] = useState("");
  const rows = useMemo(() => selected(store, wanted, rung, sort), [store, version, wanted, rung, sort]);
  const turn = (by, textual) =>
    setSort((before) => (before.by === by ? { by, up: !before.up } : { by, up: Boolean(textual) }));
  const filters = html`<div class="filters">
    <label class="hidden" for="endpoint-filter">Filter endpoints by name</label>
    <input id="endpoint-filter" type="search" placeholder="Filter by name" value=${wanted} onInput=${(input) => setWanted(input.target.value)} />
    <label class="hidden" for="rung-filter">Filter endpoints by rung</label>
    <select id="rung-filter" value=${rung} onChange=${(change) => setRung(change.target.value)}>
      <option value="">all rungs</option>
      ${RUNGS.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
    </select>
    <span class="muted small" role="status">${count(rows.length)} of ${count(store.endpoints.size)}</span>
  </div>`;
  return html`<${Panel} id="endpoints" title="Endpoints" wide aside=${filters}>
    <${Grid} rows=${rows} sort=${sort} turn=${turn} chosen=${chosen} pick=${pick} tenanted=${store.who.tenant === ""} />
    ${store.endpoints.size === 0 && html`<p class="empty-word">No endpoint yet: <code>standby endpoints create</code> makes one.</p>`}
    <${Detail} store=${store} chosen=${chosen} pick=${pick} />
  <//>`;
}

function Grid({ rows, sort, turn, chosen, pick, tenanted }) {
  const narrow = useMedia("(max-width: 860px)");
  const height = narrow ? NARROW_ROW_PX : ROW_PX;
  const inSight = Math.min(narrow ? 6 : MOST_ROWS_IN_SIGHT, Math.max(rows.length, 1));
  const [top, setTop] = useState(0);
  const [current, setCurrent] = useState(0);
  const box = useRef(null);
  const moved = useRef(false);
  const at = Math.min(current, Math.max(0, rows.length - 1));
  // A shorter list leaves the box scrolled where nothing is any more.
  const first = Math.max(0, Math.min(Math.floor(top / height), rows.length - inSight) - SPARE_ROWS);
  const drawn = rows.slice(first, first + inSight + 1 + 2 * SPARE_ROWS);

  useEffect(() => {
    if (!moved.current) return;
    moved.current = false;
    box.current.querySelector(`[aria-rowindex="${at + 2}"]`)?.focus({ preventScroll: true });
  });

  const press = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: inSight, PageUp: -inSight, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || rows.length === 0) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(rows.length - 1, at + step));
    const { scrollTop } = box.current;
    if (next * height < scrollTop) box.current.scrollTop = next * height;
    else if ((next + 1) * height > scrollTop + inSight * height) box.current.scrollTop = (next + 1 - inSight) * height;
    setTop(box.current.scrollTop);
    moved.current = true;
    setCurrent(next);
  };

  return html`<div class="grid" role="grid" aria-label="Endpoints" aria-rowcount=${rows.length + 1} aria-colcount=${COLUMNS.length}>
    <div class="grid-head" role="row" aria-rowindex="1">
      ${COLUMNS.map(
        ([by, word, , textual]) => html`<span key=${by} role="columnheader" class=${`cell cell-${by}`}
          aria-sort=${sort.by === by ? (sort.up ? "ascending" : "descending") : "none"}>
          <button type="button" class="sort" onClick=${() => turn(by, textual)}
            >${word}<span aria-hidden="true">${sort.by === by ? (sort.up ? " ▲" : " ▼") : ""}</span></button>
        </span>`,
      )}
    </div>
    <div class="grid-box" role="rowgroup" ref=${box} onScroll=${(scroll) => setTop(scroll.currentTarget.scrollTop)} onKeyDown=${press}
      style=${{ height: `${inSight * height}px` }}>
      <div role="presentation" class="grid-all" style=${{ height: `${rows.length * height}px` }}>
        ${drawn.map((row, index) => {
          const key = endpointKey(row);
          return html`<${Row} key=${key} row=${row} at=${first + index} px=${height} tabbable=${first + index === at}
            chosen=${key === chosen} pick=${pick} focused=${setCurrent} tenanted=${tenanted} />`;
        })}
      </div>
    </div>
  </div>`;
}

class Row extends Component {
  shouldComponentUpdate(next) {
    return ["row", "at", "px", "tabbable", "chosen"].some((name) => next[name] !== this.props[name]);
  }

  render({ row, at, px, tabbable, chosen, pick, focused, tenanted }) {
    const key = endpointKey(row);
    const enter = (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      pick(key);
    };
    const ttft = row.ttft_ms ?? {};
    return html`<div role="row" aria-rowindex=${at + 2} aria-selected=${chosen} class=${`grid-row ${chosen ? "chosen" : ""}`}
      tabindex=${tabbable ? 0 : -1} style=${{ transform: `translateY(${at * px}px)`, height: `${px}px` }}
      onClick=${() => pick(key)} onKeyDown=${enter} onFocus=${() => focused(at)}>
      <span role="gridcell" class="cell cell-name" title=${row.words || row.name}><bdi>${row.name}</bdi>
        ${row.status && row.status !== "InService"
          ? html`<span class="small warn">${row.status}</span>`
          : html`<bdi class="muted small">${under(row, tenanted)}</bdi>`}</span>
      <span role="gridcell" class="cell cell-rung"><span class=${`badge ${rungClass(row.rung)}`}>${rungOf(row.rung)}</span></span>
      <span role="gridcell" class="cell cell-rps"><${Sparkline} values=${row.spark} /><span class="num">${rate(row.rps)}<i>/s</i></span></span>
      <span role="gridcell" class="cell cell-in_flight num">${count(row.in_flight)}<i>/${count(row.slots)}</i></span>
      <span role="gridcell" class=${`cell cell-queued num ${row.queued > 0 ? "warn" : ""}`}>${count(row.queued)}<i> queued</i></span>
      <span role="gridcell" class="cell cell-ttft num">${duration(ttft.p50)} <i>·</i> ${duration(ttft.p95)}</span>
      <span role="gridcell" class="cell cell-tokens num">${rate(row.tokens_per_s)}</span>
      <span role="gridcell" class="cell cell-memory num">${bytes(row.resident_bytes)}</span>
      <span role="gridcell" class=${`cell cell-errors num ${row.errors > 0 ? "bad" : ""}`}>${count(row.errors)}</span>
      <span role="gridcell" class="cell cell-saved num">${dollars(row.saved_usd)}</span>
    </div>`;
  }
}

// The small line below a name: whose it is, where all tenants' are shown, and what it serves where that is another name.
function under(row, tenanted) {
  const served = row.served_name && row.served_name !== row.name ? row.served_name : "";
  return [tenanted ? row.tenant : "", served].filter(Boolean).join(" · ");
}

function selected(store, wanted, rung, { by, up }) {
  const text = wanted.trim().toLowerCase();
  const value = COLUMNS.find(([name]) => name === by)[2];
  const rows = [];
  for (const row of store.endpoints.values()) {
    if (rung && rungOf(row.rung) !== rung) continue;
    if (text && !`${row.name} ${row.served_name} ${row.tenant}`.toLowerCase().includes(text)) continue;
    rows.push(row);
  }
  const sign = up ? 1 : -1;
  return rows.sort((one, other) => {
    const [a, b] = [value(one) ?? -1, value(other) ?? -1];
    if (a !== b) return a < b ? -sign : sign;
    return endpointKey(one) < endpointKey(other) ? -1 : 1;
  });
}
