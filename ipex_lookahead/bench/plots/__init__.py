"""Pictures of what benches measured, one report's a file; matplotlib is needed for these alone."""
