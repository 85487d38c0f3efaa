"""Requests on token ids, without torch: the service thread, one-off runs, defaults, stop texts."""
