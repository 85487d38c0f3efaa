"""The tables of fields: complete, and equal to docs/api_fields.md."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from ipex_lookahead.serving.chat import ChatRequest
from ipex_lookahead.serving.completions import CompletionRequest
from ipex_lookahead.serving.embedding.ollama import OllamaEmbed, OllamaEmbeddings
from ipex_lookahead.serving.embedding.ranking import RerankRequest
from ipex_lookahead.serving.embedding.vectors import EmbeddingRequest, TeiRequest
from ipex_lookahead.serving.fields import IGNORED, NO_EFFECT, REFUSED, SUPPORTED, support
from ipex_lookahead.serving.messages import MessagesRequest
from ipex_lookahead.serving.responses import ResponsesRequest

ROOT = Path(__file__).resolve().parents[2]
OF_THE_APIS = {
    ChatRequest: "messages model audio frequency_penalty function_call functions logit_bias logprobs "
    "max_completion_tokens max_tokens metadata modalities n parallel_tool_calls prediction presence_penalty"
    " prompt_cache_key prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop"
    " store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options",
    CompletionRequest: "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty"
    " seed stop stream stream_options suffix temperature top_p user",
    ResponsesRequest: "background conversation include input instructions max_output_tokens max_tool_calls metadata"
    " model parallel_tool_calls previous_response_id prompt prompt_cache_key prompt_cache_retention reasoning"
    " safety_identifier service_tier store stream stream_options"
    " temperature text tool_choice tools top_logprobs top_p truncation user",
    MessagesRequest: "max_tokens messages model container context_management mcp_servers metadata service_tier"
    " stop_sequences stream system temperature thinking tool_choice tools top_k top_p",
    EmbeddingRequest: "input model encoding_format dimensions user",
    RerankRequest: "query documents model top_n return_documents max_tokens_per_doc priority max_chunks_per_doc"
    " rank_fields texts truncate truncation_direction raw_scores return_text",
    TeiRequest: "inputs normalize truncate truncation_direction prompt_name dimensions",
    OllamaEmbed: "model input truncate dimensions keep_alive options",
    OllamaEmbeddings: "model prompt keep_alive options",
}
"""The fields that the APIs' own documents have."""


@pytest.mark.parametrize("request_model", OF_THE_APIS, ids=lambda model: model.__name__)
def test_every_field_of_the_api_has_its_line(request_model):
    known = {name: what for name, what, _ in support(request_model)}
    missing = set(OF_THE_APIS[request_model].split()) - known.keys()
    assert not missing
    assert set(known.values()) <= {SUPPORTED, IGNORED, NO_EFFECT, REFUSED}
    assert all(said for _, _, said in support(request_model))


def test_the_document_is_up_to_date():
    made = runpy.run_path(str(ROOT / "scripts" / "serving_doc.py"))["text"]()
    assert (ROOT / "docs" / "api_fields.md").read_text(encoding="utf-8") == made, "run python scripts/serving_doc.py"
