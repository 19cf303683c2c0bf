import { html } from "./vendor/preact-htm.js";

const WIDTH = 96;
const HEIGHT = 24;

// Requests a second of the last minute; the line is decoration, the number beside it is what it says.
export function Sparkline({ values }) {
  const points = Array.isArray(values) ? values : [];
  const most = Math.max(...points, 0);
  if (points.length < 2 || most <= 0) {
    return html`<svg class="spark" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true"
      ><path d=${`M0 ${HEIGHT - 2}H${WIDTH}`} class="spark-flat"></path></svg>`;
  }
  const step = WIDTH / (points.length - 1);
  let line = "";
  for (let index = 0; index < points.length; index += 1) {
    const y = HEIGHT - 2 - (points[index] / most) * (HEIGHT - 4);
    line += `${index === 0 ? "M" : "L"}${(index * step).toFixed(1)} ${y.toFixed(1)}`;
  }
  return html`<svg class="spark" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
    <path d=${`${line}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z`} class="spark-area"></path><path d=${line} class="spark-line"></path>
  </svg>`;
}
