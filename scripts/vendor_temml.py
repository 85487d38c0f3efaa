#!/usr/bin/env python3
"""Write the page's copy of Temml (LaTeX to MathML, MIT license) from npm's package, for a new version of it.

    python3 scripts/vendor_temml.py

The copy is in ipex_lookahead/serving/page/vendor and its license in licenses. Builds and tests read the copy; they
fetch nothing. The script is the package's own, between a first line that names its origin and an export. The style
lacks the font and the picture (of \\cancelto) that the page's policy forbids. Standard library and npm only.
"""

import base64
import hashlib
import os
import re
import subprocess
import tarfile
import tempfile

from environments import as_program
from setup import ROOT, SetupError

VERSION = "0.13.5"
INTEGRITY = "sha512-aPkDDgunanpLNL0ql32HbolqLep+w8DRcVXRql7rWrMt/PhczdLgL4UBYYVU3BYjCNjkGq4EqwIicu/zWr1iOg=="
"""npm's checksum of the package (``npm view temml dist.integrity``)."""
FOLDER = os.path.join(ROOT, "ipex_lookahead", "serving", "page", "vendor")
LICENSE = os.path.join(ROOT, "licenses", "temml.txt")
CUT = (r"/\*\nTemml\.woff2 is .*?\*/\n\n", r"@font-face \{.*?\n\}\n\n", r"\.tml-cancelto \{.*?\n\}\n")
"""Parts of the style that load something."""


def main(arguments):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", "temml@" + VERSION], cwd=folder, check=True)
        name = "temml-{}.tgz".format(VERSION)
        with open(os.path.join(folder, name), "rb") as file:
            digest = "sha512-" + base64.b64encode(hashlib.sha512(file.read()).digest()).decode()
        if digest != INTEGRITY:
            raise SetupError("{} has the checksum {}".format(name, digest), "it should have {}".format(INTEGRITY))
        with tarfile.open(os.path.join(folder, name)) as package:
            script, style, license = (
                package.extractfile("package/" + one).read().decode()
                for one in ("dist/temml.min.js", "dist/Temml-Local.css", "LICENSE")
            )
    for pattern in CUT:
        style, cuts = re.subn(pattern, "", style, flags=re.DOTALL)
        if cuts != 1:
            raise SetupError("the style has {} parts like {}".format(cuts, pattern))
    if "url(" in style:
        raise SetupError("the style loads something")
    os.makedirs(FOLDER, exist_ok=True)
    write(os.path.join(FOLDER, "temml.min.js"), origin("temml.min.js", script) + script + "\nexport default temml;\n")
    write(os.path.join(FOLDER, "temml.css"), origin("Temml-Local.css, in part", style) + style)
    write(LICENSE, license)


def origin(file, text):
    """The first line of a copy: where it comes from, and the checksum of the rest (of a script, without the export)."""
    form = "/*! Temml {}, MIT license (licenses/temml.txt). npm: temml@{}, dist/{}; sha256 {} */\n"
    return form.format(VERSION, VERSION, file, hashlib.sha256(text.encode()).hexdigest())


def write(path, text):
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


if __name__ == "__main__":
    as_program(main)
