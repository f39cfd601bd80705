"""Increments join to the template's own rendering; nothing sampled is tokenised again."""

import pytest

from models.chat import Chat
from models.starter import END, train_tokenizer


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(train_tokenizer(["def f(x):\n    return x + 1\n"] * 20, 400))


def test_increments_join_to_the_full_rendering(chat: Chat) -> None:
    messages = [{"role": "user", "content": "Fix it."}]
    ids = chat.prompt(messages)
    for turn in range(3):
        said, observed = f"say {turn}", f"saw\n{turn}"
        messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": observed}]
        ids += chat.completion(said) + chat.observation([observed], closed=True)
        assert ids == chat.prompt(messages)
    assert chat.tokenizer.decode(ids).count("<|im_end|>\n<|im_start|>") == 7


def test_a_cut_completion_is_closed_by_the_increment(chat: Chat) -> None:
    closed, cut = chat.observation(["x"], closed=True), chat.observation(["x"], closed=False)
    assert cut == [*chat.stop_ids, *closed]


def test_end_of_turn_is_read_off_the_template(chat: Chat) -> None:
    assert chat.end_of_turn == END
    assert chat.decode(chat.completion("abc")) == "abc"
    assert chat.decode(chat.completion("abc")[:-1]) == "abc"


def test_a_lone_closing_tag_round_trips(chat: Chat) -> None:
    assert chat.decode(chat.completion("</think>")) == "</think>"


def test_calls_cost_few_tokens_and_round_trip(chat: Chat) -> None:
    text = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
    assert len(chat.completion(text)) == 2
    assert chat.decode(chat.completion(text)) == text


def test_structured_calls_render_as_the_model_writes_them(chat: Chat) -> None:
    call = {"type": "function", "function": {"name": "read", "arguments": "{}"}}
    structured = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    written = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
    assert chat.prompt(structured) == chat.prompt([structured[0], {"role": "assistant", "content": written}])


def test_a_tokenizer_without_template_is_refused(chat: Chat) -> None:
    class Bare:
        chat_template = None

    with pytest.raises(ValueError, match="no chat template"):
        Chat(Bare())


def test_increments_join_with_other_templates(template: Chat) -> None:
    messages = [{"role": "user", "content": "Fix it."}]
    ids = template.prompt(messages)
    for turn in range(3):
        said, observed = f"say {turn}", f"saw\n{turn}"
        messages += [{"role": "assistant", "content": said}, {"role": "tool", "content": observed}]
        ids += template.completion(said) + template.observation([observed], closed=True)
        assert ids == template.prompt(messages)


def test_the_end_of_turn_of_other_templates(chats: dict[str, Chat]) -> None:
    ends = {name: chat.end_of_turn for name, chat in chats.items()}
    assert ends == {"qwen3": END, "llama3": "<|eot_id|>", "smollm2": END}


def test_a_template_that_shows_no_tools_is_known(chat: Chat, chats: dict[str, Chat]) -> None:
    assert not chat.shows_tools
    assert {name: each.shows_tools for name, each in chats.items()} == {"qwen3": True, "llama3": True, "smollm2": False}
