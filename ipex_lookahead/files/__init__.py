"""Limited reads of untrusted files, and atomic writes."""
