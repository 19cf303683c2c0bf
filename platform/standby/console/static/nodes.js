// Memory maps: what each node has, what is promised, and who holds how much of it.

import { html, useMemo } from "./vendor/preact-htm.js";
import { bytes, percent, share } from "./format.js";
import { useStore } from "./hooks.js";
import { Panel } from "./panel.js";
import { rungClass, rungOf } from "./words.js";

const MOST_NODES = 40;
const MOST_SEGMENTS = 60;

export function Nodes({ store }) {
  const version = useStore(store, "nodes", "instances");
  const holders = useMemo(() => byNode(store), [store, version]);
  const nodes = [...store.nodes.values()].sort((one, other) => (one.name < other.name ? -1 : 1));
  return html`<${Panel} id="nodes" title="Nodes" wide aside=${html`<span class="muted small">host memory, devices and cache</span>`}>
    <div class="nodes">
      ${nodes.slice(0, MOST_NODES).map((node) => html`<${NodeMap} key=${node.name} node=${node} holders=${holders.get(node.name) ?? []} />`)}
    </div>
    ${nodes.length > MOST_NODES && html`<p class="muted">and ${nodes.length - MOST_NODES} more</p>`}
    ${nodes.length === 0 && html`<p class="empty-word">No node has joined.</p>`}
  <//>`;
}

function NodeMap({ node, holders }) {
  const { capacity = 0, reserved = 0, resident = 0, free = 0 } = node.memory ?? {};
  const whole = Math.max(capacity, reserved, resident, 1);
  const named = holders.slice(0, MOST_SEGMENTS);
  const known = named.reduce((sum, one) => sum + one.resident_bytes, 0);
  const zygotes = Object.entries(node.zygotes ?? {});
  const words = `${bytes(resident)} held, ${bytes(reserved)} promised, ${bytes(free)} free of ${bytes(capacity)}`;
  return html`<article class="node">
    <h3><bdi>${node.name}</bdi> <span class=${node.mode === "open" && !node.silent ? "muted small" : "small warn"}>${node.silent ? "silent" : node.mode}</span></h3>
    ${node.words && node.words !== node.mode && html`<p class="small">${node.words}</p>`}
    <div class="memory" role="img" aria-label=${`Memory of ${node.name}: ${words}`}>
      ${named.map((one) => segment(one.id, one.resident_bytes, whole, rungClass(one.rung), `${one.endpoint}: ${bytes(one.resident_bytes)}, ${rungOf(one.rung)}`))}
      ${segment("others", Math.max(0, resident - known), whole, "seg-other", `others: ${bytes(Math.max(0, resident - known))}`)}
      ${segment("promised", Math.max(0, reserved - Math.max(resident, known)), whole, "seg-promised", `promised and not yet held: ${bytes(Math.max(0, reserved - resident))}`)}
    </div>
    <p class="small muted">${words}</p>
    <ul class="holders" aria-label="Who holds memory">
      ${named.slice(0, 6).map(
        (one) => html`<li key=${one.id}><span class=${`swatch ${rungClass(one.rung)}`} aria-hidden="true"></span><bdi>${one.endpoint}</bdi> <span class="muted">${bytes(one.resident_bytes)}</span></li>`,
      )}
      ${holders.length > 6 && html`<li class="muted">and ${holders.length - 6} more</li>`}
    </ul>
    ${(node.devices ?? []).map((device) => html`<${DeviceMap} key=${device.id} device=${device} />`)}
    ${node.cache_capacity > 0 && html`<${Meter} word="artifact cache" used=${node.cache_bytes} whole=${node.cache_capacity} />`}
    ${zygotes.length > 0 && html`<p class="small muted">zygotes: ${zygotes.map(([engine, one]) => `${engine} ${one.state} (${bytes(one.resident_bytes)})`).join(", ")}</p>`}
  </article>`;
}

function DeviceMap({ device }) {
  const { name, id, kind, memory_total: total = 0, memory_used: used = 0, memory_reserved: reserved = 0, utilisation, cordoned } = device;
  const more = `${utilisation === null || utilisation === undefined ? "" : ` · ${percent(utilisation)} busy`}${cordoned ? ` · cordoned: ${cordoned}` : ""}`;
  return html`<${Meter} word=${`${kind} ${name || id}`} used=${used} reserved=${reserved} whole=${total} more=${more} bad=${Boolean(cordoned)} />`;
}

function Meter({ word, used, reserved = 0, whole, more = "", bad }) {
  const said = whole > 0 ? `${bytes(used)} of ${bytes(whole)}${reserved ? `, ${bytes(reserved)} promised` : ""}${more}` : `no memory of its own told${more}`;
  return html`<div class=${`meter ${bad ? "bad" : ""}`}>
    <p class="small"><bdi>${word}</bdi> <span class="muted">${said}</span></p>
    <div class="memory thin" role="img" aria-label=${`${word}: ${said}`}>
      ${segment("used", used, Math.max(whole, 1), "seg-used", `used ${bytes(used)}`)}
      ${segment("promised", Math.max(0, reserved - used), Math.max(whole, 1), "seg-promised", `promised ${bytes(reserved)}`)}
    </div>
  </div>`;
}

const segment = (key, size, whole, name, title) =>
  size > 0 &&
  html`<span key=${key} class=${`segment ${name}`} title=${title} style=${{ width: `${(share(size, whole) * 100).toFixed(2)}%` }}></span>`;

function byNode(store) {
  const found = new Map();
  for (const one of store.instances.values()) {
    if (!(one.resident_bytes > 0)) continue;
    if (!found.has(one.node)) found.set(one.node, []);
    found.get(one.node).push(one);
  }
  for (const holders of found.values()) holders.sort((one, other) => other.resident_bytes - one.resident_bytes);
  return found;
}
