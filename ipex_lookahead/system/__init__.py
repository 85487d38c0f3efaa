"""The environment of the process: control groups, the terminal, optional packages, the release of transformers."""
