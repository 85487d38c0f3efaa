"""Several models behind one server: one process for HTTP, and one ``serve`` process for each loaded model."""
