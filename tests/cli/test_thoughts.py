"""``chat`` tells thoughts apart: shown as such, whatever their marks are, and not put to the model again."""

from __future__ import annotations

import pytest

from ipex_lookahead.cli.main import run
from ipex_lookahead.cli.stream import Painter
from tests.cli.test_chat import asked, talk  # noqa: F401  (a fixture)

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}BEGIN\n"
    "{% elif enable_thinking is false %}BEGIN\nEND{% endif %}{% endif %}"
)
MARKS = {"tags": ("<think>", "</think>"), "channels": ("<|channel>thought", "<channel|>")}


@pytest.fixture(params=[*MARKS, "channels, special tokens"])
def marks(request, tokenizer):
    begin, end = MARKS[request.param.partition(",")[0]]
    if "special" in request.param:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|channel>", end]})
    tokenizer.chat_template = TEMPLATE.replace("BEGIN", begin).replace("END", end)
    return begin, end


@pytest.mark.parametrize("arguments", [(), ("--show-accepted",)])
def test_a_thought_is_shown_as_one_and_not_put_to_the_model_again(scripted, talk, marks, arguments):  # noqa: F811
    begin, end = marks
    model = scripted(f"{begin}\nhm, a < b\n{end}\n\nIt is seven.", "So?")
    out, _ = talk("first", "second", arguments=arguments)
    said = out.replace("[", "").replace("]", "")  # what came for free
    assert said == "<think>\nhm, a < b\n</think>\n\nIt is seven.\nSo?\n"
    assert "assistant\nIt is seven.<|im_end|>\n<|im_start|>user\nsecond" in asked(model)
    assert "hm" not in asked(model)


def test_the_template_is_asked_to_think_or_not(scripted, talk, marks):  # noqa: F811
    begin, end = marks
    model = scripted(f"hm\n{end}It is seven.", "One.", f"ah{end}Two.")
    out, err = talk("first", "/think off", "second", "/think on", "third", "/think", "/think maybe",
                    arguments=("--think",))  # fmt: skip
    assert out == "<think>\nhm\n</think>\n\nIt is seven.\nOne.\n<think>\nah\n</think>\n\nTwo.\n"
    prompts = [asked(model, at) for at in range(3)]
    assert [prompt.endswith(f"assistant\n{begin}\n") for prompt in prompts] == [True, False, True]
    assert prompts[1].endswith(f"assistant\n{begin}\n{end}")
    assert "assistant\nIt is seven.<|im_end|>" in prompts[1]
    assert "assistant\nOne.<|im_end|>" in prompts[2]
    lines = [line for line in err.splitlines() if "think" in line]
    allowed = "on, off, a maximum number of tokens, or unlimited"
    assert lines == ["think: off", "think: on", "think: on", f"error: /think maybe: must be {allowed}"]


@pytest.mark.parametrize(("flag", "end"), [("--think", "BEGIN\n"), ("--no-think", "BEGIN\nEND")])
def test_generate_thinks_or_not(scripted, marks, flag, end):
    begin, close = marks
    model = scripted("It is seven.")
    assert run(["generate", "first", flag]) == 0
    assert asked(model).endswith("assistant\n" + end.replace("BEGIN", begin).replace("END", close))


def test_a_template_without_the_switch_cannot_think_on_request(scripted, talk, capsys):  # noqa: F811
    scripted("It is seven.")
    for command in (["generate", "first"], ["chat"]):
        for flag in ("--think", "--no-think"):
            assert run([*command, flag]) == 2
            assert f"error: {flag} has no effect: the model's chat template" in capsys.readouterr().err
    _, err = talk("/think on", "/think")
    assert err.splitlines() == [
        "error: /think on has no effect: the model's chat template has no enable_thinking switch",
        "think: chat template default",
    ]
    assert run(["generate", "first", "--raw", "--think"]) == 2


def test_an_answer_that_ends_in_its_thought_is_not_kept(scripted, talk, marks):  # noqa: F811
    model = scripted(f"{marks[0]}\nhm and hm", "Two.")
    out, err = talk("first", "second", "/think")
    assert out == "<think>\nhm and hm\n</think>\n\n\nTwo.\n"
    assert "the answer ended during thinking and is not kept" in err
    assert "think: chat template default" in err
    assert "first" not in asked(model)


def test_marks_are_text_where_the_template_knows_none(scripted, talk):  # noqa: F811
    model = scripted("<think>\nhm\n</think>\n\nIt.", "Two.")
    out, _ = talk("first", "second")
    assert out == "<think>\nhm\n</think>\n\nIt.\nTwo.\n"
    assert "<think>\nhm\n</think>\n\nIt.<|im_end|>" in asked(model)


def test_a_thought_is_dim_where_there_are_colours(capsys):
    painter = Painter(colored=True)
    painter.write("hm", thought=True)
    painter.write("ah", "suffix", thought=True)
    painter.write("Hi")
    painter.write("!", "suffix")
    assert capsys.readouterr().out == "\x1b[2mhm\x1b[0m\x1b[32m\x1b[2mah\x1b[0m\n\nHi\x1b[32m!\x1b[0m"
