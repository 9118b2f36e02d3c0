"""The storm: thousands of requests on raw sockets, half of them leaving, against a real server."""
