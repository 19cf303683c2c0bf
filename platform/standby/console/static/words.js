// The vocabulary of the ladder: in what order things stand, what they are called, and which CSS class they have.
// Classes come from these tables only, never from what the feed says.

import { RUNGS } from "./store.js";

export const RUNG_WORDS = {
  cold: "bytes in the store",
  staged: "bytes on the node",
  zygote: "engine pre-imported",
  asleep: "process kept, memory released",
  ready: "answers at once",
};

// States in which an instance is on its way, and to where.
const ON_ITS_WAY = {
  fetching: ["up", "fetching"],
  starting: ["up", "starting"],
  probing: ["up", "probing"],
  waking: ["up", "waking"],
  draining: ["down", "draining"],
  suspending: ["down", "falling asleep"],
  stopping: ["down", "stopping"],
};

export const PHASES = ["queued", "placed", "fetched", "forked", "loaded", "captured", "probed", "first_token"];
const EVENT_KINDS = ["transition", "fetch", "endpoint", "notice", "async", "audit"];

export const rungOf = (rung) => (RUNGS.includes(rung) ? rung : "cold");
export const rungClass = (rung) => `rung-${rungOf(rung)}`;
export const phaseClass = (phase) => (PHASES.includes(phase) ? `phase-${phase}` : "phase-other");
export const phaseWord = (phase) => String(phase).replace("_", " ");
export const kindClass = (kind) => (EVENT_KINDS.includes(kind) ? `kind-${kind}` : "kind-other");

export function motionOf(instance) {
  const [direction, word] = ON_ITS_WAY[instance.state] ?? ["", ""];
  return { direction, word, failed: instance.state === "failed" };
}
