// Verifies the log's evidence with the browser's own cryptography: RFC 6962 trees and C2SP signed notes.

const utf8 = new TextEncoder();

export const fromHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
export const toHex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

// Web cryptography is available only over https and on the local machine.
export const hasCryptography = () => Boolean(globalThis.crypto && crypto.subtle);

async function sha256(...parts) {
  const joined = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) { joined.set(part, at); at += part.length; }
  return new Uint8Array(await crypto.subtle.digest("SHA-256", joined));
}

export const leafHash = (data) => sha256(Uint8Array.of(0), utf8.encode(data));
const nodeHash = (left, right) => sha256(Uint8Array.of(1), left, right);
export const same = (a, b) => a.length === b.length && a.every((byte, at) => byte === b[at]);

// Sizes are JSON numbers up to 2^53, too large for bitwise operators.
const odd = (number) => number % 2 === 1;
const half = (number) => Math.floor(number / 2);

// Returns the root that an inclusion proof leads to, or null if the proof has the wrong length (RFC 9162, 2.1.3.2).
export async function rootByInclusion(index, size, leaf, proof) {
  if (!Number.isSafeInteger(index) || index < 0 || index >= size) return null;
  let node = index, last = size - 1, hash = leaf;
  for (const sibling of proof) {
    if (last === 0) return null;
    if (odd(node) || node === last) {
      hash = await nodeHash(sibling, hash);
      while (!odd(node) && node !== 0) { node = half(node); last = half(last); }
    } else {
      hash = await nodeHash(hash, sibling);
    }
    node = half(node);
    last = half(last);
  }
  return last === 0 ? hash : null;
}

// Returns whether a proof leads from the root of the first `old` leaves to that of the first `size` (RFC 9162, 2.1.4.2).
export async function isConsistent(old, size, oldRoot, newRoot, proof) {
  if (old === size) return proof.length === 0 && same(oldRoot, newRoot);
  if (!(old > 0 && old < size) || proof.length === 0) return false;
  const power = Number.isInteger(Math.log2(old)) && 2 ** Math.round(Math.log2(old)) === old;
  const hashes = power ? [oldRoot, ...proof] : proof;
  let first = hashes[0], second = hashes[0];
  let node = old - 1, last = size - 1;
  while (odd(node)) { node = half(node); last = half(last); }
  for (const sibling of hashes.slice(1)) {
    if (last === 0) return false;
    if (odd(node) || node === last) {
      first = await nodeHash(sibling, first);
      second = await nodeHash(sibling, second);
      while (!odd(node) && node !== 0) { node = half(node); last = half(last); }
    } else {
      second = await nodeHash(second, sibling);
    }
    node = half(node);
    last = half(last);
  }
  return last === 0 && same(first, oldRoot) && same(second, newRoot);
}

// Parses a checkpoint: origin, size, root, signed text and signatures. Throws an Error with the fault.
export function readCheckpoint(note) {
  const end = note.lastIndexOf("\n\n");
  if (end < 0) throw new Error("It is not a signed note: an empty line before the signatures is missing.");
  const text = note.slice(0, end + 1);
  const [origin, size, root, ...more] = text.split("\n");
  if (!origin || !/^(0|[1-9][0-9]{0,15})$/.test(size ?? "") || !root || more.length < 1) {
    throw new Error("It is not a checkpoint: origin, size and root must be its first three lines.");
  }
  const signatures = note.slice(end + 2).split("\n").filter(Boolean).map((line) => {
    const [dash, name, encoded] = line.split(" ");
    if (dash !== "\u2014" || !encoded) throw new Error("A line of signatures is malformed.");
    const bytes = fromBase64(encoded);
    return { name, id: toHex(bytes.slice(0, 4)), signature: bytes.slice(4) };
  });
  return { origin, size: Number(size), root: fromBase64(root), text, signatures };
}

// Parses a public key, `<name>+<id>+<base64 of 0x01 and the key>`; null if the id does not match the key.
async function readKey(text) {
  const parts = text.trim().split("+");
  const [name, id] = parts;
  const raw = fromBase64(parts.slice(2).join("+"));
  const expected = toHex((await sha256(utf8.encode(`${name}\n`), raw)).slice(0, 4));
  return raw[0] === 1 && raw.length === 33 && id === expected ? { name, id, raw: raw.slice(1) } : null;
}

// Returns the ids of those of `keys` that validly signed a checkpoint. Throws if a signature in a key's name is invalid.
export async function signersOf(checkpoint, keys) {
  const good = [];
  for (const text of keys) {
    const key = await readKey(text);
    const signed = key && checkpoint.signatures.find((one) => one.name === key.name && one.id === key.id);
    if (!signed) continue;
    const imported = await crypto.subtle.importKey("raw", key.raw, { name: "Ed25519" }, false, ["verify"]);
    const holds = await crypto.subtle.verify({ name: "Ed25519" }, imported, signed.signature, utf8.encode(checkpoint.text));
    if (!holds) throw new Error(`The signature of key ${key.id} is not good: the checkpoint was changed or forged.`);
    good.push(key.id);
  }
  return good;
}

// A list of checks, line by line, with an overall outcome.
export class Report {
  constructor(list, outcome) {
    this.list = list;
    this.outcome = outcome;
    this.bad = 0;
    this.open = 0;
    list.replaceChildren();
    this.say("", "");
  }

  line(tone, text) {
    const item = document.createElement("li");
    item.className = tone;
    item.textContent = text;
    this.list.append(item);
    if (tone === "bad") this.bad += 1;
    if (tone === "warn") this.open += 1;
  }

  say(tone, text) {
    this.outcome.className = `outcome ${tone}`;
    this.outcome.textContent = text;
  }
}

// Checks that one of `keys` signed a checkpoint, and reports the result.
export async function reportSignature(report, checkpoint, keys) {
  let good;
  try {
    good = await signersOf(checkpoint, keys);
  } catch (error) {
    if (error.name === "NotSupportedError") {
      report.line("warn", "This browser cannot check Ed25519 signatures. Use a current version of Firefox, Safari, Chrome or Edge, or ./lethe audit verify.");
      return;
    }
    report.line("bad", error.message);
    return;
  }
  if (good.length) report.line("good", `The log of ${checkpoint.size} events is signed with key ${good.join(" and ")}. Compare the key with one that you obtained elsewhere.`);
  else report.line("bad", "None of the keys of this log has signed the checkpoint.");
}

export const insecure = "This page was opened without encryption from another machine, so the browser offers it no cryptography. Open it through https, or check the receipt with ./lethe audit verify.";
