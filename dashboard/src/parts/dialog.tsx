/** A dialog that asks before something is done, and says why it was not. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Trouble } from "./facts";
import { inWords } from "./polled";

export function Dialog(given: {
  title: string;
  action: string;
  danger?: boolean;
  act: () => Promise<unknown>;
  close: () => void;
  children?: ComponentChildren;
}): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    dialog.current?.showModal();
  }, []);
  const act = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      await given.act();
      given.close();
    } catch (error) {
      setTrouble(inWords(error));
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} onClose={given.close} aria-labelledby="dialog-title">
      <form onSubmit={(event) => void act(event)}>
        <h2 id="dialog-title">{given.title}</h2>
        {given.children}
        <Trouble text={trouble} />
        <div class="buttons">
          <button type="button" onClick={given.close}>
            Cancel
          </button>
          <button type="submit" class={given.danger ? "danger" : "primary"} disabled={busy}>
            {given.action}
          </button>
        </div>
      </form>
    </dialog>
  );
}
