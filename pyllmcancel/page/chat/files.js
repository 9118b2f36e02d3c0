// Files that the person saves and chooses.

export function saveFile(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

export const fileName = (title, ending) => `${title.normalize("NFKD").replace(/[^\w]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 60).toLowerCase() || "chat"}.${ending}`;

// Return the files chosen in the browser's dialogue; none if it is closed.
export function chooseFiles(accept, multiple) {
  return new Promise((resolve) => {
    const input = Object.assign(document.createElement("input"), { type: "file", accept, multiple });
    input.addEventListener("change", () => resolve([...input.files]));
    input.addEventListener("cancel", () => resolve([]));
    input.click();
  });
}

export const MAX_IMAGES = 8, MAX_IMAGE = 10 * 2 ** 20; // images per message; bytes per image
export const IMAGE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

// Return the file as a data: URL; throws an Error that says why the file is not accepted.
export function readImage(file) {
  if (!IMAGE_TYPES.includes(file.type)) throw new Error(`${file.name} is not a PNG, JPEG, GIF or WebP image`);
  if (file.size > MAX_IMAGE) throw new Error(`${file.name} has more than 10 MiB`);
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

export const MAX_TEXTS = 16, MAX_TEXT = 2 ** 20; // text files per message; bytes per file

// Return {name, text} of a text file; throws an Error that says why the file is not accepted.
export async function readText(file) {
  if (file.size > MAX_TEXT) throw new Error(`${file.name} has more than 1 MiB`);
  if (file.size === 0) throw new Error(`${file.name} is empty`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not a text file in UTF-8`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file`);
  return { name: file.name, text };
}
