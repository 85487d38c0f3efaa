#!/usr/bin/env python3
"""Make ``.venv`` ready: torch's CPU build, the dependencies, the native core. Standard library only.

    python3 scripts/setup.py [--with test] [--with bench]

Every stage leaves a stamp in ``.venv/ipex-lookahead`` holding a hash of what it depends on, written last, so that a
second run does nothing and needs no network, and an interrupted one goes on where it stopped.
The syntax stays that of old Pythons up to the version check, so that they print a sentence and not a SyntaxError.
"""

import fcntl
import glob
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
VENV_OLD = os.path.join(ROOT, ".venv.old")
PYTHON = os.path.join(VENV, "bin", "python")
STAMPS = os.path.join(VENV, "ipex-lookahead")
HALF_MADE = os.path.join(VENV, "half-made")
INSTALLING = os.path.join(VENV, "installing")

OLDEST = (3, 10)
TORCH = "torch==2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
BUILD = ["scikit-build-core>=0.11", "nanobind>=2.4", "hatch-fancy-pypi-readme>=23.2", "cmake>=3.26", "ninja>=1.10"]
BUILD_DIR = "build/core-{wheel_tag}"
"""Where objects are kept, so that only what has changed is compiled; pip alone builds in a folder that it removes."""
NATIVE_SOURCES = ["pyproject.toml", "CMakeLists.txt", "csrc"]
EXTRAS = ("test", "bench", "docs", "serve", "xpu", "dev")
"""Optional extras; ``torch`` is always installed, because examples and tests need it."""
IMPORTS = "import torch, transformers, tokenizers, sentencepiece, safetensors, numpy, click, rich, jinja2, yaml, gguf"


class SetupError(Exception):
    """One clear sentence, and the remedy."""

    def __init__(self, message, hint=""):
        super(SetupError, self).__init__(message)
        self.hint = hint


def main(argv):
    extras = []
    arguments = list(argv)
    while arguments:
        flag = arguments.pop(0)
        if flag != "--with" or not arguments or arguments[0] not in EXTRAS:
            raise SetupError(
                "unknown argument {!r}".format(flag), "usage: setup.py [--with " + "|".join(EXTRAS) + "]..."
            )
        extras.append(arguments.pop(0))

    check_python()
    os.makedirs(os.path.join(ROOT, "build"), exist_ok=True)
    with open(os.path.join(ROOT, "build", "setup.lock"), "w") as lock:
        wait_for(lock)
        make_venv()
        install_torch()
        install_dependencies(extras)
        build_native()


def wait_for(lock):
    """Two runs at once must not install into the same environment."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        say("another set-up is running in this folder; waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)


# --- what the machine must bring ----------------------------------------------------------------------------------


def check_python():
    if sys.version_info < OLDEST:
        raise SetupError(
            "Python {}.{} or newer is needed; {} is {}.{}".format(
                OLDEST[0], OLDEST[1], sys.executable, *sys.version_info[:2]
            ),
            "name a newer one: make PYTHON=python3.12",
        )


def check_compiler():
    """A C++17 compiler that links, and Python's own headers."""
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if not compiler:
        raise SetupError(
            "no C++ compiler was found (looked for c++, g++ and clang++)",
            "install one, e.g. 'apt install g++' or 'dnf install gcc-c++', or set CXX",
        )
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "probe.cc")
        with open(source, "w") as out:
            out.write("#include <optional>\nint main() { return std::optional<int>(0).value(); }\n")
        command = compiler.split() + ["-std=c++17", source, "-o", os.path.join(folder, "probe")]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        except OSError as error:
            raise SetupError("the C++ compiler {} cannot be run: {}".format(compiler, error.strerror)) from None
    if done.returncode != 0:
        raise SetupError(
            "{} cannot build a C++17 program: {}".format(
                compiler, (done.stdout.strip() or "no message").splitlines()[0]
            ),
            "install a C++17 compiler (gcc 9 or newer, clang 10 or newer), or set CXX",
        )
    include = output([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('include'))"])
    if not os.path.exists(os.path.join(include, "Python.h")):
        raise SetupError(
            "Python's C headers are missing (no {})".format(os.path.join(include, "Python.h")),
            "install them, e.g. 'apt install python3-dev', or name another Python: make PYTHON=...",
        )


# --- the stages ---------------------------------------------------------------------------------------------------


def make_venv():
    """Create a ``.venv``, or replace one that is incomplete or has no working Python."""
    shutil.rmtree(VENV_OLD, ignore_errors=True)
    if os.path.lexists(VENV):
        fault = venv_fault()
        if not fault:
            return
        say("making .venv again: " + fault)
        os.rename(VENV, VENV_OLD)  # at once: a half-removed .venv could pass for a whole one
        shutil.rmtree(VENV_OLD, ignore_errors=True)
        for old in glob.glob(os.path.join(ROOT, "build", "core-*")):
            shutil.rmtree(old, ignore_errors=True)
    say("making .venv with Python {}.{}".format(*sys.version_info[:2]))
    os.makedirs(VENV)
    write(HALF_MADE, "")
    done = subprocess.run(
        [sys.executable, "-m", "venv", VENV], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
    )
    if done.returncode != 0:
        if "ensurepip" in done.stdout or "No module named venv" in done.stdout:
            raise SetupError(
                "this Python cannot make virtual environments",
                "install the module, e.g. 'apt install python3-venv', or name another Python: make PYTHON=...",
            )
        raise SetupError("making .venv failed: " + (done.stdout.strip() or "no message").splitlines()[-1])
    os.remove(HALF_MADE)


def venv_fault():
    """What is wrong with the ``.venv`` that is there, or an empty string."""
    if os.path.exists(HALF_MADE):
        return "its creation was interrupted"
    probe = "import sys, pip; print(sys.version_info >= {} and sys.prefix != sys.base_prefix)".format(OLDEST)
    try:
        answer = output([PYTHON, "-c", probe])
    except (OSError, subprocess.CalledProcessError):
        return "its Python does not run, or has no pip"
    return "" if answer == "True" else "its Python is older than {}.{}".format(*OLDEST)


def install_torch():
    """Torch from the CPU index; where that cannot be reached, the pinned version from pip's own sources."""
    if stamped("torch", TORCH):
        return
    repair_interrupted_install()
    if not has_torch():
        say("installing {} (CPU build, about 200 MB)".format(TORCH))
        # Without dependencies: they come with the next stage, from pip's own sources.
        quick = ["--timeout", "10", "--retries", "1"]
        try:
            pip("install", "--no-deps", "--index-url", TORCH_CPU_INDEX, *(quick + [TORCH]), quiet=True)
        except SetupError:
            say("{} did not answer; trying pip's configured sources".format(TORCH_CPU_INDEX))
            refuse_cuda()
            pip("install", "--no-deps", TORCH)
    stamp("torch", TORCH)


def has_torch():
    probe = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run([PYTHON, "-c", probe], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def refuse_cuda(python=None):
    """Several GB of CUDA libraries are of no use here: look at what pip would bring before it does."""
    done = subprocess.run(
        [python or PYTHON, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--report", "-", TORCH],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
    )
    if done.returncode != 0:
        raise no_network(done.stderr)
    if '"nvidia-' in done.stdout:  # among the requirements that the wheel states
        raise SetupError(
            "torch's CPU build could not be fetched from {}, and pip's other sources have the CUDA build only".format(
                TORCH_CPU_INDEX
            ),
            "try again with that address reachable, or install a torch of your choice: .venv/bin/pip install ...",
        )


def install_dependencies(extras):
    """Everything in pyproject.toml, transformers too, the build tools, and the package itself (editable)."""
    key = digest(["pyproject.toml"])
    stages = ["dependencies"] + ["dependencies-" + extra for extra in extras]
    if all(stamped(stage, key) for stage in stages):
        return
    check_compiler()
    say("installing the dependencies")
    repair_interrupted_install()
    pip("install", *BUILD)
    install_package(dependencies=True, extras=extras)
    for stage in stages:
        stamp(stage, key)


def build_native():
    """Build the native core again if its sources changed. Needs no network."""
    key = installed_key()
    if stamped("native", key):
        return
    check_compiler()
    install_package(dependencies=False, extras=[])


def install_package(dependencies, extras):
    """Build the core and install the package, editable; with its dependencies or alone."""
    key = installed_key()
    say("building the native core and installing the package (about a minute the first time)")
    target = ROOT + ("[" + ",".join(["torch"] + extras) + "]" if dependencies else "")
    flags = [] if dependencies else ["--no-deps", "--no-index"]
    try:
        pip("install", "--no-build-isolation", *(flags + ["--editable", target]))
        output([PYTHON, "-c", IMPORTS + "; import ipex_lookahead._native"])
    except subprocess.CalledProcessError as error:
        raise SetupError(
            "the packages were installed, but do not load: " + (error.stderr.strip() or "no message").splitlines()[-1],
            "start afresh: make clean, then the same command again",
        ) from None
    stamp("native", key)


# --- pip ----------------------------------------------------------------------------------------------------------


def pip(*arguments, **options):
    """Run pip and show what it fetches; ``quiet`` keeps a failure's log from the terminal."""
    write(INSTALLING, "")
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check"] + list(arguments)
    environment = dict(
        os.environ, PIP_NO_INPUT="1", CMAKE_BUILD_PARALLEL_LEVEL=str(jobs()), SKBUILD_BUILD_DIR=BUILD_DIR
    )
    said = []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
    ) as process:
        try:
            for line in process.stdout:
                said.append(line)
                if wanted(line):
                    sys.stdout.write("    " + line.split(" (from ")[0].rstrip() + "\n")
                    sys.stdout.flush()
        except BaseException:
            process.terminate()
            raise
    code = process.returncode
    if code != 0:
        raise pip_failure("".join(said), bool(options.get("quiet")))
    os.remove(INSTALLING)


def wanted(line):
    """The lines of pip's that tell a person something."""
    return line.startswith(("Collecting", "Successfully", "  Downloading", "Downloading"))


def pip_failure(text, quiet):
    if "No space left" in text:
        return SetupError("the disk is full", "free about 3 GB and run the same command again")
    if "Failed to build" in text or "Failed building" in text or "CMake Error" in text or "error: subprocess" in text:
        sys.stderr.write(text)
        return SetupError(
            "the native core did not build; the compiler's own message is above",
            "a full log: .venv/bin/pip install -v --no-build-isolation --no-deps -e .",
        )
    if not quiet and not offline(text):
        sys.stderr.write(text)
    return no_network(text)


def offline(text):
    signs = ("Connection", "timed out", "Temporary failure in name resolution", "from versions: none")
    return any(sign in text for sign in signs)


def no_network(text):
    last = next((line for line in reversed(text.splitlines()) if line.startswith("ERROR")), "ERROR: no message")
    if offline(text):
        return SetupError(
            "packages could not be fetched: no network, or no package source answers ({})".format(last[7:]),
            "connect (behind a proxy set HTTPS_PROXY) and run the same command again; what is there is kept",
        )
    return SetupError("pip failed: " + last[7:])


def repair_interrupted_install():
    """Make pip install again what it was unpacking when it was killed.

    pip believes a package installed once its metadata is there; the file INSTALLER is the last but one that it writes.
    """
    if not os.path.exists(INSTALLING):
        return
    site = output([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    for name in os.listdir(site):
        folder = os.path.join(site, name)
        if name.endswith(".dist-info") and not os.path.exists(os.path.join(folder, "INSTALLER")):
            shutil.rmtree(folder)
        elif name.startswith("~"):
            shutil.rmtree(folder, ignore_errors=True)


def jobs():
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:
        return os.cpu_count() or 1


# --- stamps and small things --------------------------------------------------------------------------------------


def digest(paths):
    """A hash of the files, and of the files in the folders, by name and content."""
    files = []
    for path in (os.path.join(ROOT, p) for p in paths):
        if os.path.isdir(path):
            files += [os.path.join(at, name) for at, _, names in os.walk(path) for name in names]
        else:
            files.append(path)
    total = hashlib.sha256(sysconfig.get_python_version().encode())
    for path in sorted(files):
        with open(path, "rb") as source:
            content = hashlib.sha256(source.read()).hexdigest()
        total.update("{} {}\n".format(os.path.relpath(path, ROOT), content).encode())
    return total.hexdigest()


def installed_key():
    """What an editable install depends on: the core's sources, and which modules there are and where they lie."""
    package = os.path.join(ROOT, "ipex_lookahead")
    names = [
        os.path.relpath(os.path.join(at, name), ROOT)
        for at, _, files in os.walk(package)
        for name in files
        if name.endswith(".py")
    ]
    return digest(NATIVE_SOURCES) + hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()


def stamped(stage, key):
    try:
        with open(os.path.join(STAMPS, stage)) as found:
            return found.read() == key
    except OSError:
        return False


def stamp(stage, key):
    os.makedirs(STAMPS, exist_ok=True)
    write(os.path.join(STAMPS, stage), key)


def write(path, text):
    """The whole file or none of it."""
    with open(path + ".new", "w") as out:
        out.write(text)
    os.replace(path + ".new", path)


def output(command):
    """What a command prints; its standard error travels in the exception."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout.strip()


def say(text):
    print("set-up: " + text)
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SetupError as error:
        sys.stderr.write("error: {}\n".format(error))
        if error.hint:
            sys.stderr.write("hint: {}\n".format(error.hint))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted; run the same command again: it goes on where it stopped\n")
        sys.exit(130)
    except OSError as error:
        sys.stderr.write("error: {}\n".format(error))
        sys.exit(1)
