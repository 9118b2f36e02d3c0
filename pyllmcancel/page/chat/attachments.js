// Text files beside a message: [{name, text}]. The model gets them as fenced blocks before the message's text.

// Return the text in a fence that is longer than any in it.
export function fenced(text, language) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([ticks]) => ticks.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

const language = (name) => /\.([a-z0-9+]{1,10})$/i.exec(name)?.[1].toLowerCase() ?? "";

export const fileBlock = ({ name, text }) => `File ${name}:\n\n${fenced(text.replace(/\n$/, ""), language(name))}`;

// Return a message's text as the model gets it.
export const withFiles = ({ content, files = [] }) => [...files.map(fileBlock), content].filter((piece) => piece !== "").join("\n\n");
