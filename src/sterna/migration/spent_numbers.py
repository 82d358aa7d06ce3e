"""Numbers under which moves came to nothing: none of them is used again.

An answer under such a number may still be under way, and an offer said twice too.  If a node took the same offer again
after it had refused it, the refusal would let the other one go on serving a session that had changed hands.  If this
node forgets a number in a crash, it is told again: the other one refuses it, and it is spent here as well.
"""

from __future__ import annotations

#: Clients of which that is remembered.
CLIENTS_MAX = 10_000


class SpentNumbers:
    def __init__(self) -> None:
        self._highest: dict[bytes, int] = {}

    def spend(self, client: bytes, number: int) -> None:
        highest = max(number, self._highest.pop(client, 0))
        self._highest[client] = highest
        if len(self._highest) > CLIENTS_MAX:
            del self._highest[next(iter(self._highest))]

    def covers(self, client: bytes, number: int) -> bool:
        return number <= self._highest.get(client, 0)

    def unspent(self, client: bytes, number: int) -> int:
        """This number, or the next one after those that are spent."""
        return max(number, self._highest.get(client, 0) + 1)
