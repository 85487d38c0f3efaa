"""``python -m ipex_lookahead``: the command, also where the folder that pip writes programs to is not on the PATH."""

from __future__ import annotations

from ipex_lookahead.cli.main import main

if __name__ == "__main__":
    main()
