"""The licence of a checkpoint goes along when the model is saved in low bit."""

from __future__ import annotations

from pathlib import Path

from ipex_lookahead import AutoModelForCausalLM
from ipex_lookahead.checkpoints.license import license_facts
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

CARD = "---\ntags:\n- x\nlicense: llama2\nlicense_link: https://example.org/l\n---\n# A model\nlicense: mit\n"


def saved(source: Path, folder: Path) -> Path:
    return AutoModelForCausalLM.from_pretrained(source, load_in_low_bit="sym_int4", threads=1).save_low_bit(folder)


def test_of_a_folder(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    texts = {"LICENSE": "L", "LICENSE-MODEL.txt": "M", "Notice.md": "N", "USE_POLICY.md": "P"}
    for name, text in texts.items():
        (source / name).write_text(text)
    (source / "README.md").write_text(CARD)
    (source / "licenses.py").write_text("no licence")
    (source / "LICENSE.big").write_bytes(b"x" * ((1 << 20) + 1))
    once = saved(source, tmp_path / "once")
    again = saved(once, tmp_path / "again")
    for folder in (once, again):
        assert {name: (folder / name).read_text() for name in texts} == texts
        assert license_facts(folder) == {"license": "llama2", "license_link": "https://example.org/l"}
        assert not (folder / "licenses.py").exists()
        assert not (folder / "LICENSE.big").exists()
    saved(source, tmp_path / "third")
    AutoModelForCausalLM.load_low_bit(once).save_low_bit(tmp_path / "third", overwrite=True)  # its files are ours


def test_of_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("perhaps of another model")
    metadata = {"general.license": "apache-2.0", "general.license.name": "two\nlines"}
    folder = saved(write_tiny_gguf(tmp_path / "m.gguf", metadata=metadata), tmp_path / "saved")
    assert license_facts(folder) == {"license": "apache-2.0"}
    assert not (folder / "LICENSE").exists()


def test_where_nothing_is_said_nothing_is_written(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    (source / "README.md").write_text("# no front matter\nlicense: mit\n")
    assert not (saved(source, tmp_path / "saved") / "README.md").exists()
