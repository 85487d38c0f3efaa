"""Intel's offline compiler for its GPUs, unpacked from Debian unstable into the user's cache folder.

apt works in a root of its own: its source, its lists and its idea of what is installed (nothing) lie there, so that
nothing of the machine changes. The mirror is that of the machine's own sources. Standard library only.
"""

import glob
import os
import platform
import re
import shutil
import subprocess

from environments import kept
from setup import SetupError

PACKAGES = ["intel-ocloc", "libigc2", "libigdfcl2"]
SUITE = "sid"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
NEEDED = 1 << 30
"""Bytes that making it takes; a quarter of them stay."""
PATIENCE = 600
CONF = """#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
Dir::Etc::sourcelist "{0}/sources.list";
Dir::Etc::sourceparts "{0}/empty";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{0}/empty";
Dir::State "{0}/state";
Dir::State::lists "{0}/lists";
Dir::State::status "{0}/state/status";
Dir::State::extended_states "{0}/state/extended";
Dir::Cache "{0}/cache";
Dir::Cache::archives "{0}/archives";
Dir::Log "{0}";
APT::Architecture "amd64";
APT::Architectures {{ "amd64"; }};
APT::Install-Recommends "false";
APT::Update::Error-Mode "any";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::http::Timeout "30";
"""


class Unreachable(SetupError):
    """There is no Debian to fetch the compiler from."""


class Ocloc:
    """The compiler in a folder, run by the C library that came with it."""

    def __init__(self, folder):
        self.libraries = os.path.dirname(_only(folder, "usr/lib/*/libigc.so.2"))
        self._program = _only(folder, "usr/bin/ocloc*")
        self._loader = _only(folder, "usr/lib/*/ld-linux-*.so.2")
        with open(os.path.join(folder, "versions")) as lines:
            self.versions = dict(line.split() for line in lines)

    def run(self, *arguments, folder):
        """Exit status and what it said; it works in ``folder``."""
        command = [self._loader, "--library-path", self.libraries, self._program] + list(arguments)
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE, errors="replace"
        )
        return done.returncode, done.stdout

    def version(self, device, folder):
        """The number of a device's architecture, which names some devices' binaries in an archive."""
        status, said = self.run("ids", device, folder=folder)
        if status:
            raise SetupError("ocloc does not know the device {}: {}".format(device, said.strip()[-200:]))
        return said.split()[-1]

    def query(self, question, device, folder):
        """Return the words of the answer to a query of a device."""
        status, said = self.run("query", question, "-device", device, folder=folder)
        if status:
            raise SetupError("ocloc does not know the device {}: {}".format(device, said.strip()[-200:]))
        return said.split()


def compiler(say):
    """The compiler; fetched if it is missing. Raises Unreachable where it cannot be fetched."""
    return Ocloc(kept("ocloc", SUITE, NEEDED, say, lambda folder: _make(folder, say), _works))


def mirror(targets):
    """The first of apt's sites that serves Debian itself; None where there is none."""
    sites = [site.rstrip("/") for site in targets.split()]
    return next((site for site in sites if re.search(r"/debian(\.list)?$", site)), None)


def _make(folder, say):
    if platform.machine() != "x86_64":
        raise Unreachable("the compiler is for x86-64, and this is {}".format(platform.machine()))
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb") and os.path.exists(KEYRING)):
        raise Unreachable("this system is not Debian: it has no apt-get, dpkg-deb or {}".format(KEYRING))
    site = mirror(_said(["apt-get", "indextargets", "--format", "$(SITE)"]))
    if site is None:
        raise Unreachable("none of this machine's apt sources is Debian's archive")
    say("fetching Intel's offline compiler from Debian unstable (once; about 83 MB)")
    root = os.path.join(folder, "apt")
    for part in ("empty", "lists/partial", "archives/partial", "state", "cache"):
        os.makedirs(os.path.join(root, part))
    for name, text in (
        ("sources.list", "deb [signed-by={}] {} {} main\n".format(KEYRING, site, SUITE)),
        ("apt.conf", CONF.format(root)),
        ("state/status", ""),
    ):
        with open(os.path.join(root, name), "w") as file:
            file.write(text)
    apt = ["apt-get", "-c", os.path.join(root, "apt.conf"), "-qq"]
    _said(apt + ["update"])
    _said(apt + ["--download-only", "--yes", "install"] + PACKAGES)
    versions = []
    for package in sorted(glob.glob(os.path.join(root, "archives", "*.deb"))):
        _said(["dpkg-deb", "--extract", package, folder])
        versions.append(_said(["dpkg-deb", "--show", "--showformat", "${Package} ${Version}", package]))
    with open(os.path.join(folder, "versions"), "w") as lines:
        lines.write("".join(line + "\n" for line in versions if line.split()[0] in PACKAGES))
    shutil.rmtree(root)


def _said(command):
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE, errors="replace"
        )
    except subprocess.TimeoutExpired:
        raise Unreachable("{} took more than {} s".format(command[0], PATIENCE)) from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["exit status {}".format(done.returncode)]
        raise Unreachable("{} failed: {}".format(command[0], said[-1][:200]))
    return done.stdout


def _works(folder):
    """Whether it is whole, and runs here."""
    try:
        return Ocloc(folder).run("query", "OCL_DRIVER_VERSION", folder=folder)[0] == 0
    except (OSError, SetupError, ValueError, subprocess.SubprocessError):
        return False


def _only(folder, pattern):
    found = sorted(glob.glob(os.path.join(folder, pattern)))
    if not found:
        raise SetupError("{} has no {}".format(folder, pattern), "remove the folder, and run it again")
    return found[0]
