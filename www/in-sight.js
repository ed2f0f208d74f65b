// Work that waits until its element is in sight: a notebook may have thousands of parts that cost a moment each.

/** @type {WeakMap<Element, () => void>} */
const waiting = new WeakMap();

const observer = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    observer.unobserve(target);
    waiting.get(target)?.();
  }
});

/** Calls `act` once the element is in sight. @param {Element} element @param {() => void} act */
export function whenInSight(element, act) {
  waiting.set(element, act);
  observer.observe(element);
}
