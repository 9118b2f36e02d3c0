// The tokens of a conversation, by the usage of its last answer.

const NEARLY = 0.8; // share of the context from which a conversation is nearly too long

// Return {used, size, isNearlyFull} of the messages that are shown; null if no answer has a usage yet, or
// the size is not known.
export function contextOf(messages, size) {
  const usage = messages.findLast((message) => message.usage)?.usage;
  if (!usage || !(size > 0)) return null;
  const used = usage.prompt_tokens + usage.completion_tokens;
  return { used, size, isNearlyFull: used >= NEARLY * size };
}
