// What the feed has said so far. Panels subscribe to the parts that they show and are told at most once a frame.

const KEPT_ACTIVATIONS = 50;
const KEPT_LINES = 100;
const KEPT_POINTS = 600;

export const RUNGS = ["cold", "staged", "zygote", "asleep", "ready"];
export const endpointKey = (row) => `${row.tenant}/${row.endpoint ?? row.name}`;

export class Store {
  hasData = false;
  at = 0;
  who = { tenant: "", admin: false, gateway: "" };
  totals = {};
  bus = { connected: true };
  savings = null;
  endpoints = new Map();
  instances = new Map();
  nodes = new Map();
  activations = [];
  decisions = [];
  events = [];
  // Columns for the charts: seconds since the epoch, then one column for each line.
  history = { at: [], rps: [], tokens: [], in_flight: [], queued: [] };
  #readers = new Set();
  #changed = new Set();
  #scheduled = false;

  replace(overview) {
    this.hasData = true;
    this.who = { tenant: overview.tenant, admin: Boolean(overview.admin), gateway: overview.gateway };
    this.endpoints.clear();
    this.instances.clear();
    this.nodes.clear();
    this.activations = [];
    this.decisions = [];
    this.events = [];
    if (this.history.at.length === 0) this.#begin(overview);
    this.#take(overview);
    this.#tell("who", "endpoints", "endpoints-names", "instances", "nodes", "activations", "decisions", "events");
  }

  change(news) {
    this.#take(news);
  }

  // `parts` of the store; `told` is called in the frame after any of them has changed. Returns what ends it.
  subscribe(parts, told) {
    const reader = { parts, told };
    this.#readers.add(reader);
    return () => this.#readers.delete(reader);
  }

  #take(news) {
    this.at = news.at ?? this.at;
    for (const part of ["totals", "bus", "savings"]) {
      if (news[part] !== undefined) {
        this[part] = news[part];
        this.#tell(part);
      }
    }
    this.#rows("endpoints", news.endpoints, news.gone_endpoints, endpointKey);
    this.#rows("instances", news.instances, news.gone_instances, (row) => row.id);
    this.#rows("nodes", news.nodes, news.gone_nodes, (row) => row.name);
    this.#lines("activations", news.activations, KEPT_ACTIVATIONS);
    this.#lines("decisions", news.decisions, KEPT_LINES);
    this.#lines("events", news.events, KEPT_LINES);
    this.#remember();
    this.#tell("at");
  }

  #rows(part, rows = [], gone = [], key) {
    const before = this[part].size;
    for (const row of rows) this[part].set(key(row), row);
    if (this[part].size !== before || gone.length > 0) this.#tell(`${part}-names`);
    for (const one of gone) this[part].delete(one);
    if (rows.length > 0 || gone.length > 0) this.#tell(part);
  }

  // Newest first; what is told again, as after a change of gateways, takes the place of what was told before.
  #lines(part, lines = [], kept) {
    if (lines.length === 0) return;
    const told = new Set(lines.map((line) => line.id));
    const before = this[part].filter((line) => !told.has(line.id));
    this[part] = [...lines, ...before].sort((one, other) => other.at - one.at).slice(0, kept);
    this.#tell(part);
  }

  // The last minute's requests are known of every endpoint: the chart need not begin empty.
  #begin({ at, endpoints = [] }) {
    const seconds = Math.max(0, ...endpoints.map((row) => row.spark?.length ?? 0));
    for (let second = 0; second < seconds - 1; second += 1) {
      const past = seconds - second;
      this.history.at.push(at - past + 1);
      this.history.rps.push(endpoints.reduce((sum, row) => sum + (row.spark?.at(-past) ?? 0), 0));
      for (const column of ["tokens", "in_flight", "queued"]) this.history[column].push(null);
    }
  }

  #remember() {
    const { history, totals } = this;
    // A gateway whose clock was set back, or another one's, would be waited for until it has caught up.
    while (history.at.at(-1) > this.at) for (const column of Object.values(history)) column.pop();
    const last = history.at.at(-1) ?? 0;
    if (this.at - last < 0.4) return;
    history.at.push(this.at);
    history.rps.push(totals.rps ?? 0);
    history.tokens.push(totals.tokens_per_s ?? 0);
    history.in_flight.push(totals.in_flight ?? 0);
    history.queued.push(totals.queued ?? 0);
    if (history.at.length > KEPT_POINTS) for (const column of Object.values(history)) column.shift();
    this.#tell("history");
  }

  #tell(...parts) {
    for (const part of parts) this.#changed.add(part);
    if (this.#scheduled) return;
    this.#scheduled = true;
    requestAnimationFrame(() => this.#flush());
  }

  #flush() {
    this.#scheduled = false;
    const changed = this.#changed;
    this.#changed = new Set();
    for (const reader of [...this.#readers]) {
      if (reader.parts.some((part) => changed.has(part))) reader.told();
    }
  }
}
