// The tokens of a conversation, by the answer that is being written, else by the usage of the last one.

const NEARLY = 0.8; // share of the context from which a conversation is nearly too long

// Return {used, size, isNearlyFull} of the messages that are shown; null if nothing is counted yet, or the size is not
// known.
export function contextOf(messages, size, draft = null) {
  const usage = messages.findLast((message) => message.usage)?.usage;
  const used = writtenOf(draft) ?? (usage ? usage.prompt_tokens + usage.completion_tokens : null);
  if (used === null || !(size > 0)) return null;
  return { used, size, isNearlyFull: used >= NEARLY * size };
}

function writtenOf(draft) {
  const { timings = null, progress = null } = draft ?? {};
  const prompt = progress?.total ?? (timings === null ? null : timings.cache_n + timings.prompt_n);
  return prompt === null ? null : prompt + (timings?.predicted_n ?? 0);
}
