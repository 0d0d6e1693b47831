// The page of `crossdraft serve`: shows a clip and its events, asks, and shows the answer as it comes.

const $ = (id) => document.getElementById(id);
const COLUMNS = 8; // of the strip of event frames, as in strip.py
const FRAMES = 96;
const VIDEO = /\.(mp4|mov|mkv|webm|avi|mpe?g)$/i;
// name of a span: its kind, as crossdraft.drawing.kinds
const KINDS = {
  prepare: "preprocess", encode: "encoder", prefill: "prefill", read: "prefill", "hidden draft": "hidden-draft",
  draft: "draft", resync: "draft", ahead: "parallel-draft", "ride-along": "ride-along", verify: "verify",
};
const MEANINGS = {
  preprocess: "preprocess", encoder: "vision encoder", prefill: "reading (prefill)", "hidden-draft": "hidden draft",
  draft: "draft", "parallel-draft": "parallel draft", "ride-along": "ride-along", verify: "verify",
  decode: "decode step", other: "other",
};

let model = null;
let shown = { clip: null, events: null }; // {url, name} of what is asked about
let strip = null; // the event frames, drawn by the server
let running = null; // the AbortController of what runs
let answered = null; // the last answer: what was asked, its text and figures

// -- the server -----------------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function call(path, options = {}) {
  const key = sessionStorage.getItem("key");
  const headers = { ...options.headers, ...(key && { authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server cannot be reached; is it running?", 0);
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  if (response.status === 401) $("key-form").hidden = false;
  throw new Refused(said?.error?.message ?? `The server answered ${response.status}.`, response.status);
}

function post(path, body, signal) {
  return call(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal });
}

const contentOf = (url) => `/v1/media/content?url=${encodeURIComponent(url)}`;

// What is wrong, in one sentence; what was cancelled is not wrong.
function complain(error) {
  if (error?.name === "AbortError") return;
  $("problem").textContent = error?.message ?? "";
  $("problem").hidden = !error;
}

// -- clip and events ------------------------------------------------------------------------------------------------

async function start() {
  try {
    model = (await (await call("/v1/models")).json()).data[0].id;
    $("key-form").hidden = true;
    complain(null);
    await list();
  } catch (error) {
    complain(error.status === 401 && !sessionStorage.getItem("key") ? null : error);
    if (error.status === 401) $("key").focus();
  }
}

async function list() {
  const files = (await (await call("/v1/media")).json()).data;
  const stem = (name) => name.replace(/\.[^.]*$/, "");
  const events = new Map(files.filter((file) => file.kind === "event").map((file) => [stem(file.name), file]));
  const pairs = files.filter((file) => file.kind === "video").map((clip) => ({ clip, events: events.get(stem(clip.name)) ?? null }));
  const before = JSON.parse(sessionStorage.getItem("shown") ?? "null");
  if (before?.clip?.url.startsWith("file-")) pairs.unshift(before); // an upload
  const options = pairs.map((pair) => {
    const option = document.createElement("option");
    option.textContent = pair.clip.name;
    option.pair = pair;
    return option;
  });
  $("clips").replaceChildren(...options);
  $("clips").disabled = !pairs.length;
  const again = pairs.findIndex((pair) => pair.clip.url === before?.clip?.url);
  $("clips").selectedIndex = Math.max(again, 0);
  if (pairs.length) await choose($("clips").selectedOptions[0].pair);
  else say("The server offers no clips; open or drop one.");
}

async function choose(pair, file = null) {
  shown = pair;
  sessionStorage.setItem("shown", JSON.stringify(pair));
  forget();
  $("clip-name").textContent = pair.clip.name;
  $("events-name").textContent = pair.events?.name ?? "no events: no hidden draft from them";
  strip = null;
  draw();
  try {
    const blob = file ?? (await (await call(contentOf(pair.clip.url))).blob());
    if (shown !== pair) return; // another one was chosen meanwhile
    const seconds = await play(blob);
    if (pair.events && shown === pair) {
      const query = `url=${encodeURIComponent(pair.events.url)}&seconds=${seconds}&frames=${FRAMES}`;
      const picture = await createImageBitmap(await (await call(`/page/events.png?${query}`)).blob());
      if (shown === pair) strip = picture;
    }
    if (shown === pair) complain(null);
  } catch (error) {
    if (shown === pair) complain(error);
  }
}

// Show a clip; returns its length in seconds.
function play(blob) {
  const video = $("clip");
  if (video.src) URL.revokeObjectURL(video.src);
  video.src = URL.createObjectURL(blob);
  return new Promise((found, failed) => {
    video.onloadedmetadata = () => {
      found(Number.isFinite(video.duration) ? video.duration : 0);
      if (!matchMedia("(prefers-reduced-motion: reduce)").matches) video.play().catch(() => {});
    };
    video.onerror = () => failed(new Refused("This browser cannot play the clip; questions about it may be answered all the same."));
  });
}

// The event frame of the moment that the clip shows.
function draw() {
  const canvas = $("events");
  const context = canvas.getContext("2d");
  if (!strip) {
    context.clearRect(0, 0, canvas.width, canvas.height);
    return;
  }
  const width = strip.width / COLUMNS;
  const height = strip.height / (FRAMES / COLUMNS);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const video = $("clip");
  const index = Math.min(Math.floor((video.currentTime / video.duration) * FRAMES) || 0, FRAMES - 1);
  context.drawImage(strip, (index % COLUMNS) * width, Math.floor(index / COLUMNS) * height, width, height, 0, 0, width, height);
  canvas.dataset.frame = index;
}

function drawOn() {
  draw();
  requestAnimationFrame(drawOn);
}

// A clip, its recording, or both; what is missing stays.
async function opened(files) {
  if (!files.length) return;
  const clip = [...files].find((file) => VIDEO.test(file.name));
  const events = [...files].find((file) => !VIDEO.test(file.name));
  try {
    if (!clip && !shown.clip) throw new Refused("Events alone cannot be asked about; open the clip, too.");
    say("Sending the files…");
    const pair = clip ? { clip: await upload(clip), events: null } : { ...shown };
    if (events) pair.events = await upload(events);
    say("");
    const option = document.createElement("option");
    Object.assign(option, { textContent: pair.clip.name, pair });
    $("clips").prepend(option);
    Object.assign($("clips"), { disabled: false, selectedIndex: 0 });
    await choose(pair, clip ?? null);
  } catch (error) {
    say("");
    complain(error);
  }
}

async function upload(file) {
  const form = new FormData();
  form.append("purpose", "user_data");
  form.append("file", file);
  const kept = await (await call("/v1/files", { method: "POST", body: form })).json();
  return { url: kept.id, name: file.name };
}

// -- an answer ------------------------------------------------------------------------------------------------------

function messages() {
  const content = [{ type: "video_url", video_url: { url: shown.clip.url } }];
  if (shown.events) content.push({ type: "event_url", event_url: { url: shown.events.url } });
  content.push({ type: "text", text: $("question").value });
  return [{ role: "user", content }];
}

// The structure that the answer must have, as a field of the request; nothing for any text.
function structure() {
  const text = $("schema").value.trim();
  if (!text) return {};
  try {
    return { response_format: { type: "json_schema", json_schema: { name: "answer", schema: JSON.parse(text) } } };
  } catch (error) {
    throw new Refused(`The JSON schema cannot be read: ${error.message}.`);
  }
}

async function ask() {
  if (running || !$("question").value.trim()) return;
  if (!shown.clip) return complain(new Refused("There is no clip to ask about; open or drop one."));
  let asked;
  try {
    asked = { model, messages: messages(), ...structure() };
  } catch (error) {
    return complain(error);
  }
  forget();
  const body = { ...asked, stream: true, crossdraft: { provisional: true, origins: true, timeline: true } };
  const live = new Live();
  await run("Answering…", async (signal) => {
    try {
      const response = await post("/v1/chat/completions", body, signal);
      for await (const news of eventsOf(response.body)) live.take(news);
      if (!live.done) throw new Refused("The answer was cut off; ask again.");
    } finally {
      live.stop();
    }
    if (asked.response_format) live.laidOut();
    answered = { asked, text: live.text, stats: live.stats };
    $("compare").disabled = false;
    $("whole").textContent = live.text; // which screen readers say once; word by word they would stumble
    say([`Answered: ${counted(live.stats.new_tokens, "token", "tokens")}.`, ...live.notes].join(" "));
  });
}

// Do something that can be cancelled.
async function run(what, work) {
  running = new AbortController();
  const about = shown;
  const focused = document.activeElement;
  $("ask").disabled = $("compare").disabled = true;
  $("cancel").disabled = false;
  complain(null);
  say(what);
  try {
    await work(running.signal);
  } catch (error) {
    say(error.name === "AbortError" && shown === about ? "Cancelled." : "");
    complain(error);
  } finally {
    running = null;
    $("ask").disabled = false;
    $("cancel").disabled = true;
    $("compare").disabled = !answered;
    // A button that was disabled has lost the focus.
    if (document.activeElement === document.body) focused.focus();
  }
}

// What a server-sent stream says: chunks, and our own news in its comments.
async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") yield { done: true };
      else if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
      else if (part.startsWith(": crossdraft ")) yield { ours: JSON.parse(part.slice(13)) };
    }
  }
}

// An answer on its way.
class Live {
  constructor() {
    this.text = "";
    this.stats = null;
    this.notes = [];
    this.done = false;
    this.since = performance.now();
    this.bars = [];
    this.words = []; // {text, kind, title} of the final pieces
    this.drafted = this.final = 0; // ms of the last piece
    this.tick();
  }

  tick() {
    const now = performance.now() - this.since;
    const reading = { lane: "target", kind: "prefill", start: 0, end: this.final ? this.read : now };
    lanes([{ lane: "drafter", kind: "hidden-draft", start: 0, end: this.drafted }, reading, ...this.bars], now);
    this.frame = requestAnimationFrame(() => this.tick());
  }

  stop() {
    cancelAnimationFrame(this.frame);
    for (const span of $("answer").querySelectorAll(".provisional")) span.remove();
  }

  take(news) {
    if (news.error) throw new Refused(news.error.message);
    if (news.done) this.done = true;
    if (news.ours?.provisional !== undefined) this.provisional(news.ours);
    if (news.ours?.timeline) this.end(news.ours.timeline);
    const text = news.choices?.[0]?.delta?.content;
    if (text) this.piece(text, news.crossdraft);
  }

  provisional({ provisional, ms }) {
    if (this.final) return; // too late to be of use
    if (!this.drafted) $("first").textContent = `${Math.round(ms)} ms`;
    this.drafted = ms;
    word(provisional, "provisional");
  }

  piece(text, { origin, ms, tokens }) {
    if (!this.final) {
      $("answer").replaceChildren();
      $("first-note").textContent = `first final text at ${Math.round(ms)} ms`;
      this.read = ms;
    } else this.bars.push({ lane: "target", kind: "verify", start: this.final, end: ms });
    this.final = ms;
    this.text += text;
    const title = `${origin}, ${counted(tokens, "token", "tokens")}, ${Math.round(ms)} ms`;
    this.words.push({ text, kind: origin, title });
    word(text, origin, title);
  }

  // Show JSON with a line for each member; every character stays in the colour of who wrote it.
  laidOut() {
    $("answer").classList.add("json");
    $("answer").replaceChildren();
    let [depth, quoted, escaped, empty, gap] = [0, false, false, false, ""];
    for (const { text, kind, title } of this.words) {
      let run = "";
      for (const letter of text) {
        if (!quoted && /\s/.test(letter)) continue;
        if (!quoted && "}]".includes(letter)) {
          depth -= 1;
          gap = empty ? "" : `\n${"  ".repeat(depth)}`;
        }
        run += gap + letter;
        [gap, empty] = ["", !quoted && "{[".includes(letter)];
        if (quoted) {
          quoted = escaped || letter !== '"';
          escaped = letter === "\\" && !escaped;
        } else if (letter === '"') quoted = true;
        else if ("{[".includes(letter)) gap = `\n${"  ".repeat(++depth)}`;
        else if (letter === ",") gap = `\n${"  ".repeat(depth)}`;
        else if (letter === ":") gap = " ";
      }
      if (run) word(run, kind, title);
    }
  }

  // The measured spans take the place of what was seen of them.
  end({ spans, stats, notes }) {
    this.stop();
    this.stats = stats;
    this.notes = notes;
    const rides = stats.hidden_drafted > 0;
    const bars = spans.map((span) => {
      let kind = KINDS[span.name] ?? "other";
      if (span.name === "verify" && span.tokens === 1) kind = "decode";
      if (span.name === "ride-along" && !rides) kind = "prefill";
      return { lane: span.lane, kind, start: span.start_ms, end: span.end_ms };
    });
    lanes(bars, Math.max(...bars.map((bar) => bar.end)));
    $("inside").textContent = `${Math.round(hidden(spans))} ms`;
    $("inside-note").textContent = "ran inside the target's reading";
    $("total").textContent = `${Math.round(stats.total_ms)} ms`;
    $("total-note").textContent = `${stats.new_tokens} tokens, ${counted(stats.rounds, "verify pass", "verify passes")}`;
    // All by the clock of the whole answer, which begins when the clip is loaded.
    const none = stats.cached_tokens ? "the clip was known already" : "none came in time";
    const early = stats.first_provisional_ms !== null;
    $("first").textContent = early ? `${Math.round(stats.first_provisional_ms)} ms` : "–";
    $("first-note").textContent = `first final text at ${Math.round(stats.ttft_ms)} ms${early ? "" : `; ${none}`}`;
  }
}

// Milliseconds of reading and drafting by the drafter, for the hidden draft, while the target read its prompt.
function hidden(spans) {
  const of = (lane, ...names) => spans.filter((span) => span.lane === lane && names.includes(span.name));
  const shared = (a, b) => Math.max(0, Math.min(a.end_ms, b.end_ms) - Math.max(a.start_ms, b.start_ms));
  const read = of("target", "prepare", "encode", "prefill");
  return of("drafter", "read", "hidden draft").reduce((sum, span) => read.reduce((all, one) => all + shared(span, one), sum), 0);
}

function word(text, kind, title = "") {
  const span = document.createElement("span");
  Object.assign(span, { textContent: text, className: kind, title });
  $("answer").append(span);
}

// The same question to the pair and to the target alone, run now, and what the pair saved.
async function compare() {
  const { asked, text } = answered;
  await run("The pair answers again, then the target alone…", async (signal) => {
    const alone = await (await post("/page/alone", asked, signal)).json();
    const cores = alone.cores ? ` on ${counted(alone.cores, "core", "cores")}` : "";
    $("saved").textContent = `${Math.round(alone.total_ms - alone.pair_ms)} ms`;
    $("saved-note").textContent = `target alone: ${Math.round(alone.total_ms)} ms${cores}; pair: ${Math.round(alone.pair_ms)} ms. Both read the clip anew, one run each`;
    say(alone.text === text ? "The target alone says the same." : `The target alone says: ${alone.text}`);
  });
}

function forget() {
  running?.abort();
  answered = null;
  $("answer").replaceChildren();
  $("answer").classList.remove("json");
  $("whole").textContent = "";
  $("compare").disabled = true;
  say("");
  for (const id of ["saved", "inside", "first", "total"]) $(id).textContent = "–";
  for (const id of ["inside-note", "first-note", "total-note"]) $(id).textContent = "\u00a0";
  $("saved-note").textContent = "measured when you compare";
  lanes([], 0);
  complain(null);
}

const counted = (number, one, more) => `${number} ${number === 1 ? one : more}`;
const say = (text) => ($("status").textContent = text || "\u00a0");

// -- timelines ------------------------------------------------------------------------------------------------------

function element(name, parent, text = "") {
  const made = document.createElement("div");
  Object.assign(made, { className: name, textContent: text });
  parent.append(made);
  return made;
}

// Draw bars {lane, kind, start, end}, in ms, on one axis that ends at `end`; before there is time to show nothing.
function lanes(bars, end) {
  const root = $("lanes");
  root.hidden = !end;
  bars = bars.filter((bar) => bar.end > bar.start);
  const step = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 60000].find((size) => end / size <= 6) ?? end;
  const most = Math.max(end, 50);
  root.replaceChildren();
  for (const lane of new Set(["drafter", "target", ...bars.map((bar) => bar.lane)])) {
    const row = element("lane", root);
    element("", row, lane);
    const track = element("track", row);
    for (const bar of bars.filter((bar) => bar.lane === lane)) {
      const made = element(`bar ${bar.kind}`, track);
      made.style.left = `${(100 * bar.start) / most}%`;
      made.style.width = `${(100 * (bar.end - bar.start)) / most}%`;
      made.title = `${MEANINGS[bar.kind]}: ${bar.start.toFixed(1)} to ${bar.end.toFixed(1)} ms`;
    }
  }
  const axis = element("lane axis", root);
  element("", axis, "ms");
  const track = element("track", axis);
  for (let mark = 0; mark <= most * 0.97; mark += step) {
    const label = document.createElement("span");
    label.textContent = mark;
    label.style.left = `${(100 * mark) / most}%`;
    track.append(label);
  }
  const kinds = [...new Set(bars.map((bar) => bar.kind))];
  $("kinds").replaceChildren(
    ...kinds.map((kind) => {
      const item = document.createElement("li");
      const mark = document.createElement("i");
      mark.className = kind;
      item.append(mark, MEANINGS[kind]);
      return item;
    }),
  );
  root.setAttribute("aria-label", `Timelines of drafter and target, ${Math.round(end)} ms`);
}

// -- what people do -------------------------------------------------------------------------------------------------

$("ask-form").addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key").value.trim());
  $("key").value = "";
  start();
});
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
for (const name of ["question", "schema"]) {
  $(name).addEventListener("input", () => sessionStorage.setItem(name, $(name).value));
  $(name).value = sessionStorage.getItem(name) ?? $(name).value;
}
$("cancel").addEventListener("click", () => running?.abort());
$("compare").addEventListener("click", compare);
$("clips").addEventListener("change", () => choose($("clips").selectedOptions[0].pair));
$("choose").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", () => {
  opened([...$("files").files]);
  $("files").value = ""; // so that the same file, opened again, is a change
});
document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  $("media").classList.add("dropping");
});
document.addEventListener("dragleave", () => $("media").classList.remove("dropping"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  $("media").classList.remove("dropping");
  opened(event.dataTransfer.files);
});

lanes([], 0);
drawOn();
start();
