"""Many models behind one address: each is served by a process of its own, started when it is asked for."""
