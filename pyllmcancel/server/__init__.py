"""HTTP: OpenAI's endpoints, and the parts that they need to cancel. It imports the core; the core never imports it."""
