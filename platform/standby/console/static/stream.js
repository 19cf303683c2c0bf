// Server-sent events of a fetch() answer: EventSource cannot send an Authorization header.

// Yields {event, data, comment}; `alive` is called for every piece that arrives.
export async function* serverSentEvents(body, alive = () => {}) {
  let event = "";
  let data = [];
  for await (const line of lines(body, alive)) {
    if (line === "") {
      if (data.length > 0) yield { event: event || "message", data: data.join("\n"), comment: "" };
      event = "";
      data = [];
    } else if (line.startsWith(":")) {
      yield { event: "", data: "", comment: line.slice(1).trim() };
    } else {
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "data") data.push(value);
      else if (field === "event") event = value;
    }
  }
}

async function* lines(body, alive) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  // Pieces of a line are kept apart until it ends: an overview of a thousand endpoints comes in dozens of them.
  let begun = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      alive();
      const parts = decoder.decode(value, { stream: true }).split("\n");
      for (let index = 0; index < parts.length - 1; index += 1) {
        begun.push(parts[index]);
        yield begun.join("").replace(/\r$/, "");
        begun = [];
      }
      begun.push(parts[parts.length - 1]);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// What an error answer says, in one sentence; the gateway's envelope or AWS's, or the bare status.
export async function reason(answer) {
  try {
    const body = await answer.json();
    const error = body.error || body;
    const message = error.message || error.Message;
    if (message) return error.remedy ? `${message}: ${error.remedy}` : String(message);
  } catch {
    // No JSON: the status has to do.
  }
  return `the gateway answered ${answer.status} ${answer.statusText}`.trim();
}
