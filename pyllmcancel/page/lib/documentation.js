// The address of the documentation, which the server writes into the page; "" if it knows none.
export const documentation = document.querySelector('meta[name="documentation"]')?.content ?? "";
