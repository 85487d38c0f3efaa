"""Tool loops that the scripted model plays: what it answers in each turn of the page's task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.agents.page import TASK
from tests.support.scripted_model import Answer, Calling, Prompt

DONE = "All done."
"""The last answer, which an agent prints."""
RUN = "cp notes.txt copy.txt"
"""The command that is run at the end."""


def unrelated(prompt: Prompt) -> bool:
    """Return True for an agent's other prompts (titles, memories): their last message of the user is not the task."""
    requests = [turn.text for turn in prompt.turns if turn.role == "user"]
    return not prompt.tools or not requests or TASK not in requests[-1]


def never(prompt: Prompt) -> bool:
    """Return False: all prompts of the agent belong to its loop, and results come as the user's messages."""
    return False


@dataclass
class Story:
    """A loop.

    Attributes:
        steps: the answers of the task's turns, in order; ``DONE`` follows unless the last one ends the loop.
        aside: returns True for a prompt that does not belong to the loop. The answer to it is one word.
        ends: whether ``DONE`` follows the steps.
        prompts: those of the loop by their step.
    """

    steps: list[Answer]
    aside: Callable[[Prompt], bool] = unrelated
    ends: bool = True
    prompts: dict[int, Prompt] = field(default_factory=dict)

    def __call__(self, prompt: Prompt) -> Answer:
        """Return the answer to a prompt: a function of the number of answers since the task."""
        first = next((i for i, turn in enumerate(prompt.turns) if turn.role == "user" and TASK in turn.text), None)
        if first is None or self.aside(prompt):
            return "Notes"
        step = sum(turn.role == "assistant" and not turn.text.startswith("Ok") for turn in prompt.turns[first:])
        self.prompts[step] = prompt
        return self.steps[step] if step < len(self.steps) else DONE


Write = Callable[[Path], list[Answer]]
"""A working folder -> the steps."""


def codex(work: Path) -> list[Answer]:
    """Codex has commands only; its patch tool is a command too."""
    patch = "*** Begin Patch\n*** Update File: notes.txt\n@@\n alpha\n-beta\n+gamma\n*** End Patch\n"
    return [
        Calling("exec_command", {"cmd": "cat notes.txt"}, "I will read the file."),
        Calling("exec_command", {"cmd": "cat missing.txt"}),
        Calling("exec_command", {"cmd": f"apply_patch <<'EOF'\n{patch}EOF"}),
        Calling("exec_command", {"cmd": RUN}),
    ]


def claude_code(work: Path) -> list[Answer]:
    """The first turn calls two tools at once."""
    notes = str(work / "notes.txt")
    edit = {"file_path": notes, "old_string": "beta", "new_string": "gamma"}
    return [
        [Calling("Read", {"file_path": notes}, "I will read the file."), Calling("Bash", {"command": "ls"})],
        Calling("Read", {"file_path": str(work / "missing.txt")}),
        Calling("Edit", edit),
        Calling("Bash", {"command": RUN, "description": "Copy the file"}),
    ]


def with_search(work: Path) -> list[Answer]:
    """Claude Code loads the definition of a deferred tool, and calls it."""
    search = Calling("ToolSearch", {"query": "select:NotebookEdit,CronList", "max_results": 5})
    return [search, Calling("CronList", {}), *claude_code(work)]


def opencode(work: Path) -> list[Answer]:
    """The first turn calls two tools at once."""
    notes = str(work / "notes.txt")
    edit = {"filePath": notes, "oldString": "beta", "newString": "gamma"}
    return [
        [Calling("read", {"filePath": notes}, "I will read the file."), Calling("bash", {"command": "ls"})],
        Calling("read", {"filePath": str(work / "missing.txt")}),
        Calling("edit", edit),
        Calling("bash", {"command": RUN}),
    ]


def qwen_code(work: Path) -> list[Answer]:
    """Paths are absolute."""
    notes = str(work / "notes.txt")
    return [
        Calling("read_file", {"file_path": notes}, "I will read the file."),
        Calling("read_file", {"file_path": str(work / "missing.txt")}),
        Calling("edit", {"file_path": notes, "old_string": "beta", "new_string": "gamma"}),
        Calling("run_shell_command", {"command": RUN, "is_background": False}),
    ]


def copilot(work: Path) -> list[Answer]:
    """Paths are absolute."""
    notes = str(work / "notes.txt")
    return [
        Calling("view", {"path": notes}, "I will read the file."),
        Calling("view", {"path": str(work / "missing.txt")}),
        Calling("edit", {"path": notes, "old_str": "beta", "new_str": "gamma"}),
        Calling("bash", {"command": RUN, "description": "Copy the file"}),
    ]


def cline(work: Path) -> list[Answer]:
    """Tools take lists."""
    notes = str(work / "notes.txt")
    return [
        Calling("read_files", {"files": [{"path": notes}]}, "I will read the file."),
        Calling("read_files", {"files": [{"path": str(work / "missing.txt")}]}),
        Calling("editor", {"path": notes, "old_text": "beta", "new_text": "gamma"}),
        Calling("run_commands", {"commands": [RUN]}),
    ]


def continue_dev(work: Path) -> list[Answer]:
    """Parameters have two spellings."""
    notes = str(work / "notes.txt")
    return [
        Calling("Read", {"filepath": notes}, "I will read the file."),
        Calling("Read", {"filepath": str(work / "missing.txt")}),
        Calling("Edit", {"file_path": notes, "old_string": "beta", "new_string": "gamma"}),
        Calling("Bash", {"command": RUN}),
    ]


def pi(work: Path) -> list[Answer]:
    """An edit has a list of replacements."""
    return [
        Calling("read", {"path": "notes.txt"}, "I will read the file."),
        Calling("read", {"path": "missing.txt"}),
        Calling("edit", {"path": "notes.txt", "edits": [{"oldText": "beta", "newText": "gamma"}]}),
        Calling("bash", {"command": RUN}),
    ]


def aider(work: Path) -> list[Answer]:
    """Aider has no tools: it reads whole files from the answer and runs a test command, which fails at first."""
    return [
        "I will write the file.\n\nnotes.txt\n```\nalpha\nmissing\n```\n",
        "That was the wrong word.\n\nnotes.txt\n```\nalpha\ngamma\n```\n\n" + DONE,
    ]


def mini_swe_agent(work: Path) -> list[Answer]:
    """The last command ends the loop."""
    end = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    return [*commands("bash"), Calling("bash", {"command": end}, DONE)]


def commands(tool: str, text: str = "I will read the file.") -> list[Answer]:
    """Return the steps of an agent with one tool, which runs commands; ``text`` is before the first call."""
    return [
        Calling(tool, {"command": "cat notes.txt"}, text),
        Calling(tool, {"command": "cat missing.txt"}),
        Calling(tool, {"command": "sed -i s/beta/gamma/ notes.txt"}),
        Calling(tool, {"command": RUN}),
    ]


def framework(work: Path) -> list[Answer]:
    """The page's programs have one tool."""
    return commands("run")


def smolagents(work: Path) -> list[Answer]:
    """Its requests need a call as the whole answer, and the last one has the final answer."""
    return [*commands("run", text=""), Calling("final_answer", {"answer": DONE})]


def open_interpreter(work: Path) -> list[Answer]:
    """Blocks of code in the answers are run."""
    lines = ["cat notes.txt", "cat missing.txt", "sed -i s/beta/gamma/ notes.txt", RUN]
    return [f"I will run a command.\n\n```shell\n{line}\n```" for line in lines]
