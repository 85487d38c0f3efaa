"""Images in ``chat`` and ``run``: attached, found in messages, asked again, saved and loaded, and refused."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers", minversion="5.23")

from tokenizers import AddedToken

from ipex_lookahead.cli.chat_images import ChatImage, images_in, path_of
from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.messages import completions
from ipex_lookahead.errors import InputError
from ipex_lookahead.llm import LLM
from tests.support.chat_tokenizer import chat_tokenizer, write_chat_llama
from tests.vision.folders import saved
from tests.vision.mmproj_files import write
from tests.vision.test_llm_images import TEMPLATE, TOKENS, WORDS, picture
from tests.vision.test_towers import processor

QUESTION = "what is it?"


def write_seeing(folder: Path) -> Path:
    """Write a tiny model that takes images."""
    saved("gemma4", folder, processor("gemma4"))
    tokenizer = chat_tokenizer()
    tokenizer.add_tokens([AddedToken(one, special=True) for one in TOKENS["gemma4"]], special_tokens=True)
    tokenizer.chat_template = TEMPLATE.replace("IMAGE", WORDS["gemma4"])
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def seeing(tmp_path_factory) -> Path:
    return write_seeing(tmp_path_factory.mktemp("models") / "seeing")


@pytest.fixture
def talk(seeing, monkeypatch, capsys, tmp_path):
    """``talk("hi", "/bye")`` -> (answers on stdout, asides on stderr) of the model that takes images."""
    monkeypatch.setenv("IPEX_LOOKAHEAD_CACHE", str(tmp_path / "cache"))

    def run_lines(*lines: str, arguments: tuple[str, ...] = (), model: Path = seeing) -> tuple[str, str]:
        content = "".join(line + "\n" for line in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))
        given = ["chat", "-m", str(model), "--threads", "1", "--lookahead", "0", "--temperature", "0", "-n", "8"]
        assert run([*given, *arguments]) == 0, capsys.readouterr().err
        return capsys.readouterr()

    return run_lines


@pytest.fixture
def cat(tmp_path) -> Path:
    path = tmp_path / "a cat.png"
    path.write_bytes(picture(1))
    return path


@pytest.fixture(scope="module")
def answers(seeing):
    """``answers(image, ...)`` is the answer of ``LLM`` to the question."""
    with LLM(seeing, threads=1, progress=False) as llm:

        def answer(*images: bytes) -> str:
            return llm.chat(QUESTION, images=list(images), max_new_tokens=8, lookahead=0, temperature=0).text

        yield answer


def test_an_attached_image_is_part_of_the_next_message(talk, answers, cat, tmp_path):
    other = tmp_path / "dog.png"
    other.write_bytes(picture(2))
    out, err = talk(f"/image {cat}", QUESTION, "/reset", f'/image "{cat}"', f"/image {other}", "/image", QUESTION)
    assert out == f"{answers(picture(1))}\n{answers(picture(1), picture(2))}\n"
    assert err.count("attached a cat.png: ") == 2
    assert "images for the next message: a cat.png, dog.png" in err
    assert answers(picture(1)) != answers(), "the answer depends on the image"


def test_the_option_attaches_to_the_first_message(talk, answers, cat, seeing, capsys):
    out, _ = talk(QUESTION, "/reset", QUESTION, arguments=("--image", str(cat)))
    assert out == f"{answers(picture(1))}\n{answers()}\n"
    given = ["--threads", "1", "--lookahead", "0", "--temperature", "0", "-n", "8"]
    assert run(["run", str(seeing), QUESTION, "--image", str(cat), *given]) == 0
    assert capsys.readouterr().out == f"{answers(picture(1))}\n"
    assert run(["run", str(seeing), QUESTION, "--image", "missing.png", *given]) == 1
    assert "missing.png cannot be read: No such file" in capsys.readouterr().err


def test_a_path_in_a_message_is_an_image(talk, answers, cat):
    escaped = str(cat).replace(" ", "\\ ")
    out, err = talk(f"{QUESTION} {escaped}", "/reset", f"'{cat}' {QUESTION}")
    assert out == f"{answers(picture(1))}\n" * 2
    assert err.count("attached a cat.png") == 2


def test_retry_undo_and_a_removed_image(talk, answers, cat):
    out, err = talk(f"/image {cat}", QUESTION, "/retry", "/undo", f"/image {cat}", "/image none", QUESTION)
    assert out == f"{answers(picture(1))}\n" * 2 + f"{answers()}\n"
    assert "images for the next message: none" in err


def test_later_turns_and_saved_conversations_have_the_images(talk, cat, tmp_path):
    file, session = tmp_path / "chat.json", ("--session", "seen")
    cache = ("--cache-dir", str(tmp_path / "kv"))  # the model has a fingerprint, so that answers keep their tokens
    first, _ = talk(f"/image {cat}", QUESTION, "and now?", f"/save {file}", "more?", arguments=cache)
    loaded, _ = talk(f"/load {file}", "more?", arguments=cache)
    assert loaded == first.splitlines(keepends=True)[-1]
    begun, _ = talk(f"/image {cat}", QUESTION, arguments=session)
    continued, _ = talk("and now?", "more?", arguments=session)
    assert begun + continued == first
    folder = tmp_path / "cache" / "sessions" / "seen"
    (stored,) = (folder / "images").iterdir()
    assert (stored.read_bytes(), stored.stat().st_mode & 0o777) == (picture(1), 0o600)
    assert stored.name in (folder / "conversation.json").read_text()
    talk("/reset", arguments=session)
    assert list((folder / "images").iterdir()) == []


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        ({"name": "a.png"}, "neither data nor a hash"),
        ({"data": ""}, "an image has no name"),
        ({"name": "a.png", "data": "a b"}, "not valid base64"),
        ({"name": "a.png", "sha256": "0" * 64}, "cannot be read: No such file"),
        ({"name": "a.png", "sha256": "../../x"}, "neither data nor a hash"),
    ],
)
def test_a_damaged_conversation_is_refused(talk, tmp_path, image, problem):
    file = tmp_path / "chat.json"
    turns = [{"user": "a", "assistant": "b", "images": [image]}]
    file.write_text(json.dumps({"system": None, "turns": turns}))
    _, err = talk(f"/load {file}")
    assert problem in err


def test_a_changed_image_of_a_session_is_refused(talk, tmp_path, cat):
    session = ("--session", "seen")
    talk(f"/image {cat}", QUESTION, arguments=session)
    (stored,) = (tmp_path / "cache" / "sessions" / "seen" / "images").iterdir()
    stored.write_bytes(picture(2))
    _, err = talk("/sessions seen")
    assert "has changed" in err


def test_what_is_no_image_is_refused_and_the_chat_goes_on(talk, answers, tmp_path):
    text = tmp_path / "text.png"
    text.write_text("no image")
    out, err = talk(f"/image {text}", f"/image {tmp_path}", "/image missing.png", "/image", QUESTION)
    for problem in ("not a JPEG", "Is a directory", "missing.png cannot be read", "next message: none; /image PATH"):
        assert problem in err
    assert out == f"{answers()}\n"


def test_a_model_that_takes_no_images_says_so(talk, cat, tmp_path):
    blind = write_chat_llama(tmp_path / "blind")
    _, err = talk(f"/image {cat}", f"look at {cat}", model=blind)
    assert "error: this model takes no images" in err
    assert "attached" not in err
    _, err = talk(f"/image {cat}", QUESTION, f"/model {blind}", QUESTION, "/model")
    assert "takes no images, and this conversation has some; /reset or /undo removes them" in err
    assert "error: this model takes no images" in err


def test_images_that_do_not_fit_drop_the_oldest_turns(talk, cat, seeing, tmp_path):
    config = json.loads((seeing / "config.json").read_text())
    small = tmp_path / "small"
    small.mkdir()
    for path in seeing.iterdir():
        (small / path.name).symlink_to(path)
    (small / "config.json").unlink()
    config["text_config"]["max_position_embeddings"] = 160
    (small / "config.json").write_text(json.dumps(config))
    _, err = talk(f"/image {cat}", QUESTION, f"/image {cat}", QUESTION, f"/image {cat}", QUESTION, model=small)
    assert "dropped the oldest turn (" in err
    more = [f"/image {cat}"] * 4
    _, err = talk(*more, QUESTION, "/image none", QUESTION, model=small)
    assert "the message exceeds the model's context of 160 tokens" in err


@pytest.mark.parametrize(
    ("text", "rest", "count"),
    [
        ("what is PATH?", "what is ?", 1),
        ('"PATH" and "PATH"', "and", 2),
        ("PATH.bak", None, 0),
        ("xPATH", None, 0),
        ("/no/such/file.png", None, 0),
        ("`PATH`", None, 0),
        ("file.png", None, 0),
    ],
)
def test_paths_in_messages(tmp_path, text, rest, count):
    path = tmp_path / "a.PNG"
    path.write_bytes(b"image")
    given = text.replace("PATH", str(path))
    found, images = images_in(given)
    assert (found, [image.name for image in images]) == (given if rest is None else rest, ["a.PNG"] * count)


def test_paths_as_they_are_typed(tmp_path, monkeypatch):
    for name in ("a b.png", "it's.png", "back\\slash.png"):
        (tmp_path / name).write_bytes(b"image")
    monkeypatch.setenv("HOME", str(tmp_path))
    for typed in (f"{tmp_path}/a b.png", f'"{tmp_path}/a b.png"', f"'{tmp_path}/a b.png'", f"{tmp_path}/a\\ b.png",
                  f"file://{tmp_path}/a%20b.png", "~/a b.png", " ~/a\\ b.png "):  # fmt: skip
        assert path_of(typed).read_bytes() == b"image", typed
    assert path_of(f"{tmp_path}/it\\'s.png").name == "it's.png"
    assert path_of(f"{tmp_path}/back\\slash.png").name == "back\\slash.png", "a file of exactly this name comes first"
    monkeypatch.setattr("ipex_lookahead.cli.chat_images.MAX_BYTES", 4)
    with pytest.raises(InputError, match="more than 4 bytes"):
        ChatImage.read(f"{tmp_path}/a b.png")


def test_the_vision_part_of_a_hub_model_is_fetched_for_its_first_image(seeing, monkeypatch, tmp_path):
    from ipex_lookahead import hub
    from ipex_lookahead.cli.loading import fetch_vision_part
    from ipex_lookahead.runtime.loading import load_text_model

    model, part = load_text_model(str(seeing), threads=1, progress=False), tmp_path / "part.gguf"
    asked = []
    monkeypatch.setattr(hub, "vision_part_of", lambda name: asked.append(name) or part)
    fetch_vision_part(model, "owner/model:m.gguf")
    assert asked == [], "a folder has its own"
    model.source = tmp_path / "m.gguf"
    write(seeing, tmp_path / "mmproj.gguf")
    fetch_vision_part(model, "owner/model:m.gguf")
    assert asked == [], "there is one next to the model"
    (tmp_path / "mmproj.gguf").unlink()
    fetch_vision_part(model, "owner/model:m.gguf")
    assert (asked, model.mmproj) == (["owner/model:m.gguf"], part)
    fetch_vision_part(model, "owner/model:m.gguf")
    assert len(asked) == 1
    model.close()


def test_tab_completes_commands_and_paths(tmp_path, monkeypatch):
    for name in ("cat.png", "car photo.jpg", "dog.png"):
        (tmp_path / name).write_bytes(b"image")
    (tmp_path / "cats").mkdir()
    names, base = ["/image", "/undo"], str(tmp_path)

    def completed(line: str) -> list[str]:
        return completions(line, line.rpartition(" ")[2], names)

    assert completed("/i") == ["/image"]
    assert completed(f"/image {base}/cat") == [f"{base}/cat.png", f"{base}/cats/"]
    assert completed(f"/image {base}/car ph") == ["photo.jpg"]
    assert completed("/image /no/such/x") == completed("/undo x") == []
    monkeypatch.chdir(tmp_path)
    assert completed("/load d") == ["dog.png"]
    assert completed("/image ") == ["car photo.jpg", "cat.png", "cats/", "dog.png"]
