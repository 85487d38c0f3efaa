"""What the process runs on: control groups, the terminal, optional packages, the release of transformers."""
