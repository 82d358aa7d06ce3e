"""Problems of a configuration, each with file, line, key, text and fix, so that the operator can mend it."""

from __future__ import annotations

from dataclasses import dataclass

from sterna.runtime.config.toml_source import Place, TomlSource
from sterna.vocabulary.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Problem:
    source: str
    """The file, or `environment`."""
    line: int | None
    place: str
    """The key, as `[[listener]] bind` or as the name of the variable; empty if the whole file is meant."""
    text: str
    fix: str
    """Empty if the text already says it."""

    def __str__(self) -> str:
        where = f"{self.source}:{self.line}" if self.line else self.source
        said = f"{self.text}; {self.fix}" if self.fix else self.text
        return ": ".join(part for part in (where, self.place, said) if part)


class InvalidConfiguration(ConfigurationError):
    """One error for all problems; its text has a line for each."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class ProblemReport:
    """Collects problems and knows which file line or variable each place came from."""

    def __init__(self, file: str, source: TomlSource) -> None:
        self.environment: dict[Place, str] = {}
        self._file = file
        self._source = source
        self._problems: list[Problem] = []
        self._spoiled: set[str | int] = set()

    def add(self, place: Place, text: str, fix: str) -> None:
        self._spoiled.add(place[0])
        if place in self.environment:
            self._problems.append(Problem("environment", None, self.environment[place], text, fix))
        else:
            line = self._source.line_of(place) if self._file else None
            self._problems.append(Problem(self._file or "defaults", line, spelled(place), text, fix))

    def add_unknown_variable(self, name: str, nearest: str | None) -> None:
        fix = f"did you mean {nearest}?" if nearest else "remove it; every key of the file has a variable"
        self._problems.append(Problem("environment", None, name, "unknown variable", fix))

    def is_sound(self, table: str) -> bool:
        """Whether nothing was found in that top-level table so far: what builds on it need not be reported too."""
        return table not in self._spoiled

    def line_of(self, place: Place) -> int | None:
        return self._source.line_of(place)

    def raise_if_any(self) -> None:
        if self._problems:
            raise InvalidConfiguration(sorted(self._problems, key=lambda problem: problem.line or 0))


def spelled(place: Place) -> str:
    """`[[listener]] bind`, `[authentication.token] issuer`, `[limits]`."""
    names = [str(part) for part in place if not isinstance(part, int)]
    if len(names) == 1:
        return f"[{names[0]}]"
    table = ".".join(names[:-1])
    return f"[[{table}]] {names[-1]}" if isinstance(place[-2], int) else f"[{table}] {names[-1]}"
