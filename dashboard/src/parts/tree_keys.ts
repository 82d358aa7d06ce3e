/** Keys in a tree, as https://www.w3.org/WAI/ARIA/apg/patterns/treeview/ has them; the choice follows the keys. */

/** The key's work: an item to choose, or one to open or close. */
export interface TreeStep {
  choose?: HTMLElement | undefined;
  toggle?: HTMLElement;
}

type Step = (items: HTMLElement[], at: number) => TreeStep;

const expanded = (item: HTMLElement | undefined): string | null => item?.getAttribute("aria-expanded") ?? null;

const toggled: Step = (items, at) => {
  const item = items[at];
  return item && expanded(item) !== null ? { toggle: item } : {};
};

const STEPS: Record<string, Step> = {
  ArrowDown: (items, at) => ({ choose: items[Math.min(at + 1, items.length - 1)] }),
  ArrowUp: (items, at) => ({ choose: items[Math.max(at - 1, 0)] }),
  Home: (items) => ({ choose: items[0] }),
  End: (items) => ({ choose: items.at(-1) }),
  ArrowRight: (items, at) => {
    const next = items[at + 1];
    if (expanded(items[at]) === "false") return toggled(items, at);
    return next && items[at]?.contains(next) ? { choose: next } : {};
  },
  ArrowLeft: (items, at) =>
    expanded(items[at]) === "true"
      ? toggled(items, at)
      : { choose: items[at]?.parentElement?.closest<HTMLElement>("[role=treeitem]") ?? undefined },
  Enter: toggled,
  " ": toggled,
};

/** `null` for keys that mean nothing in a tree.  A button within the tree keeps Enter and the space bar. */
export function treeStep(event: KeyboardEvent, tree: HTMLElement, isChosen: (item: HTMLElement) => boolean): TreeStep | null {
  const step = STEPS[event.key];
  const isPress = event.key === "Enter" || event.key === " ";
  if (!step || event.ctrlKey || event.altKey || event.metaKey) return null;
  if (isPress && event.target !== tree) return null;
  const items = [...tree.querySelectorAll<HTMLElement>("[role=treeitem][data-path]")];
  return step(items, items.findIndex(isChosen));
}
