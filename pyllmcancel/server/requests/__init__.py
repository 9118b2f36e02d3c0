"""Our own endpoints for requests and sessions."""
