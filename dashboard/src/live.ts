/** The live pictures: a stream of events that is opened again when it breaks. */
import type { Picture } from "./model";

export type LineState = "connecting" | "live" | "broken";

const AGAIN_MS = 1500;

/** `refused` is called when the port no longer knows who is looking. */
export function watch(
  seen: (picture: Picture) => void,
  changed: (state: LineState) => void,
  refused: () => void,
): () => void {
  let timer = 0;
  const source = new EventSource("/dashboard/events");
  source.addEventListener("picture", (event: MessageEvent<string>) => {
    changed("live");
    seen(JSON.parse(event.data) as Picture);
  });
  source.onerror = () => {
    changed("broken");
    if (source.readyState === EventSource.CLOSED) timer = window.setTimeout(refused, AGAIN_MS);
  };
  return () => {
    window.clearTimeout(timer);
    source.close();
  };
}
