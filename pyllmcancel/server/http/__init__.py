"""HTTP: connections, keys, hosts, limits of bodies, and each request's context."""
