/** Questions that a page asks again and again while somebody can see it. */
import { useEffect, useState } from "preact/hooks";

const AGAIN_MS = 2000;

export const inWords = (error: unknown): string => (error instanceof Error ? error.message : String(error));

/** The answer that came last, the reason if none came, and a way to ask at once. */
export function usePolled<T>(ask: () => Promise<T>, words: unknown[], everyMs = AGAIN_MS): [T | null, string, () => void] {
  const [found, setFound] = useState<T | null>(null);
  const [trouble, setTrouble] = useState("");
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let over = false;
    let timer = 0;
    let asking = false;
    const again = (): void => {
      window.clearTimeout(timer);
      if (asking || document.hidden) return;
      asking = true;
      ask()
        .then(
          (answer) => {
            if (over) return;
            setFound(answer);
            setTrouble("");
          },
          (error: unknown) => {
            if (!over) setTrouble(inWords(error));
          },
        )
        .finally(() => {
          asking = false;
          if (!over) timer = window.setTimeout(again, everyMs);
        });
    };
    again();
    document.addEventListener("visibilitychange", again);
    return () => {
      over = true;
      window.clearTimeout(timer);
      document.removeEventListener("visibilitychange", again);
    };
  }, [...words, turn]);
  return [found, trouble, () => { setTurn(turn + 1); }];
}
