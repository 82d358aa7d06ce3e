/** Requests to the admin port.  Orders show a secret that came with the login; the page keeps it for its origin. */

export interface Person {
  role: "reader" | "operator" | null;
  user: string;
  logged_in: boolean;
  /** Nobody has to show anything. */
  open: boolean;
  tokens: boolean;
  passwords: boolean;
}

export class Refused extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const KEPT = "csrf";

async function answered(answer: Response): Promise<unknown> {
  if (!answer.ok) throw new Refused(answer.status, (await answer.text()).trim() || `${answer.status}`);
  return answer.json();
}

export async function get(path: string, given: Record<string, string> = {}): Promise<unknown> {
  const words = new URLSearchParams(given).toString();
  return answered(await fetch(words ? `${path}?${words}` : path, { credentials: "same-origin" }));
}

async function posted(path: string, order: object): Promise<unknown> {
  return answered(
    await fetch(path, {
      method: "POST",
      credentials: "same-origin",
      headers: { "Content-Type": "application/json", "X-Sterna-CSRF": localStorage.getItem(KEPT) ?? "" },
      body: JSON.stringify(order),
    }),
  );
}

/** An order.  The node may have ended the login, as when it started again; where nothing has to be shown, the page
 * logs in and tries once more. */
export async function post(path: string, order: object): Promise<unknown> {
  try {
    return await posted(path, order);
  } catch (error) {
    if (!(error instanceof Refused && error.status === 403) || !(await asked()).open) throw error;
    await login({});
    return posted(path, order);
  }
}

const asked = async (): Promise<Person> => (await get("/dashboard/me")) as Person;

/** Who is looking; where nobody has to show anything, an operator.  A login whose secret is not here is of no use. */
export async function whoami(): Promise<Person> {
  const found = await asked();
  const usable = found.logged_in && localStorage.getItem(KEPT) !== null;
  if (usable) return found;
  if (found.open) return login({});
  if (!found.logged_in) return found;
  await logout();
  return asked();
}

export async function login(shown: { token?: string; user?: string; password?: string }): Promise<Person> {
  const { csrf, ...person } = (await posted("/dashboard/login", shown)) as Person & { csrf: string };
  localStorage.setItem(KEPT, csrf);
  return person;
}

export async function logout(): Promise<void> {
  await posted("/dashboard/logout", {});
  localStorage.removeItem(KEPT);
}
