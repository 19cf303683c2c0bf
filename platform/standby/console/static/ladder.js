// The warm ladder: five rungs, and on them every instance; an endpoint that has none stands on the lowest.

import { Component, html, useLayoutEffect, useMemo, useRef } from "./vendor/preact-htm.js";
import { percent } from "./format.js";
import { useMedia, useRoving, useStore } from "./hooks.js";
import { places, play } from "./motion.js";
import { Panel } from "./panel.js";
import { endpointKey, RUNGS } from "./store.js";
import { motionOf, RUNG_WORDS, rungClass, rungOf } from "./words.js";

// Beyond this many on one rung the rest is a number: a thousand chips are neither readable nor quick.
const MOST_CHIPS = 36;
// More movement than this at once is not seen as movement.
const MOST_MOVES = 24;

export function Ladder({ store, chosen, pick }) {
  const version = useStore(store, "instances", "endpoints", "totals");
  const root = useRef(null);
  const before = useRef(new Map());
  const upright = useMedia("(max-width: 860px)");
  const rungs = useMemo(() => (upright ? sorted(store).reverse() : sorted(store)), [store, version, upright]);
  const roving = useRoving();

  // Where chips stand is read before this render changes it, and played after; only for those that changed rungs.
  const { moved, appeared, now } = compare(rungs, before.current);
  const first = moved.size > 0 ? places(root.current, moved) : new Map();
  const quiet = before.current.size === 0 || moved.size + appeared.size > MOST_MOVES;
  useLayoutEffect(() => {
    before.current = now;
    if (!quiet) play(root.current, first, appeared);
  });

  return html`<${Panel} id="ladder" title="The warm ladder" wide
    aside=${html`<span class="muted small">cold costs nothing · ready answers at once</span>`}>
    <div class="ladder" ref=${root}>
      ${rungs.map(
        ({ rung, all, shown }) => html`<div key=${rung} class=${`rung ${rungClass(rung)} step-${RUNGS.indexOf(rung)}`}>
          <div class="rung-head">
            <h3 id=${`rung-${rung}`}>${rung}</h3><span class="rung-count" aria-hidden="true">${all}</span>
          </div>
          <p class="rung-word muted">${RUNG_WORDS[rung]}</p>
          <ul class="chips" aria-label=${`${rung}: ${all}`} onKeyDown=${roving}>
            ${shown.map(
              (chip, index) => html`<${Chip} key=${chip.id} chip=${chip} row=${chip.row} first=${index === 0}
                chosen=${chip.key === chosen} pick=${pick} />`,
            )}
          </ul>
          ${all > shown.length && html`<p class="muted small">and ${all - shown.length} more</p>`}
        </div>`,
      )}
    </div>
  <//>`;
}

class Chip extends Component {
  shouldComponentUpdate(next) {
    return next.row !== this.props.row || next.chosen !== this.props.chosen || next.first !== this.props.first;
  }

  render({ chip, chosen, first, pick }) {
    const { row, ghost } = chip;
    const { direction, word, failed } = ghost ? { direction: "", word: "", failed: false } : motionOf(row);
    const name = ghost ? row.name : row.endpoint;
    const busy = !ghost && row.in_flight > 0;
    const known = row.progress !== null && row.progress !== undefined;
    const note = failed
      ? "failed"
      : word
        ? `${direction === "up" ? "↑" : "↓"} ${word}${known ? ` ${percent(row.progress)}` : ""}`
        : busy
          ? `${row.in_flight}/${row.slots}`
          : "";
    const words = ghost ? "no instance" : row.words || row.state;
    const classes = ["chip", rungClass(row.rung)];
    if (ghost) classes.push("ghost");
    if (direction) classes.push(direction === "up" ? "climbing" : "falling");
    if (failed) classes.push("failed");
    if (busy) classes.push("busy");
    if (chosen) classes.push("chosen");
    return html`<li>
      <button type="button" data-item data-chip=${chip.id} data-state=${ghost ? "none" : row.state} class=${classes.join(" ")}
        tabindex=${first ? 0 : -1} aria-pressed=${chosen} title=${`${name}: ${words}`} onClick=${() => pick(chip.key)}>
        <bdi class="chip-name">${name}</bdi>
        <span class="chip-note">${note}</span>
        <span class="hidden">, ${words}</span>
        ${direction === "up" &&
        html`<span class=${`bar ${known ? "" : "unknown"}`} aria-hidden="true"
          ><span style=${{ width: known ? percent(row.progress).replace(" ", "") : "100%" }}></span
        ></span>`}
      </button>
    </li>`;
  }
}

// `moved`: chip → the chip in whose place it stood; `now`: what the next comparison starts from. An endpoint's first
// instance and the mark of an endpoint that has none are one another's successors.
function compare(rungs, before) {
  const moved = new Map();
  const appeared = new Set();
  const now = new Map();
  for (const { rung, shown } of rungs) {
    for (const { id, ghostOf } of shown) {
      const was = before.get(id) ?? before.get(ghostOf);
      if (was === undefined) appeared.add(id);
      else if (was.rung !== rung) moved.set(id, was.chip);
      now.set(id, { rung, chip: id });
      if (ghostOf) now.set(ghostOf, { rung, chip: id });
    }
  }
  return { moved, appeared, now };
}

function sorted(store) {
  const standing = Object.fromEntries(RUNGS.map((rung) => [rung, []]));
  const served = new Set();
  for (const row of store.instances.values()) {
    if (row.state === "gone") continue;
    const key = endpointKey(row);
    standing[rungOf(row.rung)].push({ id: row.id, key, row, ghost: false, ghostOf: served.has(key) ? "" : `at-zero ${key}` });
    served.add(key);
  }
  for (const [key, row] of store.endpoints) {
    if (!served.has(key)) standing.cold.push({ id: `at-zero ${key}`, key, row, ghost: true, ghostOf: "" });
  }
  return RUNGS.map((rung) => {
    const all = standing[rung];
    let shown = all;
    if (all.length > MOST_CHIPS) shown = all.sort((one, other) => urgency(other) - urgency(one)).slice(0, MOST_CHIPS);
    return { rung, all: all.length, shown: shown.sort((one, other) => (one.key + one.id < other.key + other.id ? -1 : 1)) };
  });
}

// Whom to show where not all can be: who is on the way, then who works, then who came last.
function urgency({ row, ghost }) {
  if (ghost) return 0;
  return (motionOf(row).direction ? 4e12 : 0) + (row.in_flight > 0 ? 2e12 : 0) + (row.rung_since ?? 0);
}
