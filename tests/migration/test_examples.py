"""ipex-llm's 138 examples for CPUs that import a name from it: how many work here when the import is changed.

``examples.json`` holds what each imports and calls (``scan.py`` made it). Every import is done, and every call of a
name or method of ours is made, with those keyword arguments, on tiny models. What the test does not judge: whether the
example's model is of a family that runs here (several exist as a checkpoint's own code only, which is never run), and
methods that only such code has (``chat``).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ipex_lookahead.errors import LookaheadError
from ipex_lookahead.formats import FORMATS
from ipex_lookahead.hf.ipex_llm_names.absent import ABSENT_MODULES, ABSENT_NAMES
from ipex_lookahead.hf.ipex_llm_names.arguments import HUB_ARGUMENTS, WITHOUT_EFFECT
from ipex_lookahead.hf.model import LookaheadModelForCausalLM
from tests.support.families import build
from tests.support.tiny import write_tiny_gguf, write_tiny_llama
from tests.transformers.test_tasks import say_in_config, seq2seq, speech

FACTS = json.loads((Path(__file__).parent / "examples.json").read_text(encoding="utf-8"))
EXAMPLES = FACTS["examples"]
DOCUMENT = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")
NEEDED = 125

IDS = torch.tensor([[5, 9, 33, 11]])
COMPUTED: dict[str, Any] = {
    "attention_mask": torch.ones_like(IDS),
    "eos_token_id": [2, 3],
    "generation_config": transformers.GenerationConfig(max_new_tokens=2, eos_token_id=2),
    "load_in_low_bit": "sym_int4",
    "low_bit": "sym_int4",
    "max_length": 6,
    "max_new_tokens": 2,
    "min_step_draft": 2,
    "pad_token_id": 0,
    "quantization_config": object(),
    "th_stop_draft": 0.6,
}
"""Keyword -> a value for it, where the example computes one (from its command line, say)."""

REFUSED = {
    "HF-Transformers-AutoModels/Model/falcon/falcon-7b-instruct/modelling_RW.py": "ipex_llm.transformers.models",
    "ModelScope-Models/generate.py": "model_hub",
    "Native-Models/native_int4_pipeline.py": "ipex_llm.llm_convert",
    "QLoRA-FineTuning/alpaca-qlora/alpaca_qlora_finetuning_cpu.py": "ipex_llm.transformers.qlora",
    "QLoRA-FineTuning/alpaca-qlora/utils/prompter.py": "ipex_llm.utils",
    "QLoRA-FineTuning/qlora_finetuning_cpu.py": "ipex_llm.transformers.qlora",
    "vLLM-Serving/offline_inference.py": "ipex_llm.vllm",
}
"""Examples that do not work, and the name that the sentence holds with which they are told."""


class Surface:
    """Does what an example does, on tiny models; raises what this package raises."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        llama = write_tiny_llama(folder / "llama")
        like_chatglm = write_tiny_llama(folder / "like_chatglm")
        say_in_config(like_chatglm, auto_map={"AutoModel": "modeling_x.XForConditionalGeneration"})
        self.checkpoints = {
            "AutoModelForCausalLM": llama,
            "AutoModel": like_chatglm,
            "AutoModelForSeq2SeqLM": seq2seq(folder / "t5"),
            "AutoModelForSpeechSeq2Seq": speech(folder / "whisper"),
            "from_gguf": write_tiny_gguf(folder / "model.gguf"),
            "load_low_bit": folder / "saved",
        }
        self._load("AutoModelForCausalLM", "from_pretrained", '{"load_in_4bit": true}').save_low_bit(folder / "saved")

    def run(self, example: dict[str, Any]) -> None:
        """All imports, then the calls of what is ours."""
        for name in example["imports"]:
            self.take(name)
        objects: dict[str, Any] = {}
        for call in sorted(example["calls"], key=lambda call: call["call"].startswith("<")):
            keywords = call["keywords"]
            maker, dot, method = call["call"].rpartition(".")
            if not call["call"].startswith("<"):
                objects[f"<{call['call']}>"] = self.make(call["call"], keywords)
            elif dot and maker in objects and isinstance(objects[maker], LookaheadModelForCausalLM | torch.nn.Module):
                self.use(objects[maker], method, keywords)

    def take(self, name: str) -> Any:
        module, _, attribute = name.replace("ipex_llm", "ipex_lookahead", 1).partition(":")
        found = importlib.import_module(module)
        if attribute in ("", "*"):
            return found
        return getattr(found, attribute)

    def make(self, name: str, keywords: dict[str, Any]) -> Any:
        kind, _, method = name.rpartition(".")
        if method in ("from_pretrained", "load_low_bit", "from_gguf") and kind:
            made = self._load(kind, method, json.dumps(keywords, sort_keys=True))
            return made[0] if method == "from_gguf" else made
        if name == "optimize_model":
            return self.take("ipex_llm:optimize_model")(build("llama"), **values(keywords))
        if name == "low_memory_init":
            with self.take("ipex_llm.optimize:low_memory_init")():
                return transformers.AutoModelForCausalLM.from_pretrained(self.folder / "saved", torch_dtype="auto")
        if name == "load_low_bit":
            return self.take("ipex_llm.optimize:load_low_bit")(self.make("low_memory_init", {}), self.folder / "saved")
        if name == "get_enable_ipex":
            return self.take("ipex_llm.transformers.convert:get_enable_ipex")()
        raise AssertionError(f"the test does not know how to call {name}")

    @cache  # noqa: B019  one object for the whole test
    def _load(self, kind: str, method: str, keywords: str) -> Any:
        path = self.checkpoints.get(method, self.checkpoints.get(kind))
        load = getattr(self.take(f"ipex_llm.transformers:{kind}"), method)
        return load(path, **values(json.loads(keywords)))

    def use(self, model: Any, method: str, keywords: dict[str, Any]) -> None:
        if method == "generate" and isinstance(model, LookaheadModelForCausalLM):
            model.generate(IDS, **values(keywords))  # other models' generate is transformers' own
        elif method == "save_low_bit":
            model.save_low_bit(self.folder / "saves" / str(len(list(self.folder.glob("saves/*")))))


def values(keywords: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments as they are passed: literals, torch's dtypes by name, and what the example would compute."""
    found = {name: COMPUTED[name] if value == {"computed": True} else value for name, value in keywords.items()}
    return {
        name: getattr(torch, value[6:]) if isinstance(value, str) and value.startswith("torch.") else value
        for name, value in found.items()
    }


@pytest.fixture(scope="module")
def surface(tmp_path_factory: pytest.TempPathFactory) -> Surface:
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    return Surface(tmp_path_factory.mktemp("examples"))


def test_the_examples_are_those_of_the_issue() -> None:
    assert len(EXAMPLES) == 140
    assert sum(example["imports"] != ["ipex_llm:"] for example in EXAMPLES) == 138, "two import the package whole"


def test_examples_work_when_the_import_is_changed(surface: Surface, capsys: pytest.CaptureFixture[str]) -> None:
    failed: dict[str, str] = {}
    later: list[str] = []
    foreign: list[str] = []
    examples = [example for example in EXAMPLES if example["imports"] != ["ipex_llm:"]]
    for example in examples:
        try:
            surface.run(example)
        except (ImportError, LookaheadError) as error:
            failed[example["path"]] = str(error)
            continue
        if set(example["formats"]) - set(FORMATS):
            later.append(f"{example['path']}: offers {', '.join(sorted(set(example['formats']) - set(FORMATS)))}")
        if any(call["call"].endswith((".chat", ".stream_chat")) for call in example["calls"]):
            foreign.append(example["path"])
    passed = len(examples) - len(failed)
    report = [
        f"\n{passed} of {len(examples)} examples pass by import and arguments; {passed - len(later)} of them with every"
        f" format that they offer; {len(foreign)} call chat, which only their checkpoints' code has",
        *(f"  refused {path}: {why}" for path, why in failed.items()),
        *(f"  later {offer}" for offer in later),
    ]
    with capsys.disabled():
        print("\n".join(report))
    assert passed >= NEEDED
    assert failed.keys() == REFUSED.keys()
    assert [path for path, why in failed.items() if REFUSED[path] not in why] == []


@pytest.mark.parametrize("path", ["StableDiffusion/sdxl.py", "StableDiffusion/lora-lcm.py"])
def test_examples_that_import_the_package_whole(path: str, surface: Surface) -> None:
    surface.run(next(example for example in EXAMPLES if example["path"] == path))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda e: e["imports"].append("ipex_llm.transformers:AutoModelForNothing"), "AutoModelForNothing"),
        (lambda e: e["calls"][0]["keywords"].update(load_in_5bit=True), "load_in_5bit"),
        (lambda e: e["calls"][-1]["keywords"].update(max_new_token=3), "max_new_token"),
    ],
)
def test_the_check_sees_what_does_not_work(spoil: Callable[[Any], None], says: str, surface: Surface) -> None:
    path = "HF-Transformers-AutoModels/Model/llama2/generate.py"
    example = json.loads(json.dumps(next(example for example in EXAMPLES if example["path"] == path)))
    surface.run(example)
    spoil(example)
    with pytest.raises((LookaheadError, AttributeError), match=says):
        surface.run(example)


def test_the_document_has_every_environment_variable() -> None:
    older = ["KV_CACHE_ALLOC_MIN_LENGTH"]  # a variable in earlier releases
    npu = [name for name in FACTS["variables"] if name.startswith("IPEX_LLM_NPU_")]
    assert npu
    assert [name for name in [*FACTS["variables"], *older] if name not in DOCUMENT and name not in npu] == []


def test_the_document_has_every_argument_and_every_absent_name() -> None:
    names = {*WITHOUT_EFFECT, *HUB_ARGUMENTS, *(name for found in ABSENT_NAMES.values() for name in found)}
    names |= {module.rpartition(".")[2] for module in ABSENT_MODULES}
    hidden = {"_attn_implementation", "ChatGLMForCausalLM", "GptneoxForCausalLM", "BloomForCausalLM",
              "StarcoderForCausalLM", "PPModelWorker", "Qwen2VLForConditionalGeneration"}  # fmt: skip
    assert sorted(name for name in names - hidden if f"`{name}" not in DOCUMENT and f".{name}" not in DOCUMENT) == []
