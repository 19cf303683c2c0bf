// Moves a chip visibly from where it stood to where it stands now (first, last, invert, play).

const CALM = matchMedia("(prefers-reduced-motion: reduce)");
const MOVE = { duration: 620, easing: "cubic-bezier(.2,.8,.2,1)" };

// `moved`: chip → the chip in whose place it stood. Returns those places by chip.
export function places(root, moved) {
  const found = new Map();
  if (root === null || CALM.matches) return found;
  const standing = new Map([...root.querySelectorAll("[data-chip]")].map((chip) => [chip.dataset.chip, chip]));
  for (const [id, predecessor] of moved) {
    const chip = standing.get(predecessor);
    if (chip !== undefined) found.set(id, chip.getBoundingClientRect());
  }
  return found;
}

// Plays every chip from its place in `before` to where it is; a chip that had none grows.
export function play(root, before, appeared) {
  if (root === null || CALM.matches) return;
  for (const chip of root.querySelectorAll("[data-chip]")) {
    const first = before.get(chip.dataset.chip);
    if (first !== undefined) {
      const last = chip.getBoundingClientRect();
      const move = `translate(${first.left - last.left}px, ${first.top - last.top}px)`;
      // Only its transform is animated, which the compositor does alone: anything else would paint the page each frame.
      chip.style.zIndex = "5";
      chip.animate([{ transform: move }, { transform: "none" }], MOVE).onfinish = () => {
        chip.style.zIndex = "";
      };
    } else if (appeared.has(chip.dataset.chip)) {
      chip.animate([{ opacity: 0, transform: "scale(.6)" }, { opacity: 1, transform: "none" }], { duration: 260 });
    }
  }
}
