"""Write the tables of docs/serving.md from the requests themselves: every field and what becomes of it.

python scripts/serving_doc.py
"""

from __future__ import annotations

from pathlib import Path

from ipex_lookahead.serving.chat import ChatRequest
from ipex_lookahead.serving.completions import CompletionRequest
from ipex_lookahead.serving.fields import Body, support
from ipex_lookahead.serving.llama_server import InfillRequest, LlamaRequest
from ipex_lookahead.serving.messages import MessagesRequest
from ipex_lookahead.serving.ollama import Named, OllamaChat, OllamaGenerate, Options
from ipex_lookahead.serving.responses import ResponsesRequest
from ipex_lookahead.serving.sampling import Sampler
from ipex_lookahead.serving.tokens import DetokenizeRequest, TokenizeRequest

FILE = Path(__file__).resolve().parents[1] / "docs" / "serving.md"
BEGIN, END = "<!-- fields: made by scripts/serving_doc.py -->\n", "<!-- end of fields -->\n"
REQUESTS: dict[str, type[Body]] = {
    "sampling, in all APIs": Sampler,
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
    "/api/chat": OllamaChat,
    "/api/generate": OllamaGenerate,
    "options of both": Options,
    "/api/show": Named,
    "/completion": LlamaRequest,
    "/infill": InfillRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


def tables() -> str:
    """A table for each request; the fields of sampling have one of their own."""
    lines: list[str] = []
    shared = {name for name, _, _ in support(Sampler)}
    for path, model in REQUESTS.items():
        lines += [f"### `{path}`" if path.startswith("/") else f"### {path}", "", "| field | | |", "|---|---|---|"]
        left_out = shared if issubclass(model, Sampler) and model is not Sampler else ()
        lines += [f"| `{name}` | {what} | {said} |" for name, what, said in support(model) if name not in left_out]
        lines += ["| those of sampling | | see above |"] if left_out else []
        lines.append("")
    return "\n".join(lines)


def text() -> str:
    """The whole file with its tables made anew."""
    before, _, rest = FILE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + tables() + "\n" + END + after


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE}")
