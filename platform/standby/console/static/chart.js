// uPlot in the colours of the theme; a chart is an image to those who do not see it, and its label says the last values.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { useWidth } from "./hooks.js";

// lines: [{label, color: a CSS variable, value: number → text}]; columns: [seconds since the epoch, one per line].
export function Chart({ label, lines, columns, version, height = 150 }) {
  const [box, width] = useWidth();
  const plot = useRef(null);
  const theme = useTheme();

  useEffect(() => {
    if (width === 0) return undefined;
    plot.current = new window.uPlot(options(box.current, lines, width, height), columns, box.current);
    return () => plot.current.destroy();
  }, [theme, width > 0, height, lines]);
  useEffect(() => {
    if (width > 0) plot.current?.setSize({ width, height });
  }, [width, height]);
  useEffect(() => {
    const drawn = plot.current;
    drawn?.setData(columns);
    // Without a pointer on it the legend says the last values, not dashes.
    if (drawn && drawn.cursor.idx === null) drawn.setLegend({ idx: columns[0].length - 1 });
  }, [version]);

  const last = lines.map((line, index) => `${line.label} ${line.value(columns[index + 1].at(-1))}`).join(", ");
  return html`<div class="chart" ref=${box} role="img" aria-label=${`${label}: ${last}`}></div>`;
}

// Counts the changes of the theme, since a canvas keeps the colours in which it was drawn.
function useTheme() {
  const [changes, setChanges] = useState(0);
  useEffect(() => {
    const media = matchMedia("(prefers-color-scheme: dark)");
    const look = () => setChanges((before) => before + 1);
    media.addEventListener("change", look);
    addEventListener("standby-theme", look);
    return () => {
      media.removeEventListener("change", look);
      removeEventListener("standby-theme", look);
    };
  }, []);
  return changes;
}

function options(box, lines, width, height) {
  const axis = { stroke: colour(box, "--muted"), grid: { stroke: colour(box, "--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width,
    height,
    cursor: { y: false, points: { size: 6 } },
    legend: { live: true },
    scales: { y: { range: (_plot, _low, high) => [0, Math.max(high * 1.1, 1)] } },
    axes: [
      { ...axis, space: 90, size: 28, values: (_plot, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB")) },
      { ...axis, size: 44, space: 34 },
    ],
    series: [
      { label: "time", value: (_plot, at) => (at ? new Date(at * 1000).toLocaleTimeString("en-GB") : "–") },
      ...lines.map((line) => ({
        label: line.label,
        stroke: colour(box, line.color),
        fill: line.fill ? colour(box, line.fill) : undefined,
        width: 1.75,
        points: { show: false },
        value: (_plot, value) => line.value(value),
      })),
    ],
  };
}

// The browser resolves light-dark() and variables only where a real property uses them.
function colour(box, variable) {
  const probe = document.createElement("span");
  probe.style.color = `var(${variable})`;
  box.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
