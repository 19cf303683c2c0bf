// Ask an endpoint as any OpenAI client does, with the key of this page, and see how quickly it answers.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { duration, rate } from "./format.js";
import { useStore } from "./hooks.js";
import { Panel } from "./panel.js";
import { address, ALL, headers } from "./session.js";
import { reason, serverSentEvents } from "./stream.js";

const NOTHING = { phase: "idle", text: "", note: "", ttft: null, speed: null, rung: "" };

export function TryIt({ store, session, chosen }) {
  // The list of names is long where there are many, and changes seldom.
  useStore(store, "endpoints-names");
  const [wanted, setWanted] = useState("");
  const [prompt, setPrompt] = useState("Name the capital of France.");
  const [most, setMost] = useState(128);
  const [answer, setAnswer] = useState(NOTHING);
  const running = useRef(null);
  const end = useRef(null);
  useEffect(() => () => running.current?.abort(), []);
  useEffect(() => {
    if (store.endpoints.has(chosen)) setWanted(chosen);
  }, [chosen]);
  useEffect(() => {
    const box = end.current;
    if (box !== null) box.scrollTop = box.scrollHeight;
  }, [answer.text]);

  const rows = [...store.endpoints.entries()].sort(([one], [other]) => (one < other ? -1 : 1));
  const asked = store.endpoints.has(wanted) ? wanted : (rows[0]?.[0] ?? "");
  const busy = answer.phase === "waiting" || answer.phase === "streaming";

  const send = async (submit) => {
    submit.preventDefault();
    if (busy || !asked || !prompt.trim()) return;
    running.current = new AbortController();
    const row = store.endpoints.get(asked);
    // Who looks at all tenants asks as the one whose endpoint it is.
    const caller = session.tenant === ALL ? { ...session, tenant: row.tenant } : session;
    const body = { model: row.served_name || row.name, messages: [{ role: "user", content: prompt }], max_tokens: most };
    await ask(caller, body, running.current.signal, setAnswer);
  };
  return html`<${Panel} id="tryit" title="Try it">
    <form class="tryit" onSubmit=${send}>
      <div class="filters">
        <label for="try-endpoint">Endpoint</label>
        <select id="try-endpoint" value=${asked} onChange=${(change) => setWanted(change.target.value)} disabled=${busy}>
          ${rows.map(([key, row]) => html`<option key=${key} value=${key}>${session.tenant === ALL ? key : row.name}</option>`)}
        </select>
        <label for="try-most">Tokens</label>
        <input id="try-most" type="number" min="1" max="4096" value=${most} onInput=${(input) => setMost(Math.max(1, Number(input.target.value) || 1))} />
      </div>
      <label class="hidden" for="try-prompt">Prompt</label>
      <textarea id="try-prompt" rows="3" value=${prompt} onInput=${(input) => setPrompt(input.target.value)}></textarea>
      <div class="buttons">
        <button class="primary" type="submit" disabled=${busy || !asked}>Ask</button>
        <button type="button" disabled=${!busy} onClick=${() => running.current?.abort()}>Stop</button>
        <span role="status" class="muted small">${answer.note}</span>
      </div>
    </form>
    <output class="answer" ref=${end} aria-label="Answer" aria-live="off" tabindex="0">${answer.text}</output>
    <dl class="totals small-totals">
      <div><dt>First token</dt><dd id="try-ttft">${duration(answer.ttft)}</dd></div>
      <div><dt>Tokens/s</dt><dd id="try-speed">${rate(answer.speed)}</dd></div>
      <div><dt>Came from</dt><dd id="try-rung">${answer.rung || "–"}</dd></div>
    </dl>
  <//>`;
}

async function ask(session, body, signal, show) {
  const begun = performance.now();
  const seen = { ...NOTHING, phase: "waiting", note: "Asked; waiting for the first token…" };
  const tell = (news) => show({ ...Object.assign(seen, news) });
  let frame = 0;
  const soon = () => {
    // Tokens come faster than frames: what they add is drawn once a frame.
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      tell({});
    });
  };
  tell({});
  try {
    const answer = await fetch(address("v1/chat/completions"), {
      method: "POST",
      headers: headers(session, { "content-type": "application/json" }),
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      credentials: "omit",
      cache: "no-store",
      signal,
    });
    if (!answer.ok) {
      tell({ phase: "failed", note: await reason(answer) });
      return;
    }
    seen.rung = answer.headers.get("x-standby-rung") ?? "";
    await read(answer.body, begun, seen, tell, soon);
  } catch (error) {
    tell({ phase: "stopped", note: signal.aborted ? "Stopped." : `The connection broke: ${error.message}` });
  }
}

async function read(body, begun, seen, tell, soon) {
  let first = 0;
  let last = 0;
  let tokens = 0;
  for await (const { event, data, comment } of serverSentEvents(body)) {
    if (event === "") {
      if (seen.phase === "waiting" && comment) tell({ note: comment });
      continue;
    }
    if (data === "[DONE]") break;
    const piece = JSON.parse(data);
    if (piece.error) {
      tell({ phase: "failed", note: String(piece.error.message ?? "the answer broke off") });
      return;
    }
    const text = piece.choices?.[0]?.delta?.content;
    if (text) {
      last = performance.now();
      first ||= last;
      tokens += 1;
      seen.text += text;
      Object.assign(seen, { phase: "streaming", note: "Answering…", ttft: first - begun });
      if (tokens > 1) seen.speed = ((tokens - 1) / (last - first)) * 1000;
      soon();
    }
    // The engine's own count is right where one event holds several tokens.
    const counted = piece.usage?.completion_tokens;
    if (counted > 1 && last > first) seen.speed = ((counted - 1) / (last - first)) * 1000;
  }
  tell({ phase: "done", note: `Done in ${duration(performance.now() - begun)}.` });
}
