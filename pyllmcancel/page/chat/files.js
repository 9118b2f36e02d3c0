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

export const MAX_IMAGES = 8, MAX_IMAGE = 20 * 2 ** 20; // images per message; bytes per image
export const IMAGE_TYPES = ["image/png", "image/jpeg", "image/gif", "image/bmp", "image/webp", "image/avif"];
const SENT_TYPES = ["image/png", "image/jpeg", "image/gif"]; // those that the server takes, and that are kept as they are
const MAX_SENT = 2 ** 19, MAX_SIDE = 2048; // bytes and pixels above which an image is made smaller: each turn sends it again

// Return the file as a data: URL of a type and size that can be sent; throws an Error that says why it is not accepted.
export async function readImage(file) {
  if (!IMAGE_TYPES.includes(file.type)) throw new Error(`${file.name} is not a PNG, JPEG, GIF, BMP, WebP or AVIF image`);
  if (file.size > MAX_IMAGE) throw new Error(`${file.name} has more than 20 MiB`);
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (bitmap === null) throw new Error(`${file.name} is damaged: this browser cannot show it`);
  const { width, height } = bitmap;
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height));
  const isSent = SENT_TYPES.includes(file.type) && file.size <= MAX_SENT && scale === 1;
  const url = await dataUrl(isSent ? file : await smaller(bitmap, scale));
  bitmap.close();
  return url;
}

// A PNG keeps letters sharp; a photograph would be too large as one.
async function smaller(bitmap, scale) {
  const canvas = new OffscreenCanvas(Math.max(1, Math.round(bitmap.width * scale)), Math.max(1, Math.round(bitmap.height * scale)));
  const context = canvas.getContext("2d");
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const sharp = await canvas.convertToBlob({ type: "image/png" });
  if (sharp.size <= MAX_SENT) return sharp;
  context.globalCompositeOperation = "destination-over"; // a JPEG has no transparency: behind it is white
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.9 });
}

function dataUrl(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
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
