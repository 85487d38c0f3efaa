"""What a request may ask for at most: every list and text from outside is bounded before anything is made of it."""

from __future__ import annotations

from dataclasses import dataclass

MOST_MESSAGES = 4096
"""Of a conversation; items of an input."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The server's limits.

    Attributes:
        body_bytes: of a request.
        image_body_bytes: the same for a model that takes images.
        images, images_bytes: of one request, and the bytes of all of their files.
        reading_images, all_reading_images: requests with images that are read and resized at the same time, of one key
            and of all; others wait.
        answers: ``n``.
        answers_of_prompts: prompts times ``n`` of a completion.
        answers_at_once: of one request; its others wait for these.
        stops, stop_characters: texts to stop at, and characters of each.
        biases: entries of ``logit_bias``.
        top_logprobs: alternatives shown for each token.
        containers: objects and lists of a body, of whatever kind.
        values: between commas; room for 256 prompts of 1,024 token ids.
        schema_bytes: of one JSON schema, as JSON.
        schemas_bytes: of all schemas of a request.
        schema_text: characters of a constant, a pattern or a name in a schema: each token of the answer is compared
            with all of it.
        schema_depth: levels of lists and objects of a schema.
        schema_references, schema_chain: ``$ref`` of a schema, and how many of them may lead from one to the next.
        schema_properties: entries of one ``properties`` or ``$defs``.
        alternatives: entries of one ``enum``, ``anyOf`` or choice.
        choice_characters: of all texts of a choice.
        repetitions: of a part of a pattern or grammar (``{1,1000}``).
        tools: functions of a request.
        remembered_bytes, all_remembered_bytes: memory for the responses that later ones name, of one key and of all.
        image_remembered_bytes, all_image_remembered_bytes: the same for a model that takes images.
        rendered_characters: of one text that the page has rendered.
        pdf_bytes, pdf_pages, pdf_characters: of one PDF file that the page attaches, and of its text.
        pdf_seconds, pdf_memory: processor time and bytes of memory of the process that reads it.
        reading_pdfs: PDF files that are read at the same time; others wait.
        embedding_inputs: texts of an embedding request; documents of a reranking request.
        embedding_tokens: tokens of all texts of such a request, after truncation.
        saved_slots: files of saved slots of one key.
        preparing: requests rendered and tokenized at the same time; others wait.
        compiling, all_compiling: grammars that are compiled at once, of one key and of all; others wait.
        head_seconds: seconds after which a connection without a complete request head is closed.
        body_seconds: from the first to the last byte of a request's body.
        ping_seconds: longest pause between two events of a stream.
        stalled_seconds: seconds after which a client that reads nothing is dropped.
        drain_seconds: seconds that running answers may take to finish after SIGTERM.
        loading_retry_seconds: ``Retry-After`` while the model is being loaded.
    """

    body_bytes: int = 8 << 20
    image_body_bytes: int = 64 << 20
    images: int = 64
    images_bytes: int = 64 << 20
    reading_images: int = 2
    all_reading_images: int = 4
    answers: int = 16
    answers_of_prompts: int = 256
    answers_at_once: int = 16
    stops: int = 16
    stop_characters: int = 1024
    biases: int = 1024
    top_logprobs: int = 20
    containers: int = 32768
    values: int = 1 << 18
    schema_bytes: int = 256 << 10
    schemas_bytes: int = 512 << 10
    schema_text: int = 4096
    schema_depth: int = 100
    schema_references: int = 4096
    schema_chain: int = 100
    schema_properties: int = 4096
    alternatives: int = 50_000
    choice_characters: int = 1 << 20
    repetitions: int = 65_536
    tools: int = 128
    remembered_bytes: int = 16 << 20
    all_remembered_bytes: int = 64 << 20
    image_remembered_bytes: int = 64 << 20
    all_image_remembered_bytes: int = 256 << 20
    rendered_characters: int = 60_000
    pdf_bytes: int = 24 << 20
    pdf_pages: int = 1000
    pdf_characters: int = 2_000_000
    pdf_seconds: float = 30.0
    pdf_memory: int = 768 << 20
    reading_pdfs: int = 2
    embedding_inputs: int = 2048
    embedding_tokens: int = 1 << 20
    saved_slots: int = 64
    preparing: int = 4
    compiling: int = 2
    all_compiling: int = 8
    head_seconds: float = 30.0
    body_seconds: float = 60.0
    ping_seconds: float = 10.0
    stalled_seconds: float = 30.0
    drain_seconds: float = 30.0
    loading_retry_seconds: int = 5
