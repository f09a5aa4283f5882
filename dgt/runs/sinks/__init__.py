"""One file per sink; each is chosen as `logger=NAME` and has `SINK = its class`."""
