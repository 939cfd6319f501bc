// The panel's sentences, in the language that ComfyUI is set to: locales/*/main.json, which its server hands out.

import { app } from "../../../scripts/app.js";
import { api } from "../../../scripts/api.js";

const ENGLISH = "en";
let sentences = {}; // by language

/** Fetches the sentences; before that, `say` only names their keys. */
export async function loadWords() {
  const translations = await (await api.fetchApi("/i18n")).json();
  sentences = Object.fromEntries(Object.entries(translations).map(([name, { ssd }]) => [name, ssd?.panel]));
}

/** The code of the language that the user chose, such as "zh". */
export function language() {
  return app.extensionManager?.setting?.get("Comfy.Locale") ?? ENGLISH;
}

/** The version of a text in the user's language: texts = { en: ..., zh: ... }. */
export function inLanguage(texts) {
  return texts[language()] ?? texts[ENGLISH];
}

/** A sentence of the panel with its values. */
export function say(key, values = {}) {
  const sentence = inLanguage(sentences)?.[key] ?? key;
  return sentence.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}
