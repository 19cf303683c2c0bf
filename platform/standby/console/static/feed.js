// The one feed of this tab: it reads /api/v1/overview/stream into the store, and comes back by itself after a loss.

import { address, ALL, headers } from "./session.js";
import { reason, serverSentEvents } from "./stream.js";

const EVERY_S = 0.5;
const FIRST_PAUSE_MS = 400;
const LONGEST_PAUSE_MS = 10000;
// The server writes a comment every 10 s; a connection that is silent for longer is dead, whatever TCP says.
const SILENCE_MS = 25000;
// These say that asking again with the same key will not help.
const FINAL = new Set([400, 401, 403, 404]);

class Refused extends Error {}

export class Feed {
  #ended = false;
  #abort = null;
  #wake = () => {};
  #silence = 0;

  // `tell` is given {phase: connecting | live | lost | refused, message}.
  constructor(session, store, tell) {
    this.session = session;
    this.store = store;
    this.tell = tell;
  }

  start() {
    window.addEventListener("online", this.retry);
    this.#run();
  }

  stop() {
    this.#ended = true;
    window.removeEventListener("online", this.retry);
    clearTimeout(this.#silence);
    this.#abort?.abort();
    this.#wake();
  }

  // Ends the pause before the next attempt, if there is one.
  retry = () => this.#wake();

  async #run() {
    let pause = FIRST_PAUSE_MS;
    while (!this.#ended) {
      let why = "the gateway closed the connection";
      try {
        await this.#follow(() => {
          pause = FIRST_PAUSE_MS;
        });
      } catch (error) {
        if (this.#ended) return;
        if (error instanceof Refused) {
          this.#ended = true;
          this.tell({ phase: "refused", message: error.message });
          return;
        }
        why = error.name === "AbortError" ? "nothing was heard of it" : error.message;
      }
      if (this.#ended) return;
      this.tell({ phase: "lost", message: why });
      // Spread out: after a gateway's restart not all consoles come in the same moment.
      await this.#pause(pause * (0.7 + 0.6 * Math.random()));
      pause = Math.min(LONGEST_PAUSE_MS, pause * 1.7);
    }
  }

  async #follow(begun) {
    this.#abort = new AbortController();
    this.#listen();
    const scope = this.session.tenant === ALL ? "&tenants=all" : "";
    const answer = await fetch(address(`api/v1/overview/stream?every=${EVERY_S}${scope}`), {
      headers: headers(this.session, { accept: "text/event-stream" }),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: this.#abort.signal,
    });
    if (!answer.ok) {
      const why = await reason(answer);
      throw FINAL.has(answer.status) ? new Refused(why) : new Error(why);
    }
    for await (const { event, data } of serverSentEvents(answer.body, () => this.#listen())) {
      if (this.#ended) return;
      if (event === "overview") {
        this.store.replace(JSON.parse(data));
        begun();
        this.tell({ phase: "live", message: "" });
      } else if (event === "change") {
        this.store.change(JSON.parse(data));
      }
    }
  }

  #listen() {
    clearTimeout(this.#silence);
    const abort = this.#abort;
    this.#silence = setTimeout(() => abort.abort(), SILENCE_MS);
  }

  #pause(milliseconds) {
    clearTimeout(this.#silence);
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
