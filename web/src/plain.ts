// The output of programs as text.

const escapes = /(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|(?:\x1b[PX^_]|[\x90\x98\x9e\x9f])[^\x1b\x9c]*(?:\x1b\\|\x9c)?|\x1b[ -/]*[0-~]?/g;
const controls = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]/g;

/** plain returns what a terminal would show of the output of a program, without colors. Nothing in it
 * moves the cursor, and a line that was written over has its last text. */
export function plain(output: string): string {
  return output.replace(escapes, "").replace(/\r+$/gm, "").replace(/^.*\r/gm, "").replace(controls, "");
}

/** fromBase64 returns the text of bytes that are not all text. */
export function fromBase64(bytes: string): string {
  return new TextDecoder().decode(Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0)));
}
