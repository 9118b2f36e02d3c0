"""HTTP: OpenAI's endpoints, and what they need to cancel. Imports the core; the core never imports this."""
