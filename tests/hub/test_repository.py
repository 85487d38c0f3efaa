"""Models of the hub: what is taken, what is refused, and what becomes of a network that breaks. No network needed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ipex_lookahead import hub
from ipex_lookahead.checkpoints.gguf_types import READ_TYPES
from ipex_lookahead.errors import DownloadError, InputError, LookaheadError, UnsupportedModelError
from ipex_lookahead.hub.cached import cached_models, removal_of
from ipex_lookahead.hub.choosing import GGUF_TYPES, choose, type_in
from ipex_lookahead.hub.names import HubName
from tests.support.fake_hub import COMMIT, fake_hub

ROOT = Path(hub.__file__).parent.parent.parent
CHANCE = random.Random(1)
WEIGHTS = CHANCE.randbytes(300_000)
FOLDER = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{ }",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ messages }}",
    "LICENSE": b"MIT",
    "README.md": b"---\nlicense: mit\n---\n",
    "model.safetensors": WEIGHTS,
}
SUPERFLUOUS = {
    "pytorch_model.bin": b"pickle",
    "modeling_evil.py": b"code",
    "consolidated.safetensors": b"twice",
    "onnx/model.onnx": b"other",
    "onnx/config.json": b"{}",
    "model.Q4_0.gguf": b"other",
    "logo.png": b"picture",
}


@pytest.fixture
def served(tmp_path):
    """``served(files)`` is a hub with the repository ``owner/model``, and a function that resolves names on it."""
    contexts = []

    def serve(files):
        context = fake_hub({"owner/model": files})
        contexts.append(context)
        made = context.__enter__()

        def resolve(name="owner/model", vision=False, **options):
            chosen = hub.HubOptions(cache_dir=str(tmp_path / "hub"), endpoint=made.endpoint, token=False, **options)
            return (hub.vision_part_of if vision else hub.resolve_model)(name, options=chosen)

        return made, resolve

    yield serve
    for context in contexts:
        context.__exit__(None, None, None)


def blobs(tmp_path):
    return tmp_path / "hub" / "models--owner--model" / "blobs"


def test_only_what_is_needed_is_fetched(served):
    made, resolve = served(FOLDER | SUPERFLUOUS)
    folder = resolve()
    assert {path.name for path in folder.iterdir()} == set(FOLDER) == made.fetched()
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    made.asked.clear()
    assert resolve() == folder
    assert made.fetched() == set(), "nothing is fetched twice"


def test_shards_and_their_index(served):
    shards = {f"model-0000{n}-of-00002.safetensors": CHANCE.randbytes(1000) for n in (1, 2)}
    index = {"model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors"}}'}
    words = {"config.json": b"{}"}
    made, resolve = served(words | index | shards | SUPERFLUOUS)
    assert {path.name for path in resolve().iterdir()} == {*words, *index, *shards}


def test_a_folder_in_the_repository(served):
    made, resolve = served({f"small/{name}": content for name, content in FOLDER.items()} | SUPERFLUOUS)
    folder = resolve("https://huggingface.co/owner/model/tree/main/small")
    assert {path.name for path in folder.iterdir()} == set(FOLDER)
    assert resolve(subfolder="small") == folder


GGUFS = {"m.IQ2_M.gguf": b"a", "m.IQ3_XS.gguf": b"b", "m.Q8_0.gguf": b"c" * 70_000, "m.Q4_0.gguf": b"d" * 50_000,
         "mmproj-F16.gguf": b"e", "mtp-m.Q4_0.gguf": b"h", "mtp-m.Q8_0.gguf": b"i",
         "README.md": b"r", "LICENSE": b"l"}  # fmt: skip
SPLIT = {"m-Q8_0-00001-of-00002.gguf": b"f" * 60_000, "m-Q8_0-00002-of-00002.gguf": b"g" * 40_000}


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("owner/model", "m.Q4_0.gguf"),
        ("owner/model:m.Q8_0.gguf", "m.Q8_0.gguf"),
        ("owner/model:mtp-m.Q8_0.gguf", "mtp-m.Q8_0.gguf"),
        ("owner/model:q8_0", "m.Q8_0.gguf"),
        (f"owner/model@{COMMIT}:Q8_0", "m.Q8_0.gguf"),
        ("https://huggingface.co/owner/model/blob/main/m.Q8_0.gguf", "m.Q8_0.gguf"),
    ],
)
def test_one_gguf_of_several(name, taken, served, capsys):
    made, resolve = served(GGUFS)
    file = resolve(name)
    assert (file.name, file.read_bytes()) == (taken, GGUFS[taken])
    assert made.fetched() == {taken, "README.md", "LICENSE"}
    assert ("has 4 GGUF files; using m.Q4_0.gguf" in capsys.readouterr().err) == (name == "owner/model")


VISION = {
    "gemma-4-E4B-it-Q4_0.gguf": b"a", "gemma-4-E2B-it-Q4_0.gguf": b"b", "mmproj-gemma-4-E4B-it-F16.gguf": b"c" * 9000,
    "mmproj-gemma-4-E4B-it-BF16.gguf": b"d" * 9000, "mmproj-gemma-4-E2B-it-F16.gguf": b"e" * 9000,
    "other/mmproj-gemma-4-E2B-it-BF16.gguf": b"f",
}  # fmt: skip


@pytest.mark.parametrize(("size", "kind"), [("E4B", "BF16"), ("E2B", "F16")])
def test_the_vision_part_of_a_model_is_next_to_it(size, kind, served):
    made, resolve = served(VISION)
    name, wanted = f"owner/model:gemma-4-{size}-it-Q4_0.gguf", f"mmproj-gemma-4-{size}-it-{kind}.gguf"
    made.cut[wanted] = [4000]
    file, model = resolve(name, vision=True), resolve(name)
    assert (file.parent, file.name, file.read_bytes()) == (model.parent, wanted, VISION[wanted])
    assert made.fetched() == {file.name, model.name}
    made.refused["owner/model"] = (503, "")
    assert resolve(name, vision=True) == file, "it is here"


def test_a_model_without_a_vision_part_says_so(served):
    _, resolve = served({"m.Q4_0.gguf": b"a", "other/mmproj-F16.gguf": b"b"})
    with pytest.raises(InputError, match="no mmproj file with a vision part next to m.Q4_0.gguf"):
        resolve(vision=True)
    assert hub.vision_part_of("default") is None


def test_a_vision_part_goes_with_the_last_model(served):
    _, resolve = served(VISION)
    options = hub.HubOptions(
        cache_dir=str(resolve(vision=True, name="owner/model:gemma-4-E4B-it-Q4_0.gguf").parents[3])
    )
    for size in ("E4B", "E2B"):
        resolve(f"owner/model:gemma-4-{size}-it-Q4_0.gguf")
    removal_of("owner/model:gemma-4-E4B-it-Q4_0.gguf", options).execute()
    assert len([one for one in cached_models(options) if one.name != "default"]) == 2
    removal_of("owner/model:gemma-4-E2B-it-Q4_0.gguf", options).execute()
    assert [one for one in cached_models(options) if one.name != "default"] == []


@pytest.mark.parametrize("name", ["owner/model", "owner/model:q8_0", "owner/model:m-Q8_0-00002-of-00002.gguf"])
def test_all_parts_of_a_split_file_are_taken_and_the_first_is_the_model(name, served, capsys):
    files = {f"q8/{path}": content for path, content in SPLIT.items()}
    made, resolve = served(files | {"LICENSE": b"l"})
    file = resolve(name)
    assert (file.parent.name, file.name) == ("q8", "m-Q8_0-00001-of-00002.gguf")
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == SPLIT
    assert made.fetched() == {*files, "LICENSE"}
    options = hub.HubOptions(cache_dir=str(file.parents[4]))
    kept = [model for model in cached_models(options) if model.name != "default"]
    assert [(model.path, model.size) for model in kept] == [(file, sum(map(len, SPLIT.values())))]
    removal_of(kept[0].name, options).execute()
    assert not any(model.path == file for model in cached_models(options))


@pytest.mark.parametrize(
    ("name", "files", "says", "hint"),
    [
        ("o/m:m.Q8_K.gguf", GGUFS | {"m.Q8_K.gguf": b""}, "type Q8_K", "o/m:m.Q4_0.gguf"),
        ("o/m:Q5_K_M", GGUFS, "has no file", "m.Q8_0.gguf"),
        ("o/m:absent.gguf", GGUFS, "has no file", "m.Q8_0.gguf"),
        ("o/m", {"m.Q8_K.gguf": b"", "m.Q8_1.gguf": b""}, "no complete GGUF file", "llama-quantize --allow"),
        ("o/m", {"a.gguf": b"x", "b.gguf": b"y"}, "has 2 GGUF files; choose one", "o/m:FILE with one of a.gguf"),
        ("o/m:Q8_0", {"a/m.Q8_0.gguf": b"", "b/m.Q8_0.gguf": b""}, "2 files of type", "b/m.Q8_0.gguf"),
        ("o/m:a-Q8_0-00002-of-00003.gguf", SPLIT | {"a-Q8_0-00002-of-00003.gguf": b""}, "with 3 parts, .* lacks "
         "a-Q8_0-00001-of-00003.gguf, a-Q8_0-00003", "m-Q8_0-00001-of-00002.gguf"),
        ("o/m", {"config.json": b"", "pytorch_model.bin": b""}, "a pickle", "a repository"),
        ("o/m:pytorch_model.bin", {"config.json": b"", "pytorch_model.bin": b""}, "a pickle", "a repository"),
        ("o/m", {"adapter_config.json": b"", "x.safetensors": b""}, "an adapter without adapter_model", ""),
        ("o/m", {"model.safetensors": b""}, "no config.json", ""),
        ("o/m", {"README.md": b""}, "has no model", ""),
        ("o/m:small/", {"config.json": b""}, "no folder 'small'", "o/m"),
    ],
)  # fmt: skip
def test_what_cannot_be_taken_is_refused_before_it_is_fetched(name, files, says, hint):
    with pytest.raises(LookaheadError, match=says) as caught:
        choose(hub.parse_name(name), {path: len(content) for path, content in files.items()})
    assert hint in caught.value.hint


def test_the_types_that_are_chosen_by_name_are_those_that_are_read():
    mixtures = {"IQ3_M", "IQ3_XS", "IQ2_M"}
    kinds = {kind if kind.startswith("IQ") else re.sub("_[SML]$", "", kind) for kind in {*GGUF_TYPES} - mixtures}
    assert kinds == {kind.name for kind in READ_TYPES.values()}


@pytest.mark.parametrize(
    ("file", "kind"),
    [("SmolLM2-135M.Q4_1.gguf", "Q4_1"), ("a/llama-7b-q4_k_m.gguf", "Q4_K_M"), ("m-fp16.gguf", "F16"), ("x.gguf", None),
     ("m.IQ4_XS.gguf", "IQ4_XS"), ("m-UD-Q4_K_XL.gguf", "Q4_K_XL"), ("gpt-MXFP4.gguf", "MXFP4"), ("F16x.gguf", None)],
)  # fmt: skip
def test_type_in_a_name(file, kind):
    assert type_in(file) == kind


def test_a_broken_connection_goes_on_by_itself(served, monkeypatch):
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    made, resolve = served(FOLDER)
    made.cut["model.safetensors"] = [100_000]
    assert (resolve() / "model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.programs
def test_an_interrupted_fetch_goes_on_where_it_stopped(served, tmp_path, capsys):
    """A process is killed in the middle of a file; the next one asks for the rest only."""
    large = CHANCE.randbytes(11 << 20)
    made, resolve = served(FOLDER | {"model.safetensors": large})
    made.stall["model.safetensors"] = [len(large) - 1000]
    code = (
        "import sys; from ipex_lookahead import hub;"
        "hub.resolve_model('owner/model', options=hub.HubOptions(cache_dir=sys.argv[1], endpoint=sys.argv[2]))"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "hub"), made.endpoint], cwd=ROOT, stderr=-3)
    try:
        assert made.stalled.wait(200)
        (partial,) = blobs(tmp_path).glob("*.partial")
        while partial.stat().st_size == 0:
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    had = partial.stat().st_size
    assert 0 < had < len(large)
    with pytest.raises(DownloadError, match="only partly|not in the cache"):
        resolve(local_files_only=True)
    assert (resolve() / "model.safetensors").read_bytes() == large
    assert made.ranges["model.safetensors"] == [None, f"bytes={had}-"]
    assert "resuming model.safetensors at" in capsys.readouterr().err
    assert not list(blobs(tmp_path).glob("*.partial*"))


def test_wrong_contents_are_refused_and_deleted(served, tmp_path):
    made, resolve = served(FOLDER)
    made.lies["model.safetensors"] = WEIGHTS[:-1] + bytes([WEIGHTS[-1] ^ 1])
    with pytest.raises(DownloadError, match="wrong checksum"):
        resolve()
    left = [path.stat().st_size for path in blobs(tmp_path).iterdir() if path.suffix != ".lock"]
    assert max(left) < 100  # the small files, which are right
    made.lies.clear()
    assert (resolve() / "model.safetensors").read_bytes() == WEIGHTS


def test_too_little_space_is_seen_beforehand(served, monkeypatch):
    from collections import namedtuple

    made, resolve = served(FOLDER)
    usage = namedtuple("usage", "total used free")(1, 1, 1000)
    monkeypatch.setattr("ipex_lookahead.hub.folders.shutil.disk_usage", lambda path: usage)
    with pytest.raises(DownloadError, match="not enough space"):
        resolve()
    assert made.fetched() == set()


@pytest.mark.parametrize(
    ("status", "code", "says", "hint"),
    [
        (401, "GatedRepo", "accepting its license", "hf auth login"),
        (403, "GatedRepo", "accepting its license", "HF_TOKEN"),
        (401, "RepoNotFound", "no model 'owner/model'", "HF_TOKEN"),
        (404, "RepoNotFound", "no model 'owner/model'", "check the name"),
        (401, "", "no model 'owner/model', or access is denied", "HF_TOKEN"),
        (418, "", "could not be downloaded", "resumes the download"),
    ],
)
def test_refusals_are_sentences(status, code, says, hint, served):
    made, resolve = served(FOLDER)
    made.refused["owner/model"] = (status, code)
    with pytest.raises(DownloadError, match=says) as caught:
        resolve()
    assert hint in caught.value.hint
    assert "\n" not in str(caught.value)


def test_unknown_revision(served):
    made, resolve = served(FOLDER)
    with pytest.raises(DownloadError, match="no revision 'v9'"):
        resolve("owner/model@v9")


def test_without_network_what_is_here_serves(served, tmp_path):
    made, resolve = served(FOLDER)
    nowhere = hub.HubOptions(cache_dir=str(tmp_path / "hub"), endpoint="http://127.0.0.1:9", token=False)
    with pytest.raises(DownloadError, match="is not in the cache, and the hub cannot be reached"):
        hub.resolve_model("owner/model", options=nowhere)
    folder = resolve()
    assert hub.resolve_model("owner/model", options=nowhere) == folder
    assert resolve(local_files_only=True) == folder
    (folder / "config.json").unlink()
    with pytest.raises(DownloadError, match="only partly in the cache"):
        hub.resolve_model("owner/model", options=nowhere)


def test_force_download_fetches_again(served):
    made, resolve = served(FOLDER)
    resolve()
    made.asked.clear()
    resolve(force_download=True)
    assert made.fetched() == set(FOLDER)


def test_a_missing_shard_makes_a_folder_incomplete(served, tmp_path):
    shards = {f"model-0000{n}-of-00002.safetensors": CHANCE.randbytes(100) for n in (1, 2)}
    index = b'{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    made, resolve = served({"config.json": b"{}", "model.safetensors.index.json": index, **shards})
    folder = resolve()
    assert resolve(local_files_only=True) == folder
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DownloadError, match="only partly"):
        resolve(local_files_only=True)


@pytest.mark.programs
def test_offline_is_respected_and_named(tmp_path):
    """The real hub library, told to stay offline, with an empty cache; and nothing heavy is imported for it."""
    code = (
        "import sys\nfrom ipex_lookahead import hub, errors\n"
        "try: hub.resolve_model('owner/model', progress=False)\n"
        "except errors.DownloadError as e: print(e, '|', e.hint, '|', 'torch' in sys.modules)"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    said = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert "HF_HUB_OFFLINE is set" in said.stdout, said.stderr
    assert "unset HF_HUB_OFFLINE | False" in said.stdout


def test_an_unknown_kind_of_name_never_reaches_the_hub(served):
    made, resolve = served(FOLDER)
    with pytest.raises((InputError, UnsupportedModelError)):
        resolve("nonsense")
    assert made.asked == []
    assert choose(HubName("o/m"), dict.fromkeys(FOLDER, 1)).entry == ""


HOSTILE = {
    "a commit that climbs": {"commit": "../../../x"},
    "a commit that is none": {"commit": None},
    "a checksum that is a path": {
        "model.safetensors": {"lfs": {"sha256": "{outside}", "size": 300_000, "pointerSize": 1}}
    },
    "a checksum that climbs": {
        "model.safetensors": {"lfs": {"sha256": "../../../x", "size": 300_000, "pointerSize": 1}}
    },
    "a blob that is a path": {"config.json": {"blobId": "{outside}"}},
    "a name that climbs": {"config.json": {"rfilename": "../../../x/config.json"}},
    "an absolute name": {"config.json": {"rfilename": "{outside}/config.json"}},
    "a negative size": {"config.json": {"size": -1}},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_listing_that_leads_out_of_the_cache_is_refused(what, served, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    made, resolve = served(FOLDER)
    for key, said in HOSTILE[what].items():
        if key == "commit":
            made.commit = said
        else:
            text = json.dumps(said).replace("{outside}", str(outside / "x"))
            made.listed[key] = json.loads(text)
    with pytest.raises(DownloadError) as raised:
        resolve()
    assert "HF_ENDPOINT" in str(raised.value.hint)
    assert list(outside.iterdir()) == []
    assert not made.fetched()
    assert not any(path.is_file() for path in (tmp_path / "hub").rglob("*"))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_what_is_longer_than_the_list_says_is_not_written(name, served, tmp_path):
    made, resolve = served(FOLDER)
    made.endless.add(name)
    with pytest.raises(DownloadError, match="longer than"):
        resolve()
    assert all(path.stat().st_size <= len(FOLDER[name]) for path in (tmp_path / "hub").rglob("*.partial"))


def test_small_files_have_a_checksum_too(served):
    made, resolve = served(FOLDER)
    made.lies["config.json"] = b'{"model_type": "evil!"}'
    with pytest.raises(DownloadError, match="wrong checksum: git's sha1"):
        resolve()


def test_the_hubs_library_finds_what_was_fetched(served, tmp_path):
    """The cache is the library's own: its branch, its links, its blobs."""
    from huggingface_hub import try_to_load_from_cache

    _, resolve = served(FOLDER)
    folder = resolve()
    found = try_to_load_from_cache("owner/model", "config.json", cache_dir=tmp_path / "hub")
    assert Path(found) == folder / "config.json"
    assert (folder / "config.json").is_symlink()
    assert (tmp_path / "hub" / "models--owner--model" / "refs" / "main").read_text() == COMMIT


def test_progress_is_observed_and_a_download_can_be_ended(served, tmp_path):
    made, resolve = served(FOLDER)
    seen: list[hub.Progress] = []
    chosen = hub.HubOptions(cache_dir=str(tmp_path / "hub"), endpoint=made.endpoint, token=False)

    class Left(BaseException):
        pass

    def leave(progress: hub.Progress) -> None:
        if progress.done and progress.file == "model.safetensors":
            raise Left

    with pytest.raises(Left):
        hub.resolve_model("owner/model", progress=False, options=chosen, observe=leave)
    assert not any((tmp_path / "hub").rglob("snapshots")), "an ended download is no model"
    for _ in range(2):  # the second time all files are there
        seen.clear()
        hub.resolve_model("owner/model", progress=False, options=chosen, observe=seen.append)
        assert seen[0] == hub.Progress("listing")
        assert {one.file for one in seen if one.done == one.total > 0} == set(FOLDER)
        large = [one for one in seen if one.file == "model.safetensors" and one.stage == "downloading"]
        assert {(one.digest, one.total) for one in large} == {
            (f"sha256:{hashlib.sha256(WEIGHTS).hexdigest()}", len(WEIGHTS))
        }
        assert [one.done for one in large] == sorted(one.done for one in large)
