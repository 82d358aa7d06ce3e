/** JSON over several lines.  Its words stay as they came: numbers that JavaScript cannot hold are not changed. */

const INDENT = "  ";

/** The text itself where it is no JSON object or list, or was cut. */
export function pretty(text: string): string {
  const trimmed = text.trim();
  if (!/^[[{]/.test(trimmed)) return text;
  try {
    JSON.parse(trimmed);
  } catch {
    return text;
  }
  let depth = 0;
  const line = (): string => `\n${INDENT.repeat(depth)}`;
  const words = trimmed.match(/"(?:\\.|[^"\\])*"|[^\s"[\]{}:,]+|[[\]{}:,]/g) ?? [];
  return words
    .map((word, at) => {
      const isEmpty = (word === "{" && words[at + 1] === "}") || (word === "[" && words[at + 1] === "]");
      const wasEmpty = (word === "}" && words[at - 1] === "{") || (word === "]" && words[at - 1] === "[");
      if (isEmpty || wasEmpty) return word;
      if (word === "{" || word === "[") {
        depth += 1;
        return word + line();
      }
      if (word === "}" || word === "]") {
        depth -= 1;
        return line() + word;
      }
      return word === "," ? word + line() : word === ":" ? ": " : word;
    })
    .join("");
}
