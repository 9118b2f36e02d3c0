// Shows openapi.json in Swagger UI. The script is a file of its own, because the page's policy runs nothing inline.
import { documentation } from "./lib/documentation.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

if (documentation) {
  const link = Object.assign(document.createElement("a"), { href: documentation, textContent: "guide" });
  document.querySelector("nav").append(link);
}

globalThis.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  // Keys live as long as the page. No external validator is asked whether the description is valid.
  persistAuthorization: false,
  validatorUrl: null,
});
