// Shows what openapi.json describes, in Swagger UI. Not in the page itself: its policy runs nothing that stands there.
const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

globalThis.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  // Keys live as long as the page. And no stranger is asked whether the description is valid.
  persistAuthorization: false,
  validatorUrl: null,
});
