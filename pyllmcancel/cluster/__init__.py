"""Several servers behind one address: HAProxy's configuration, and all of it on one machine under one command."""
