// What a chat asks for beside its messages: texts as they stand in the fields, empty where the server's default is meant.

const kStart = { temperature: "0.7", top_p: "0.95", top_k: "", min_p: "", max_tokens: "1024", seed: "", stop: "", schema: "", tools: "" };
const kSettings = Object.keys(kStart), kStartKey = "refold-start";

// What a new chat begins with: what a person has kept for it, else kStart.
function startSettings() {
  const out = { ...kStart };
  withStorage(storage => {
    const kept = JSON.parse(storage.getItem(kStartKey) || "{}");
    for (const name of kSettings) if (typeof kept[name] === "string") out[name] = kept[name];
  });
  return out;
}

class SettingError extends Error {
  constructor(name, message) {
    super(message);
    this.name = "SettingError";
    this.field = name;
  }
}

// The settings as fields of a request. Throws SettingError for the first that cannot be sent.
function requestFields(settings) {
  const out = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    if (!settings[name].trim()) continue;
    out[name] = Number(settings[name]);
    if (!Number.isFinite(out[name])) throw new SettingError(name, `${name}: '${settings[name]}' is no number`);
  }
  const stop = settings.stop.split("\n").filter(Boolean).map(text => text.replace(/\\n/g, "\n"));
  if (stop.length) out.stop = stop;
  const schema = readJson(settings, "schema", "The JSON Schema"), tools = readJson(settings, "tools", "The list of tools");
  if (schema !== undefined) out.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  if (tools !== undefined) out.tools = tools;
  return out;
}

function readJson(settings, name, what) {
  if (!settings[name].trim()) return undefined;
  try {
    return JSON.parse(settings[name]);
  } catch (error) {
    throw new SettingError(name, `${what} is not JSON: ${error.message}`);
  }
}
