"""Write the tables of docs/api_fields.md from the request classes: every field and its support.

python scripts/serving_doc.py
"""

from __future__ import annotations

from pathlib import Path

from ipex_lookahead.serving.adapters import LoadAdapter, UnloadAdapter
from ipex_lookahead.serving.chat import ChatRequest
from ipex_lookahead.serving.completions import CompletionRequest
from ipex_lookahead.serving.embedding.ollama import OllamaEmbed, OllamaEmbeddings
from ipex_lookahead.serving.embedding.ranking import RerankRequest
from ipex_lookahead.serving.embedding.vectors import EmbeddingRequest, LlamaEmbeddingRequest, TeiRequest
from ipex_lookahead.serving.fields import IGNORED, NO_EFFECT, REFUSED, SUPPORTED, Body, support
from ipex_lookahead.serving.llama_server import InfillRequest, LlamaRequest, LlamaSampled, SlotRequest
from ipex_lookahead.serving.messages import MessagesRequest
from ipex_lookahead.serving.models import ModelChange
from ipex_lookahead.serving.ollama import Named, OllamaChat, OllamaGenerate, OllamaRequest, Options
from ipex_lookahead.serving.ollama_models import DeleteRequest, PullRequest
from ipex_lookahead.serving.responses import ResponsesRequest
from ipex_lookahead.serving.sampling import Sampled, Sampler
from ipex_lookahead.serving.tokens import DetokenizeRequest, TokenizeRequest

FILE = Path(__file__).resolve().parents[1] / "docs" / "api_fields.md"
BEGIN, END = "<!-- fields: made by scripts/serving_doc.py -->\n", "<!-- end of fields -->\n"
REQUESTS: dict[str, type[Body]] = {
    "Sampling fields": Sampler,
    "Common fields": Sampled,
    "`/v1/chat/completions`": ChatRequest,
    "`/v1/completions`": CompletionRequest,
    "`/v1/responses`": ResponsesRequest,
    "`/v1/messages`": MessagesRequest,
    "`/v1/embeddings`": EmbeddingRequest,
    "`/v1/rerank`, `/v2/rerank` and `/rerank`": RerankRequest,
    "`/embed`": TeiRequest,
    "`/embedding`": LlamaEmbeddingRequest,
    "`/api/embed`": OllamaEmbed,
    "`/api/embeddings`": OllamaEmbeddings,
    "Common fields of Ollama's requests": OllamaRequest,
    "`/api/chat`": OllamaChat,
    "`/api/generate`": OllamaGenerate,
    "Options of Ollama's requests": Options,
    "`/api/show`": Named,
    "`/api/pull`": PullRequest,
    "`/api/delete`": DeleteRequest,
    "Common fields of llama-server's requests": LlamaSampled,
    "`/completion`": LlamaRequest,
    "`/infill`": InfillRequest,
    "`/slots/{id_slot}`": SlotRequest,
    "`/models/load` and `/models/unload`": ModelChange,
    "`/v1/load_lora_adapter`": LoadAdapter,
    "`/v1/unload_lora_adapter`": UnloadAdapter,
    "`/tokenize`": TokenizeRequest,
    "`/detokenize`": DetokenizeRequest,
}
SHARED: tuple[tuple[str, type[Body]], ...] = (
    ("Common fields of Ollama's requests", OllamaRequest),
    ("Common fields of llama-server's requests", LlamaSampled),
    ("Common fields", Sampled),
    ("Sampling fields", Sampler),
)
"""Classes with a section of their own, which sections of subclasses link to; subclasses before their bases."""
OTHERS = {NO_EFFECT: "No effect", IGNORED: "Ignored", REFUSED: "Refused"}


def tables() -> str:
    """Return a section for each request: a table of supported fields, and a list of the others with the reason."""
    return "\n".join(section(title, model) for title, model in REQUESTS.items())


def section(title: str, model: type[Body]) -> str:
    """Return the section of one request."""
    shared = next(((name, base) for name, base in SHARED if base is not model and issubclass(model, base)), None)
    elsewhere = {name for name, _, _ in support(shared[1])} if shared else set()
    fields = [one for one in support(model) if one[0] not in elsewhere]
    lines = [f"### {title}", ""]
    lines += (
        [f"In addition to the [{shared[0][0].lower()}{shared[0][1:]}](#{anchor(shared[0])}):", ""] if shared else []
    )
    lines += ["| field | description |", "|---|---|"]
    lines += [f"| `{name}` | {said} |" for name, what, said in fields if what == SUPPORTED]
    for what, heading in OTHERS.items():
        if reasons := by_reason([(said, name) for name, one, said in fields if one == what]):
            lines += ["", f"{heading}:", "", *reasons]
    return "\n".join([*lines, ""])


def by_reason(fields: list[tuple[str, str]]) -> list[str]:
    """Return a list item for each reason, with its fields."""
    names: dict[str, list[str]] = {}
    for said, name in fields:
        names.setdefault(said, []).append(f"`{name}`")
    return [f"- {', '.join(those)}: {said}" for said, those in names.items()]


def anchor(title: str) -> str:
    """Return a heading's anchor."""
    return title.lower().replace("'", "").replace(" ", "-")


def text() -> str:
    """Return the whole file with its tables made anew."""
    before, _, rest = FILE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + tables() + "\n" + END + after


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
