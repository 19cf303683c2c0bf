// Hooks that several panels use.

import { useCallback, useEffect, useReducer, useRef, useState } from "./vendor/preact-htm.js";

// Renders again when one of these parts of the store has changed.
export function useStore(store, ...parts) {
  const [version, again] = useReducer((count) => count + 1, 0);
  useEffect(() => store.subscribe(parts, again), [store, ...parts]);
  return version;
}

export function useMedia(query) {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query);
    const look = () => setMatches(media.matches);
    media.addEventListener("change", look);
    return () => media.removeEventListener("change", look);
  }, [query]);
  return matches;
}

// The width of an element, followed through every change of the layout.
export function useWidth() {
  const element = useRef(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return [element, width];
}

// One tab stop for a list; arrow keys, Home and End go through it. Items carry data-item, the list takes the handler.
export function useRoving() {
  return useCallback((press) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[press.key];
    if (step === undefined || !press.target.matches("[data-item]")) return;
    const items = [...press.currentTarget.querySelectorAll("[data-item]")];
    const next = Math.min(items.length - 1, Math.max(0, items.indexOf(press.target) + step));
    press.preventDefault();
    items[next]?.focus();
  }, []);
}
