"""Environments that are kept between runs in the user's cache folder: whole, or not there. Standard library only."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys

import setup
from setup import SetupError, output, wanted


def as_program(main):
    """Run ``main(arguments)``, which returns the exit status; print errors as a sentence."""
    try:
        sys.exit(main(sys.argv[1:]))
    except SetupError as error:
        sys.stderr.write("error: {}\n".format(error))
        if error.hint:
            sys.stderr.write("hint: {}\n".format(error.hint))
        sys.exit(1)
    except subprocess.CalledProcessError as error:
        sys.stderr.write("error: {} failed\n".format(" ".join(map(str, error.cmd))[:200]))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; run the same command again\n")
        sys.exit(130)


def kept(name, key, needed, say, make, whole=None):
    """Return the folder of an environment, created by ``make(folder)`` if it does not exist.

    It is created under another name and renamed when it is complete; one run creates it, others wait. ``key``
    identifies its contents, ``needed`` is the disk space in bytes, and ``whole(folder)`` returns True if it exists and
    works; by default its Python is run.
    """
    cache = cache_folder()
    os.makedirs(cache, exist_ok=True)
    folder = os.path.join(cache, "{}-{}".format(name, key))
    with open(os.path.join(cache, name + ".lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say("another run makes the environment; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not (whole or works)(folder):
            half = folder + ".half"
            for old in (folder, half):
                shutil.rmtree(old, ignore_errors=True)
            check_space(cache, needed)
            say("the environment will be {}".format(folder))
            make(half)
            os.rename(half, folder)
    return folder


def overlay(python, name, pins, needed, say, fetched):
    """Return the folder of an environment with ``pins`` in addition to the packages of ``python``.

    name, needed, say: See ``kept``.
    fetched: Download size, for the message.
    """
    packages = output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    key = hashlib.sha256("\n".join([packages] + pins).encode()).hexdigest()[:12]

    def make(folder):
        say("making its environment (once; about {} fetched)".format(fetched))
        subprocess.run([python, "-m", "venv", folder], check=True)
        inside = os.path.join(folder, "bin", "python")
        own = output([inside, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
        with open(os.path.join(own, "overlay.pth"), "w") as paths:  # code, because it reads .pth files there too
            paths.write("import site; site.addsitedir({!r})\n".format(packages))
        pip(inside, *pins)

    return kept(name, key, needed, say, make)


def check_space(cache, needed):
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise SetupError(
            "{} has {:.1f} GB free, and the environment needs {:.0f}".format(cache, free / 2**30, needed / 2**30),
            "free some, or set IPEX_LOOKAHEAD_CACHE to a folder on a larger disk",
        )


def cache_folder():
    base = os.environ.get("IPEX_LOOKAHEAD_CACHE")
    if base:
        return os.path.expanduser(base)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "ipex-lookahead")


def works(folder):
    """Whether the environment is there and its Python still runs (its base may have been removed)."""
    try:
        return output([os.path.join(folder, "bin", "python"), "-c", "import pip; print(1)"]) == "1"
    except (OSError, subprocess.CalledProcessError):
        return False


def pip(python, *arguments, quiet=False):
    """pip install, showing what it fetches."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-cache-dir"] + list(arguments)
    environment = dict(os.environ, PIP_NO_INPUT="1")
    said = []
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
    ) as process:
        try:
            for line in process.stdout:
                said.append(line)
                if wanted(line) or line.startswith("Installing"):
                    print("    " + line.split(" (from ")[0].strip()[:110])
                    sys.stdout.flush()
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        raise setup.pip_failure("".join(said), quiet)
