import { html } from "./vendor/preact-htm.js";

// A panel with its heading; `aside` stands at the heading's right.
export function Panel({ id, title, aside, children, wide }) {
  return html`<section id=${id} class=${`panel ${wide ? "wide" : ""}`} aria-labelledby=${`${id}-title`} tabindex="-1">
    <div class="panel-head"><h2 id=${`${id}-title`}>${title}</h2>${aside}</div>
    ${children}
  </section>`;
}
