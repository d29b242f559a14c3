"""What users read is plain English: a short list of turns of phrase, each by its kind, stands nowhere in it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from tests.support.documents import prose
from tests.support.documents.prose import Text

#: How a clause begins: a text, or a part of one after a full stop, a colon or a semicolon.
_START = r"(?:^|[.:;] )"
_IS = r"\b(?:is|are|was|were)"
_PLAIN = r"(?:(?!\b(?:what|and|or|but)\b)[^.?!;:])*?"


@dataclass(frozen=True)
class Banned:
    """A kind of phrase, with a sentence that has it and the sentence to write instead."""

    pattern: str
    example: str
    instead: str


BANNED = (
    Banned(
        r"(?<!\bcan )(?<!\bcannot )\b(?:tell|tells|telling|told)\b(?! (?:\w+ )?apart\b| whether\b| which\b)",
        "Its holder tells in it what it is at.",
        "The holder publishes its status here.",
    ),
    Banned(r"\bsaid\b|\bsays? of\b|\bto say\b", "The state is said in the log.", "The log records the state."),
    Banned(rf"{_IS} none of\b|\bnone of which\b", "The node is none of the model's.", "The node is unknown."),
    Banned(
        r"(?<!\bthere )(?<!\bThere )(?:\bis|\bare|\bwas|\bwere|\bbe) no "
        r"(?!longer|more|less|later|earlier|other than|matter|such|data|worse|better|greater|larger|smaller|way|use)"
        r"\w+(?: (?:of|in|on|at|for|with|that|which|a|any|beside)\b|[.,;:!?)]|$)",
        "That is no checkpoint.",
        "This is not a checkpoint.",
    ),
    Banned(
        rf"{_START}(?:What|Who)\b{_PLAIN}\b(?:\w+s|\w+ed|are|can|must|may|have|had|went|came)\b{_PLAIN} "
        r"(?:is|are|was|were|has|have|must|may|can|cannot|does|stays?|comes?|goes|remains?)\b(?!\?)",
        "What a receiver does not take is sent again.",
        "Failed deliveries are retried.",
    ),
    Banned(rf"\b[Ww]hom?ever\b|{_START}Whatever\b", "Whatever it fails of ends it.", "Any failure here stops it."),
    Banned(
        rf"{_START}Of (?!course\b)", "Of one that is cancelled no deadline.", "Cancelled requests have no deadline."
    ),
    Banned(
        rf"{_START}(?:In|By|With|From|On|At|For|To) (?:what|whom|which|how many)\b",
        "By what a queue is named.",
        "Name of the queue.",
    ),
    Banned(
        rf"{_START}(?:Most|All|As many|As much|So many|As far) (?:that|as)\b",
        "Most that the weights differ by.",
        "Maximum distance of the weights.",
    ),
    Banned(r"\bof which (?:there|it|they|nothing|none)\b", "Files of which there is one.", "One file each."),
    Banned(
        rf"(?<!\bso )(?<!\bfor )\bthat there {_IS}\b(?! (?:a|an|no|some)\b)|\bwhat there {_IS}\b",
        "It continues from what there is.",
        "It continues from the newest backup.",
    ),
    Banned(rf"\bthere {_IS} (?:none|any)\b", "A limit, if there is any.", "The limit, if set."),
    Banned(rf"{_IS} to be\b", "The file is to be overwritten.", "The file must be overwritten."),
    Banned(rf"\b(?:that|which) {_IS} to \w+", "A file that is to follow it.", "The next file."),
    Banned(r"\bsuch as (?:is|are|were|was|has|have)\b", "Nodes such as were there.", "Nodes that existed."),
    Banned(r"\b(?:has|have|had) not(?:[.,;:]|$)", "A term that the other has not.", "A term that the other lacks."),
    Banned(r"\bask(?:s|ed|ing)? (?:it |them )?(?:once )?again\b", "You may ask again later.", "Retry later."),
    Banned(r"\bbears\b|\bbear to\b", "It bears to be repeated.", "It is idempotent."),
    Banned(r"\bbef(?:ell|all|alls|allen)\b", "What befell the model.", "Recoveries of the model."),
    Banned(r"\bowed\b", "Nothing is owed.", "The request has no deadline."),
    Banned(r"\blearn(?:s|ed|t)? that\b", "Before it learned that a key is gone.", "Before it noticed the missing key."),
    Banned(r"\bknows? (?:nothing of|no)\b", "It knows nothing of them.", "They are unknown to it."),
    Banned(rf"{_IS} (?:apart\b|away from\b)|\bapart by\b", "They are apart by a tab.", "They are separated by a tab."),
    Banned(r"\bnothing but\b", "It deletes nothing but edges.", "It deletes only edges."),
    Banned(r"\b(?:go|goes|went|going|gone) on\b", "Deletions went on.", "Deletions continued."),
    Banned(r"\banew\b", "Train the model anew.", "Train the model again."),
    Banned(r"\b(?:there|where|here)(?:of|in|to|upon|with)\b", "The model and the keys thereof.", "The model's keys."),
    Banned(r"[;,] else (?:it|they|this|there)\b", "On disk, else they are lost.", "Otherwise they are lost."),
    Banned(r"(?:(?<![A-Za-z])\d|%) beside \d", "50.63 beside 49.35", "50.63 against 49.35"),
    Banned(r"\b(?:process|loss|class|index|access|address|basis|status)['’](?![\w)])", "its process' id", "process ID"),
    Banned(r"10(?:\^\{?[-−–]?\d+\}?|[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+) ?%|\de-\d+ ?%", "within 10^-7 %", "within 1 part per billion"),
    Banned(
        r"\b\d+ ?(?:d|days?),? \d+ ?(?:h|hours?),?(?: and)? \d+ ?(?:m|min|minutes?)\b"
        r"|\b\d+ ?(?:h|hours?),? \d+ ?(?:m|min|minutes?),?(?: and)? \d+ ?(?:s|seconds?)\b",
        "29 d 23 h 59 min left",
        "29 d 23 h left",
    ),
    Banned(
        # Not a number of something, such as "Table 1 shows".
        r"(?<![\d.,–-])(?<![Tt]able )(?<![Ff]igure )(?<![Oo]ption )(?<!version )(?<!rem )(?<!rithm )"
        r"(?<!below )(?<!around )(?<!\+ )(?<!− )(?<!, )"
        r"\b1 (?!is\b|was\b|has\b|as\b|means\b|this\b|its\b|does\b)[a-z]+[^s\W]s\b(?! of)",
        "The store has 1 nodes deleted.",
        "The store records 1 deletion.",
    ),
)

#: What is right as it stands: a file, the words around the match, and why.
ALLOWED: dict[tuple[str, str], str] = {
    ("service/failure_points.py", "1 keys reserved"): "the name of a point: step 1, keys reserved",
    ("projector/certified/mechanism.py", "1 suits one target"): "a value, not a count",
}

#: Where users read, by kind of text.
KINDS: dict[str, Callable[[], Iterator[Text]]] = {
    "strings": prose.strings,
    "templates": prose.templates,
    "scripts": prose.scripts,
    "configuration": prose.configuration,
    "pages": prose.pages,
    "docstrings": prose.docstrings,
}
_PATTERNS = [re.compile(one.pattern) for one in BANNED]


@cache
def texts_of(kind: str) -> tuple[Text, ...]:
    """The texts of a kind, read once."""
    return tuple(KINDS[kind]())


def matches(words: str) -> Iterator[re.Match[str]]:
    """Where a text has what is banned."""
    for pattern in _PATTERNS:
        yield from pattern.finditer(words)


def is_allowed(text: Text, match: re.Match[str]) -> bool:
    """Whether the match lies within words that are allowed in its file."""
    for path, words in ALLOWED:
        start = text.words.find(words) if path == text.path else -1
        if 0 <= start <= match.start() and match.end() <= start + len(words):
            return True
    return False


@pytest.mark.ci
@pytest.mark.parametrize("kind", KINDS)
def test_users_read_plain_english(kind: str) -> None:
    texts = texts_of(kind)
    assert texts
    found = [
        f"{text.path}:{text.line}: “{match[0].strip()}” in: {text.words[max(0, match.start() - 60) : match.end() + 60]}"
        for text in texts
        for match in matches(text.words)
        if not is_allowed(text, match)
    ]
    assert not found, f"{len(found)} phrases to put plainly:\n" + "\n".join(found)


def test_each_pattern_finds_its_example_and_passes_what_is_to_be_written_instead() -> None:
    for banned in BANNED:
        assert re.search(banned.pattern, banned.example), banned.example
        assert not [match[0] for match in matches(banned.instead)], banned.instead


@pytest.mark.ci
def test_what_is_allowed_is_still_there_and_has_a_reason() -> None:
    assert len(ALLOWED) <= 30
    texts = [text for kind in KINDS for text in texts_of(kind)]
    for (path, words), reason in ALLOWED.items():
        assert reason, words
        assert any(text.path == path and words in text.words for text in texts), f"{path}: {words}"
