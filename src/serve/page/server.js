// The server's state beside the chat: its model and costs, and what it does now.

const kColors = 6, kSamples = 60;
let served = null;    // the latest /status
let samples = [];     // rows of a step by loop, one entry a second
let keyRefused = false;
const kModelKey = "refold-model";

// A model that is not loaded does not tell whether it has a chat template; most have.
const isChat = () => !served || served.chat || !isLoaded();
const isLoaded = () => served.models.some(({ model, state }) => model === served.model && state === "loaded");
const loopsOf = () => served?.description.loops || 1;

// Whether tokens may end before the last loop, so that it is of interest where they do.
function exitsEarly() {
  const serving = served?.description.serving;
  return loopsOf() > 1 && Boolean(serving) && (serving.exit !== "none" || serving.exact > 0);
}

function list(target, entries) {
  target.replaceChildren(...entries.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function describe(s) {
  const d = s.description, m = d.memory, q = d.serving;
  document.title = s.model + " - refold";
  $("name").textContent = s.model;
  $("system_field").hidden = !isChat();
  for (const name of ["summary", "model", "serving", "memory"]) $(name).replaceChildren();
  if (!d.architecture) return;
  const loops = d.loops > 1 ? `${d.loops} loops of ${d.layers / d.loops} layers` : `${d.layers} layers`;
  $("summary").textContent = `${d.architecture}, ${loops}`;
  const entries = [["Parameters", short(d.stored.parameters)]];
  if (d.shares) entries.push(["Without sharing", short(d.without_sharing.parameters)]);
  entries.push(["Bytes", bytes(d.stored.bytes)]);
  if (d.shares) entries.push(["Without sharing", bytes(d.without_sharing.bytes)]);
  entries.push(["Tensors", number(d.tensors)], ["Layers", loops], ["Width", number(d.n_embd)],
    ["Heads", `${d.n_head} / ${d.n_head_kv} KV`], ["Vocabulary", number(d.n_vocab)],
    ["Operations per token", short(d.stored.flops_per_token)],
    ["KV bytes per token", bytes(d.stored.kv_bytes_per_token)]);
  list($("model"), entries);
  const serving = [["Context", number(s.context) + " tokens"]];
  if (q && d.loops > 1) {
    serving.push(["Exit", q.exit + (q.exit === "fixed" ? " after loop " + q.exit_loop : "") +
      (q.exit_thresholds.length ? " " + q.exit_thresholds.join(", ") : "")]);
    if (q.exit !== "none") serving.push(["Exited tokens' KV", q.exit_kv]);
    if (q.exact) serving.push(["Exact mode", `up to ${q.exact} drafts`]);
  }
  list($("serving"), serving);
  const memory = m ? [["Weights", bytes(m.weight_bytes)], ["KV cache", bytes(m.kv_bytes)]] : [];
  const loaded = s.models.filter(({ state }) => state === "loaded");
  if (s.models.length > 1)
    memory.push(["All loaded models", bytes(loaded.reduce((sum, { memory_bytes }) => sum + memory_bytes, 0))]);
  list($("memory"), memory);
}

function bar(id, part, whole) { $(id).style.width = Math.min(100, 100 * part / Math.max(1, whole)) + "%"; }

function figure() {
  const most = Math.max(4, ...samples.map(s => s.reduce((a, b) => a + b, 0)));
  const loops = Math.max(1, ...samples.map(s => s.length));
  const width = 240 / kSamples, parts = [drawn("line", { class: "axis", x1: 0, x2: 240, y1: 83.5, y2: 83.5 })];
  samples.forEach((sample, i) => {
    let y = 83;
    sample.forEach((rows, loop) => {
      const height = 80 * rows / most;
      if (rows > 0) parts.push(drawn("rect", { class: "c" + loop % kColors, x: (i + kSamples - samples.length) * width,
        y: y - height, width: width * .85, height }));
      y -= height;
    });
  });
  $("figure").replaceChildren(...parts);
  $("rows_most").textContent = "scale: " + most;
  if (loops > 1 && $("legend").children.length !== loops) {
    $("legend").replaceChildren(...Array.from({ length: loops }, (_, i) => {
      const mark = drawn("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
      mark.append(drawn("rect", { class: "c" + i % kColors, width: 10, height: 10 }));
      return element("span", {}, mark, "loop " + (i + 1));
    }));
  }
}

function exits(counts) {
  const all = counts.reduce((a, b) => a + b, 0);
  $("exits").hidden = counts.length < 2 || all === 0;
  $("exits_bars").replaceChildren(...counts.flatMap((count, i) => {
    const part = count / Math.max(1, all), fill = element("div");
    fill.style.width = 100 * part + "%";
    return [element("div", { class: "label" }, element("span", {}, "loop " + (i + 1)), element("span", {}, percent(part))),
      element("div", { class: "bar" }, fill)];
  }));
}

function showState(text, bad) {
  $("state").textContent = text;
  $("state").className = bad ? "bad" : "";
}

function update(s) {
  const last = served, facts = s => JSON.stringify([s.model, s.description, s.chat, s.models]);
  s.description ||= {};  // of a model that was never loaded
  const fresh = !last || facts(s) !== facts(last) || s.steps < last.steps;
  served = s;
  if (fresh) {
    samples = [];
    describe(s);
    showActions();
    showModels(s.models);
  }
  $("slots").textContent = `${s.running} of ${s.slots}`;
  bar("slots_bar", s.running, s.slots);
  $("queue").textContent = number(s.waiting);
  $("kv").textContent = `${number(s.kv_tokens_used)} of ${number(s.kv_tokens)}`;
  bar("kv_bar", s.kv_tokens_used, s.kv_tokens);
  const idle = fresh || s.steps === last.steps;
  if (!fresh) {
    const seconds = s.uptime_seconds - last.uptime_seconds;
    const speed = seconds > 0 ? ((s.generated_tokens - last.generated_tokens) / seconds).toFixed(1) : "-";
    $("speed").textContent = speed;
    $("speed_line").textContent = idle ? "" : speed + " tokens/s";
  }
  samples.push(idle ? [] : s.last_rows_at.length ? s.last_rows_at : [s.last_rows]);
  if (samples.length > kSamples) samples.shift();
  $("rows").textContent = idle ? "idle" : `${s.last_rows} ${s.last_rows === 1 ? "row" : "rows"} in the latest step`;
  figure();
  exits(s.exits);
  showState(s.running ? "busy" : "ready");
}

// The chooser, where the server has several models. What is not loaded will be, by the first request.
function showModels(models) {
  const select = $("models"), names = models.map(({ model }) => model);
  const texts = models.map(({ model, state }) => state === "loaded" ? model : `${model} (${state})`);
  if (JSON.stringify(Array.from(select.options, option => option.textContent)) === JSON.stringify(texts)) return;
  let kept = select.value;
  withStorage(storage => { kept ||= storage.getItem(kModelKey) || ""; });
  select.replaceChildren(...names.map((value, i) => element("option", { value }, texts[i])));
  select.value = names.includes(kept) ? kept : served.model;
  $("models_field").hidden = models.length < 2;
  $("name").classList.toggle("unseen", models.length > 1);
}

// The name that requests say: none where there is no choice.
const chosenModel = () => $("models").options.length > 1 ? $("models").value : "";

async function refresh() {
  try {
    const chosen = chosenModel(), query = chosen && "?model=" + encodeURIComponent(chosen);
    const response = await fetch("/status" + query, { headers: headers(), cache: "no-store" });
    const refused = response.status === 401;
    if (refused !== keyRefused) $("access").hidden = !refused;
    keyRefused = refused;
    if (response.ok) return update(await response.json());
    if (response.status === 404) $("models").replaceChildren();  // another server than before
    showState(refused ? "needs an API key" : "HTTP " + response.status, true);
  } catch {
    showState("not reachable", true);
  }
}
