"""The native engine: our own C++ core on any x86-64 CPU."""
