// Server-sent events of a fetched body: EventSource cannot send a key.

// Yields {id, event, data} (texts) until the end of the body. Comments and pings are ignored, but `onHeard()` is called
// whenever any data come.
export async function* eventsOf(body, onHeard = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let line = "", lines = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onHeard();
      // Only the new part is searched: a snapshot is one long line, which comes in many pieces.
      const [rest, ...begun] = value.split("\n");
      line += rest;
      for (const next of begun) {
        const ended = line.endsWith("\r") ? line.slice(0, -1) : line;
        line = next;
        if (ended !== "") {
          lines.push(ended);
          continue;
        }
        const event = eventOf(lines);
        lines = [];
        if (event !== null) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

// null: the lines before a blank one have no data
export function eventOf(lines) {
  const event = { id: "", event: "message", data: [] };
  for (const line of lines) {
    if (line.startsWith(":")) continue;
    const [name, value] = /^([^:]*):? ?(.*)$/s.exec(line).slice(1);
    if (name === "data") event.data.push(value);
    else if (name === "id" || name === "event") event[name] = value;
  }
  return event.data.length === 0 ? null : { ...event, data: event.data.join("\n") };
}
