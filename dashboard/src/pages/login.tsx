/** The login: a token, or a user with a password. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { type Person, login } from "../api";
import { Trouble } from "../parts/facts";
import { TextField } from "../parts/fields";
import { inWords } from "../parts/polled";

export function LoginForm(given: { person: Person; done: (person: Person) => void; cancel?: () => void }): JSX.Element {
  const [token, setToken] = useState("");
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [trouble, setTrouble] = useState("");
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    try {
      given.done(await login(token !== "" ? { token } : { user, password }));
    } catch (error) {
      setTrouble(inWords(error));
    }
  };
  const { person } = given;
  return (
    <form class="login" onSubmit={(event) => void submit(event)} aria-label="Log in">
      <h1>Log in</h1>
      {person.passwords && (
        <>
          <TextField label="User" autocomplete="username" value={user} change={setUser} />
          <TextField label="Password" type="password" autocomplete="current-password" value={password} change={setPassword} />
        </>
      )}
      {person.tokens && (
        <TextField label={person.passwords ? "Or a token" : "Token"} type="password" autocomplete="off" value={token} change={setToken} />
      )}
      {!person.passwords && !person.tokens && <p>Nobody can log in here: set token_file or password_file in [admin].</p>}
      <Trouble text={trouble} />
      <div class="buttons">
        {given.cancel && (
          <button type="button" onClick={given.cancel}>
            Cancel
          </button>
        )}
        <button type="submit" class="primary">
          Log in
        </button>
      </div>
    </form>
  );
}
