// Server-sent events of a fetched body: EventSource can send no key.

// Yields {id, event, data} (texts); ends with the body. Comments and pings are passed over.
export async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event !== null) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

export function parse(block) {
  const event = { id: "", event: "message", data: [] };
  for (const line of block.split(/\r?\n/)) {
    if (line === "" || line.startsWith(":")) continue;
    const [name, value] = /^([^:]*):? ?(.*)$/s.exec(line).slice(1);
    if (name === "data") event.data.push(value);
    else if (name === "id" || name === "event") event[name] = value;
  }
  return event.data.length === 0 ? null : { ...event, data: event.data.join("\n") };
}
