// Numbers and times as people read them; null and undefined are a dash everywhere.

const DASH = "–";
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const COUNT = new Intl.NumberFormat("en-US");
const missing = (value) => value === null || value === undefined || Number.isNaN(value);

export const clock = (seconds) => (missing(seconds) || seconds === 0 ? DASH : TIME.format(new Date(seconds * 1000)));

export function count(value) {
  if (missing(value)) return DASH;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return COUNT.format(Math.round(value));
}

export function rate(value) {
  if (missing(value)) return DASH;
  if (value === 0) return "0";
  return value >= 100 ? count(value) : value >= 10 ? value.toFixed(0) : value.toFixed(1);
}

// A quantity that may be far below one or far above a million.
export const amount = (value) => (!missing(value) && value > 0 && value < 10 ? value.toPrecision(2) : count(value));

export function bytes(value) {
  if (missing(value)) return DASH;
  if (value === 0) return "0";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, value)) / 10));
  const scaled = value / 1024 ** unit;
  return `${scaled >= 100 || unit === 0 ? scaled.toFixed(0) : scaled.toFixed(1)} ${units[unit]}`;
}

export function duration(milliseconds) {
  if (missing(milliseconds)) return DASH;
  if (milliseconds < 1) return milliseconds === 0 ? "0 ms" : "<1 ms";
  if (milliseconds < 1000) return `${Math.round(milliseconds)} ms`;
  if (milliseconds < 60000) return `${(milliseconds / 1000).toFixed(milliseconds < 10000 ? 2 : 1)} s`;
  return `${Math.floor(milliseconds / 60000)} min ${Math.round((milliseconds % 60000) / 1000)} s`;
}

export function dollars(value) {
  if (missing(value)) return DASH;
  const size = Math.abs(value);
  if (size > 0 && size < 0.0001) return value < 0 ? "−$0.0001" : "<$0.0001";
  const digits = size === 0 || size >= 1 ? 2 : size >= 0.01 ? 3 : 4;
  return `${value < 0 ? "−" : ""}$${size.toFixed(digits)}`;
}

export const percent = (share) => (missing(share) ? DASH : `${Math.round(share * 100)} %`);
export const share = (part, whole) => (whole > 0 ? Math.max(0, Math.min(1, part / whole)) : 0);
