"""Drop-in for ``ipex_llm.transformers``: change the import, keep the rest of the script."""

from typing import Any

from ipex_lookahead.hf.auto import AutoModelForCausalLM, AutoModelForImageTextToText
from ipex_lookahead.hf.embedding import AutoModelForEmbedding
from ipex_lookahead.hf.ipex_llm_names.absent import refuse_name
from ipex_lookahead.transformers.convert import get_enable_ipex
from ipex_lookahead.transformers.tasks import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForNextSentencePrediction,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForSpeechSeq2Seq,
    AutoModelForTokenClassification,
)

__all__ = [
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForEmbedding",
    "AutoModelForImageTextToText",
    "AutoModelForMaskedLM",
    "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction",
    "AutoModelForQuestionAnswering",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSequenceClassification",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForTokenClassification",
    "get_enable_ipex",
]


def __getattr__(name: str) -> Any:
    refuse_name(__name__, name)
