"""The Auto classes for other tasks: transformers' models with our layers in them, on tiny random weights."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from ipex_lookahead.engines.torch.low_bit_linear import LowBitLinear
from ipex_lookahead.errors import InputError, ModelFormatError, UnsupportedModelError
from ipex_lookahead.hf.model import LookaheadModelForCausalLM
from ipex_lookahead.transformers import tasks
from tests.support.families import write
from tests.support.tiny import write_tiny_gguf, write_tiny_llama

IDS = torch.tensor([[5, 9, 33, 2]])
_SIZES = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 96, "max_position_embeddings": 64}  # fmt: skip
BERTS = {
    "AutoModel": "BertModel",
    "AutoModelForMaskedLM": "BertForMaskedLM",
    "AutoModelForMultipleChoice": "BertForMultipleChoice",
    "AutoModelForNextSentencePrediction": "BertForNextSentencePrediction",
    "AutoModelForQuestionAnswering": "BertForQuestionAnswering",
    "AutoModelForSequenceClassification": "BertForSequenceClassification",
    "AutoModelForTokenClassification": "BertForTokenClassification",
}


def bert(folder, kind="BertModel"):
    torch.manual_seed(0)
    getattr(transformers, kind)(transformers.BertConfig(**_SIZES)).save_pretrained(folder)
    return folder


def packed(model):
    return {name: m.low_bit for name, m in model.named_modules() if isinstance(m, LowBitLinear)}


def test_every_class_is_listed():
    assert {*BERTS, "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq"} == set(tasks.__all__)


@pytest.mark.parametrize("name", BERTS)
def test_a_model_is_loaded_packed_saved_and_loaded_again(name, tmp_path):
    auto = getattr(tasks, name)
    floats = getattr(transformers, name).from_pretrained(bert(tmp_path / "float", BERTS[name])).eval()
    model = auto.from_pretrained(tmp_path / "float", load_in_low_bit="sym_int8", threads=1, progress=False)
    assert type(model).__name__ == BERTS[name]
    assert len(packed(model)) >= 12
    assert set(packed(model).values()) == {"sym_int8"}
    ids = IDS[None] if "Multiple" in name else IDS
    with torch.no_grad():
        assert torch.allclose(model(ids)[0], floats(ids)[0], atol=0.02 * float(floats(ids)[0].abs().max()) + 0.01)
    model.save_low_bit(tmp_path / "saved")
    again = auto.load_low_bit(tmp_path / "saved", threads=1, progress=False)
    assert packed(again) == packed(model)
    assert torch.equal(again(ids)[0], model(ids)[0])


def test_without_a_format_nothing_is_packed(tmp_path):
    model = tasks.AutoModel.from_pretrained(bert(tmp_path / "m"), progress=False)
    assert packed(model) == {}
    assert (
        tasks.AutoModel.from_pretrained(tmp_path / "m", load_in_low_bit="bf16", progress=False).dtype == torch.bfloat16
    )


def seq2seq(folder):
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=96, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4,
                                   decoder_start_token_id=0)  # fmt: skip
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def speech(folder):
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=96, d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, num_mel_bins=8, max_source_positions=16,
        max_target_positions=32, decoder_start_token_id=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    transformers.WhisperForConditionalGeneration(config).save_pretrained(folder)
    return folder


def test_translators_write(tmp_path):
    model = tasks.AutoModelForSeq2SeqLM.from_pretrained(
        seq2seq(tmp_path / "m"), load_in_4bit=True, modules_to_not_convert=["wo", "lm_head"], progress=False
    )
    assert packed(model)
    assert not any("wo" in name or "lm_head" in name for name in packed(model))
    out = model.generate(IDS, max_new_tokens=4, do_sample=False)
    model.save_low_bit(tmp_path / "saved")
    again = tasks.AutoModelForSeq2SeqLM.load_low_bit(tmp_path / "saved", progress=False)
    assert torch.equal(again.generate(IDS, max_new_tokens=4, do_sample=False), out)


def test_speech_is_written_down(tmp_path):
    model = tasks.AutoModelForSpeechSeq2Seq.from_pretrained(speech(tmp_path / "m"), load_in_4bit=True, progress=False)
    assert "proj_out" in packed(model)
    sound = torch.randn(1, 8, 32)
    out = model.generate(sound, max_new_tokens=4, do_sample=False)
    model.save_low_bit(tmp_path / "saved")
    again = tasks.AutoModelForSpeechSeq2Seq.load_low_bit(tmp_path / "saved", progress=False)
    assert torch.equal(again.generate(sound, max_new_tokens=4, do_sample=False), out)


def say_in_config(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    return folder


def test_auto_model_is_a_base_model_of_a_decoder(tmp_path):
    model = tasks.AutoModel.from_pretrained(write(tmp_path / "m", "qwen2"), load_in_4bit=True, progress=False)
    assert type(model).__name__ == "Qwen2Model"
    assert len(packed(model)) == 14


def test_auto_model_writes_where_the_checkpoints_code_would(tmp_path):
    """ChatGLM's folders have AutoModel mean the model with a head; its code is not run, ours is."""
    pytest.importorskip("ipex_lookahead._native", reason="the native core is not built")
    folder = write_tiny_llama(tmp_path / "m")
    say_in_config(folder, auto_map={"AutoModel": "modeling_evil.EvilForConditionalGeneration"})
    (folder / "modeling_evil.py").write_text("raise SystemExit('this must never run')")
    options = {"trust_remote_code": True, "progress": False, "threads": 1, "local_files_only": True}
    model = tasks.AutoModel.from_pretrained(tmp_path, subfolder="m", load_in_4bit=True, **options)
    assert isinstance(model, LookaheadModelForCausalLM)
    assert model.generate(IDS, max_new_tokens=3, do_sample=False).shape[1] > 4
    assert isinstance(
        tasks.AutoModel.from_pretrained(write_tiny_gguf(tmp_path / "m.gguf"), **options), LookaheadModelForCausalLM
    )


def test_a_family_that_only_its_own_code_has(tmp_path):
    folder = bert(tmp_path / "m")
    say_in_config(folder, model_type="chatglm", auto_map={"AutoModel": "modeling_chatglm.ChatGLMModel"})
    with pytest.raises(UnsupportedModelError, match="chatglm") as caught:
        tasks.AutoModel.from_pretrained(folder, trust_remote_code=True, progress=False)
    assert "never run" in caught.value.hint


def test_bad_requests_say_what_to_do(tmp_path):
    folder = bert(tmp_path / "m")
    with pytest.raises(InputError, match="AutoModelForMaskedLM does not take kv_cache='int8'") as caught:
        tasks.AutoModelForMaskedLM.from_pretrained(folder, kv_cache="int8")
    assert "AutoModelForCausalLM" in caught.value.hint
    with pytest.raises(InputError, match="speculative=True"):
        tasks.AutoModel.from_pretrained(folder, speculative=True, progress=False)
    with pytest.raises(InputError, match="did you mean 'load_in_4bit'"):
        tasks.AutoModelForMaskedLM.from_pretrained(folder, load_in_4bits=True)
    with pytest.raises(InputError, match="did you mean 'speculative'"):
        tasks.AutoModel.from_pretrained(folder, speculativ=True)
    with pytest.raises(ModelFormatError, match=r"cls\..*missing"):
        tasks.AutoModelForMaskedLM.from_pretrained(folder, progress=False)
    with pytest.raises(UnsupportedModelError, match="transformers cannot load this bert"):
        tasks.AutoModelForSpeechSeq2Seq.from_pretrained(folder, progress=False)
    with pytest.raises(InputError, match="is a file"):
        tasks.AutoModelForMaskedLM.from_pretrained(write_tiny_gguf(tmp_path / "m.gguf"))
    with pytest.raises(InputError, match="no such folder"):
        tasks.AutoModelForMaskedLM.load_low_bit(tmp_path / "none")
    tasks.AutoModel.from_pretrained(folder, load_in_4bit=True, progress=False).save_low_bit(tmp_path / "saved")
    with pytest.raises(InputError, match="was saved in sym_int4, but sym_int8"):
        tasks.AutoModel.from_pretrained(tmp_path / "saved", load_in_8bit=True, progress=False)
