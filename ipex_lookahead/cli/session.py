"""The state of a chat: model, conversation and settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ipex_lookahead.cli.chat_images import ChatImage, images_in
from ipex_lookahead.cli.conversation import ChatEncoder, Conversation, Turn
from ipex_lookahead.cli.loading import fetch_vision_part
from ipex_lookahead.cli.names import in_options
from ipex_lookahead.cli.report import ending, is_loop, stats_line
from ipex_lookahead.cli.sampling import Sampling
from ipex_lookahead.cli.saved_sessions import Saved, SessionFolder
from ipex_lookahead.cli.stream import Answer, MarkedAnswer, Painter
from ipex_lookahead.cli.thinking import SWITCH, ThinkOptions, ThoughtLimit, can_think, has_switch, think_variables
from ipex_lookahead.config import Bounds, bounds_of
from ipex_lookahead.decoding.stats import GenerationStats
from ipex_lookahead.engines.api import TakesImages
from ipex_lookahead.errors import InputError, LookaheadError
from ipex_lookahead.runtime.sampling_params import SamplingParams
from ipex_lookahead.system.terminal import counted

if TYPE_CHECKING:
    from ipex_lookahead.architectures.adapter import AppliedAdapter
    from ipex_lookahead.conversation.model import ChatModel
    from ipex_lookahead.engines.images import PromptImage

LIMITS = {one.name: bounds_of(SamplingParams, one.name) for one in fields(Sampling)} | {
    "max_new_tokens": Bounds(int, 1)
}
"""Setting -> its bounds."""


class Session:
    """A chat session, which slash commands change. The model caches keys and values of the conversation.

    Args:
        model: The loaded ``TextModel``.
        name: The name of the model.
        system: The system message, or None.
        sampling, lookahead, max_new_tokens: Settings of answers.
        drafting: Further arguments of ``generate`` for lookahead.
        thinking: Whether the model thinks, and how long.
        stop_loops: End answers that repeat themselves.
        tell: Prints a line that is not the model's.
        show_accepted: Mark accepted drafts in answers, which are then printed step by step.
        painter: Prints the answer.

    Attributes:
        models: The ``ChatModels`` that ``/model`` can change to; None: it is not available.
        adapter: The low-rank adapter of answers; None: the model alone.
        images: Images for the next message.
    """

    def __init__(
        self,
        model: Any,
        name: str = "",
        *,
        system: str | None = None,
        sampling: Sampling,
        lookahead: Any,
        max_new_tokens: int,
        drafting: dict[str, Any] | None = None,
        thinking: ThinkOptions | None = None,
        stop_loops: bool = False,
        tell: Callable[[str], None],
        show_accepted: bool = False,
        painter: Painter,
    ) -> None:
        self.sampling = sampling
        self.lookahead = lookahead
        self._drafting = drafting or {}
        self.max_new_tokens = max_new_tokens
        self._stop_loops = stop_loops
        self.tell = tell
        self.show_accepted = show_accepted
        self.painter = painter
        self._explained: set[str] = set()
        self.over = False
        self.last_stats: GenerationStats | None = None
        self.context: int = model.engine.max_context
        self.models: Any = None
        self.adapter: AppliedAdapter | None = None
        thinking = thinking or ThinkOptions()
        self._think_sentence = thinking.think_sentence
        self.variables = think_variables(thinking.think)
        self.limit = ThoughtLimit(model, thinking.think_budget, thinking.think_sentence)
        self.images: list[ChatImage] = []
        self._chat: ChatModel | None = None
        encode = ChatEncoder(model.tokenizer, model.config, self.variables, self._chat_model)
        self.conversation = Conversation(encode, self._tokenize, system)
        self._model = model
        self._name = name
        self._tokenizer = model.tokenizer
        self._shares_cache = model.cache_files is not None
        self._folder: SessionFolder | None = None
        self._written: Saved | None = None

    def release(self) -> None:
        """Drop the model, so that its memory can be used for another one; ``use`` must follow."""
        self.save()
        self._model.close()
        self._chat = None
        self._model, self.limit = None, ThoughtLimit(None, self.limit.budget, self._think_sentence)

    def use(self, model: Any, name: str) -> None:
        """Use another model. The turns go on as text, and settings that the model lacks are dropped."""
        if self._model is not None:
            self._model.close()
        self._model, self._tokenizer, self.context = model, model.tokenizer, model.engine.max_context
        self._chat = None
        self._name, self.adapter = name, None
        if not has_switch(model):
            self.variables.pop(SWITCH, None)
        budget = self.limit.budget if can_think(model) else None
        self.limit = ThoughtLimit(model, budget, self._think_sentence)
        turns = self.conversation.turns
        encode = ChatEncoder(model.tokenizer, model.config, self.variables, self._chat_model)
        self.conversation = Conversation(encode, self._tokenize, self.conversation.system)
        self.conversation.turns = [replace(turn, ids=self._tokenize(turn.answer)) for turn in turns]
        if any(turn.images for turn in turns) and not self.takes_images:
            self.tell(f"note: {name} takes no images, and this conversation has some; /reset or /undo removes them")
        self._shares_cache = model.cache_files is not None
        if self._folder is not None:
            self._use_cache(self._folder)

    @property
    def adapters(self) -> list[str]:
        """The names of the model's adapters."""
        return list(self._model.runtime.adapters)

    def use_adapter(self, name: str | None, scale: float = 1.0) -> None:
        """Generate later answers with an adapter, or with the model alone. Raises InputError for an unknown name."""
        self.adapter = self._model.runtime.adapters.applied(name, scale)

    @property
    def engine_facts(self) -> dict[str, Any]:
        """The facts of the model's engine."""
        return dict(self._model.engine.describe())

    def _chat_model(self) -> ChatModel:
        """Return the model as conversations with images need it."""
        from ipex_lookahead.conversation.model import ChatModel

        if self._chat is None:
            self._chat = ChatModel(self._model)
        return self._chat

    @property
    def takes_images(self) -> bool:
        """Whether the model takes images; its vision part may be missing."""
        engine = self._model.engine
        return isinstance(engine, TakesImages) and engine.images is not None and bool(self._tokenizer.chat_template)

    def attach(self, image: ChatImage) -> None:
        """Attach an image to the next message. Raises LookaheadError if it is not an image, or the model takes none."""
        if not isinstance(self._model.engine, TakesImages):
            name = self._model.engine.describe().get("engine")
            raise InputError(f"the {name} engine takes no images", hint="leave --engine out")
        fetch_vision_part(self._model, self._name)
        chat = self._chat_model()
        chat.check_images()
        tokens = chat.vision.layout(image.file).tokens
        self.images.append(image)
        self.tell(f"attached {image.name}: {counted(tokens, 'token')} of the context")

    def send(self, text: str) -> bool:
        """Answer a typed message, with the image files that it names by their paths if the model takes images."""
        if self.takes_images:
            text, found = images_in(text)
            try:
                for image in found:
                    self.attach(image)
            except LookaheadError as error:
                self._report(error)
                return False
        return self.answer(text)

    def _report(self, error: LookaheadError) -> None:
        message, hint = in_options(error)
        self.tell(f"error: {message}")
        if hint:
            self.tell(f"hint: {hint}")

    def answer(self, text: str, images: Sequence[ChatImage] | None = None) -> bool:
        """Answer a message. An interrupt ends the answer and keeps its text; an error keeps the conversation.

        Args:
            text: The message.
            images: Its images; None: the attached ones, which stay attached if there is no answer.

        Returns True if the conversation has a new turn.
        """
        turn = Turn(text, images=list(self.images if images is None else images))
        try:
            fitted = self.conversation.fit([*self.conversation.turns, turn], self.context, self.max_new_tokens)
            if fitted is None:
                self.tell(f"error: the message exceeds the model's context of {self.context:,} tokens; shorten it")
                return False
            if fitted.dropped_turns:
                turns = "turn" if fitted.dropped_turns == 1 else f"{fitted.dropped_turns} turns"
                del self.conversation.turns[: fitted.dropped_turns]
                self.tell(
                    f"dropped the oldest {turns} ({fitted.dropped_tokens:,} tokens): the context has {self.context:,} "
                    f"tokens, of which {self.max_new_tokens:,} are for the answer (/set max_new_tokens=N)"
                )
            ids, pictures = self.conversation.with_images([*self.conversation.turns, turn], fitted.ids)
            turn.answer, turn.ids = self._generate(ids, min(self.max_new_tokens, fitted.room), pictures)
        except LookaheadError as error:
            self._report(error)
            if images is None and self.images:
                self.tell("the images stay attached to the next message; /image none removes them")
            return False
        if turn.ids:
            self.conversation.turns.append(turn)
            if images is None:
                self.images.clear()
        return bool(turn.ids)

    @property
    def can_switch_thinking(self) -> bool:
        """Whether ``/think on`` and ``off`` have an effect on the model."""
        return has_switch(self._model)

    @property
    def can_think(self) -> bool:
        """Whether the model may think before it answers."""
        return can_think(self._model)

    @property
    def temperature(self) -> float:
        """The temperature of answers: as set, or as recommended for the model."""
        return self.sampling.effective(self._model)

    def sampling_in_words(self) -> str:
        """Return the sampling settings and their source as text."""
        rules = self._model.resolved(self.sampling.params(1))
        if not rules.temperature:
            return "temperature 0 (greedy)"
        seed = "random seed" if rules.seed is None else f"seed {rules.seed}"
        text = f"temperature {rules.temperature:g}, top_k {rules.top_k}, top_p {rules.top_p:g}, {seed}"
        return text if self.sampling.temperature is not None else f"{text}; from {self._model.recommended_by}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the model in hexadecimal digits; "" where its KV caches are not saved."""
        files = self._model.cache_files
        return "" if files is None else files.fingerprint(self._model.engine).hex()

    @property
    def folder(self) -> SessionFolder | None:
        """The folder of a named session; None where the conversation is not saved."""
        return self._folder

    def open(self, name: str, given: Collection[str] = ()) -> None:
        """Continue the named session, or begin it with this conversation, which is saved after each turn from then on.

        Args:
            name: The session's name.
            given: Names of the settings that the session must not change.

        Raises:
            InputError: The name is invalid, the session is open elsewhere or damaged, or this conversation would be
                lost.
            SaveError: The session's folder cannot be created.
        """
        if self._folder is not None and self._folder.name == name:
            raise InputError(f"session {name!r} is this conversation")
        self.save()
        folder = SessionFolder(name)
        try:
            saved = folder.read()
            if saved is not None and self._folder is None and self.conversation.turns:
                raise InputError(
                    f"this conversation is not saved, and session {name!r} exists: /sessions NEW-NAME saves it, /reset "
                    "drops it"
                )
            if saved is not None:
                self._apply(saved.settings or {}, given)
        except BaseException:
            folder.close()
            raise
        self._use_cache(folder)
        if self._folder is not None:
            self._folder.close()
            self.conversation.turns.clear()
        if saved is not None:
            system = self.conversation.system
            self.load(saved)
            if "system" in given:
                self.conversation.system = system
        self._folder, self._written = folder, saved
        if saved is None:
            self.tell(f"session {name} begins; it is saved after each turn")
            return
        self.tell(f"session {name} continues after {counted(len(saved.turns), 'turn')}")
        if saved.turns and saved.fingerprint != self.fingerprint and self.fingerprint:
            self.tell(f"its KV cache belongs to {saved.model or 'another model'}: the whole conversation is read again")

    def _use_cache(self, folder: SessionFolder) -> None:
        """Store the KV cache in the session's folder, unless the chat has a folder for all of them."""
        if self._shares_cache:
            return
        try:
            self._model.use_cache_folder(folder.cache)
        except InputError as error:
            self._model.use_cache_folder(None)
            self.tell(f"the KV cache is not saved: {in_options(error)[0]}")

    def saved(self) -> Saved:
        """Return the conversation and the settings, as files have them."""
        turns = [(turn.user, turn.answer, turn.ids, turn.images) for turn in self.conversation.turns]
        settings = {**vars(self.sampling), "max_new_tokens": self.max_new_tokens, "think": self.variables.get(SWITCH)}
        settings["think_budget"] = self.limit.budget
        given = {name: value for name, value in settings.items() if value is not None}
        return Saved(self.conversation.system, turns, self._name, self.fingerprint, given)

    def load(self, saved: Saved) -> None:
        """Replace the conversation by a saved one. Token ids of another model are replaced by this model's."""
        own = saved.fingerprint == self.fingerprint and bool(self.fingerprint)
        most = self._model.engine.vocab_size
        self.conversation.system = saved.system
        self.conversation.turns = [
            Turn(user, answer, ids if own and ids and max(ids) < most else self._tokenize(answer), images)
            for user, answer, ids, images in saved.turns
        ]

    def save(self) -> None:
        """Save a named session, if it has changed. A failure is reported; the chat goes on."""
        if self._folder is None or self._model is None:
            return
        saved = self.saved()
        if saved == self._written:
            return
        try:
            self._folder.write(saved)
            self._written = saved
        except LookaheadError as error:
            self.tell(f"error: the session is not saved: {error}")

    def close(self) -> None:
        """Save a named session with its KV cache, and release its folder."""
        if self._folder is not None:
            self.save()
            if self._model is not None:
                self._model.close()
            self._folder.close()
            self._folder = self._written = None

    def _apply(self, settings: Mapping[str, Any], given: Collection[str]) -> None:
        """Change the settings that are not ``given`` to those of a session. Raises InputError for an invalid value."""
        for name, value in settings.items():
            if name in LIMITS and not LIMITS[name].allow(value):
                raise InputError(f"the session's {name} must be {LIMITS[name]}, got {value!r}")
        for name, value in settings.items():
            if name in given:
                continue
            if name == "max_new_tokens":
                self.max_new_tokens = value
            elif name in LIMITS:
                setattr(self.sampling, name, value)
            elif name == "think_budget" and type(value) is int and value >= 0 and can_think(self._model):
                self.limit.budget = value
            elif name == "think" and isinstance(value, bool) and self.can_switch_thinking:
                self.variables[SWITCH] = value

    def _generate(self, ids: list[int], new_tokens: int, images: Sequence[PromptImage] = ()) -> tuple[str, list[int]]:
        from ipex_lookahead.cli.interrupt import stop_requested
        from ipex_lookahead.cli.progress import PromptBar

        model, bar = self._model, PromptBar()
        paint = self.painter.write
        marked = MarkedAnswer(self._tokenizer, paint, ids) if self.show_accepted else None
        streamed = marked or Answer(self._tokenizer, paint, partial(paint, thought=True), ids)
        interrupted = False
        try:
            with stop_requested() as stop:

                def after_step() -> bool:
                    if marked is not None:
                        marked.stepped(model.stats)
                    return stop.is_set()

                model.generate(
                    ids,
                    replace(self.sampling.params(new_tokens), stop_loops=self._stop_loops),
                    lookahead=self.lookahead,
                    **({} if self.adapter is None else {"adapter": self.adapter}),
                    **({"images": images} if images else {}),
                    **self._drafting,
                    **self.limit.arguments(ids),
                    on_token=streamed.put,
                    on_prefill=bar.update,
                    cancelled=after_step,
                    keep=True,
                )
            interrupted = "cancelled" in model.stats.finish_reasons
        except KeyboardInterrupt:
            interrupted = True
        finally:
            bar.close()
            if marked is not None:
                marked.stepped(model.stats)
            streamed.end()
            self.painter.write("\n")
        self.last_stats = replace(model.stats)
        kept = streamed.ids
        if kept and kept[-1] in self._tokenizer.all_special_ids:
            kept = kept[:-1]  # the template adds the end-of-turn token
        if streamed.thought:  # prompts do not have earlier thoughts
            kept = self._tokenize(streamed.text)
        if interrupted:
            self.tell("stopped; the partial answer is kept (/undo removes it)" if kept else "stopped")
        else:
            self.tell(stats_line(self.last_stats, loop=is_loop(self.last_stats, streamed.ids)))
            limit = f"/set max_new_tokens={self.max_new_tokens}"
            if streamed.thought and not kept:
                self.tell("the answer ended during thinking and is not kept")
            for line in ending(self.last_stats, streamed.ids, limit=limit, setting="/set {}=".format):
                self.tell(line)
        if marked is not None:
            self._explain_colors()
        return streamed.text, kept

    def _explain_colors(self) -> None:
        """Print the meaning of new colors."""
        for source, color in self.painter.colors.items():
            if color and source not in self._explained:
                self._explained.add(source)
                self.tell(f"{color} = accepted from a {source} draft (/accepted off hides colors)")

    def _tokenize(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))
